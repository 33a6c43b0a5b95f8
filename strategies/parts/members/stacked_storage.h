// StackedStorage: parameters, gradients and buffers of a rank's members, one row for each member.
//
// Parameters that every member's optimizer treats alike (those of one group) share a buffer [members, elements]: a member's
// are contiguous, what one layer multiplies with is a batch of strided matrices, and one optimizer pass sweeps all members.
// Rows change places when members finish, so that those that train are always the first. Gradients' gaps stay zero.
// Parts (ModelPart) are bound to rows: all of the first n at once, or one row alone. Threads: the rank's own.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "strategies/parts/members/members_entry.h"
#include "strategies/parts/members/stacked_layers.h"
#include "strategies/parts/model_part.h"

namespace convoy {

class StackedStorage {
 public:
  struct Group {
    int64_t elements = 0;               // of one member
    std::vector<double> rate_factors;   // by row: the group's learning rate over the member's
    std::vector<double> weight_decays;  // by row
    at::Tensor values, gradients;       // [members, elements]
    std::vector<at::Tensor> kept;       // moments of the rows that have finished, [those, elements]; the update's
  };
  struct Tensor {
    std::string name;
    std::vector<int64_t> shape;  // of one member's
    size_t group = 0;
    int64_t offset = 0;
  };
  struct Buffer {
    std::string name;
    at::Tensor value;  // [members, …]
  };

  // For members as `rows` lists them, of the shapes in `like`: a stack's part, or one member's. `optimizer` with each
  // member's rates says which parameters go together. Values are undefined until a part is copied or filled.
  StackedStorage(const ModelPart& like, bool like_is_stack, const std::vector<MemberSettings>& rows,
                 const Component& optimizer);

  int64_t rows() const { return rows_; }
  std::vector<Group>& groups() { return groups_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  const std::vector<Buffer>& buffers() const { return buffers_; }

  // Initial values of row `row`, as `stack` describes them.
  void fill(int64_t row, const Stack& stack, uint64_t seed);
  // From a part of one member, before it is bound to the row.
  void copy(int64_t row, const ModelPart& part);

  // The part's parameters, gradients and buffers become those of rows [0, rows), or of one row alone.
  void bind(ModelPart& stack, int64_t rows) const;
  void bind_row(ModelPart& part, int64_t row) const;

  // Of one member, in its shape: a view. `flat`: [members, elements] of the tensor's group.
  at::Tensor view(const Tensor& tensor, const at::Tensor& flat, int64_t row) const;

  // Row i is the one that was row order[i].
  void reorder(const std::vector<int64_t>& order);

 private:
  void place(const std::vector<ParameterPtr>& parameters, bool stacked, const std::vector<MemberSettings>& rows,
             const Component& optimizer);

  int64_t rows_;
  std::vector<Group> groups_;
  std::vector<Tensor> tensors_;
  std::vector<Buffer> buffers_;
};

}  // namespace convoy
