// StackedStorage: parameters, gradients and buffers of a rank's members, one row per member.
//
// Parameters that are in one parameter group for every member's optimizer share a tensor [members, elements]. A
// member's parameters are contiguous, a layer multiplies a batch of strided matrices, and one optimizer pass updates
// all members. Rows are reordered when members finish: training members come first. Gaps in gradients stay zero. A
// ModelPart is bound to rows: to the first n together, or to a single row. Threads: the rank's thread.
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/state.h"
#include "strategies/common/model/model_part.h"
#include "strategies/ensemble/stacked_layers.h"
#include "strategies/plans/options/ensemble.h"

namespace convoy {

class StackedStorage {
 public:
  struct Group {
    int64_t elements = 0;               // per member
    std::vector<double> rate_factors;   // by row: the group's learning rate ÷ the member's
    std::vector<double> weight_decays;  // by row
    at::Tensor values, gradients;       // [members, elements]
    std::vector<at::Tensor> kept;       // moments of finished rows, [finished, elements]; the update uses them
  };
  struct Tensor {
    std::string name;
    std::vector<int64_t> shape;  // per member
    size_t group = 0;
    int64_t offset = 0;
  };

  // Makes storage for members in the order of `rows`, with the shapes of `like`: a stack's part, or one member's.
  // `optimizer` with each member's rates determines the parameter groups. Values are undefined until copy or fill.
  StackedStorage(const ModelPart& like, bool like_is_stack, const std::vector<MemberSettings>& rows,
                 const Component& optimizer);

  int64_t rows() const { return rows_; }
  std::vector<Group>& groups() { return groups_; }
  const std::vector<Group>& groups() const { return groups_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  const std::vector<NamedBuffer>& buffers() const { return buffers_; }

  // Fills row `row` with initial values as `stack` describes.
  void fill(int64_t row, const Stack& stack, uint64_t seed);
  // Copies the values of one member's model part into row `row`. Call it before `bind_row`.
  void copy(int64_t row, const ModelPart& part);

  // Binds the part's parameters, gradients and buffers to rows [0, rows), or to one row.
  void bind(ModelPart& stack, int64_t rows) const;
  void bind_row(ModelPart& part, int64_t row) const;

  // Returns a view of one member's tensor in its shape. `flat`: [members, elements] of the tensor's group.
  at::Tensor view(const Tensor& tensor, const at::Tensor& flat, int64_t row) const;

  // Reorders rows: new row i is the old row order[i].
  void reorder(const std::vector<int64_t>& order);

 private:
  void lay_out(const std::vector<ParameterPtr>& parameters, bool stacked, const std::vector<MemberSettings>& rows,
               const Component& optimizer);

  int64_t rows_;
  std::vector<Group> groups_;
  std::vector<Tensor> tensors_;
  std::vector<NamedBuffer> buffers_;
};

// BestMembers: the weights that members of an ensemble had at their best evaluation. A member that stops early is
// restored to them. One copy of parameters and buffers for each member that stops early.
// Threads: the rank's thread.
class BestMembers {
 public:
  // Makes room for the members with a patience above 0.
  BestMembers(const StackedStorage& storage, const std::vector<MemberSettings>& rows);

  // Copies the member in this row of the storage.
  void keep(const StackedStorage& storage, int64_t row, int64_t member);
  // Writes the copy into the row. Does nothing if the member has no copy: it never improved, or an earlier version of
  // convoy wrote the checkpoint.
  void restore(const StackedStorage& storage, int64_t row, int64_t member) const;
  // Drops the copies, because later evaluations are not comparable with earlier ones.
  void reset();

  // Visits the copies as optional state, each with the number of its member.
  void visit_state(const StateVisitor& visit) const;

 private:
  struct Copy {
    std::vector<std::pair<std::string, at::Tensor>> tensors;  // by canonical name, in the order of the storage
    at::Tensor kept;                                          // bool [1]
  };
  std::map<int64_t, Copy> copies_;  // by member number
};

}  // namespace convoy
