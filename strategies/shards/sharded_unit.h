// Units: groups of parameters whose state is sharded over the ranks of a group.
//
// Sections: BufferPool, UnitLayout, ShardedUnit, plans of units.
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "core/optim/optimizer.h"
#include "strategies/common/layers/parameter.h"
#include "strategies/common/memory/flat_parameters.h"
#include "strategies/common/model/model_part.h"
#include "strategies/plans/options/sharded.h"

namespace convoy {

// --- BufferPool: memory for a short time ---

// BufferPool: memory that is needed repeatedly for a short time, such as gathered parameters and their gradients.
//
// Freeing and allocating such buffers each time costs several times as much as filling them. The pool keeps returned
// buffers and lends one for requests of more than half its size. Lent and kept memory together never exceed the peak of
// lent memory. Unused buffers are freed to make room for a new one.
// Threads: one at a time.
class BufferPool {
 public:
  explicit BufferPool(at::Device device) : device_(device) {}

  // Returns at least `bytes`, aligned for every dtype; the content is undefined.
  at::Tensor take(int64_t bytes);
  void give(at::Tensor buffer);

  int64_t bytes() const { return lent_ + kept_; }
  int64_t peak() const { return peak_; }  // largest sum of lent bytes at one time

 private:
  at::Tensor lend(at::Tensor buffer);
  void make_room();

  at::Device device_;
  std::vector<at::Tensor> free_;
  int64_t lent_ = 0;
  int64_t kept_ = 0;
  int64_t peak_ = 0;
};

// Views the first elements of a buffer in a dtype.
at::Tensor numbers_in(const at::Tensor& buffer, int64_t elements, at::ScalarType dtype);

// --- UnitLayout: positions and shards ---

// UnitLayout: position of each parameter in a unit's flat buffer, and the shard of each rank.
//
// The buffer is divided into equal, contiguous shards, one per rank of a group. Parameters that one optimizer loop can
// update are adjacent. Each parameter starts at a multiple of 64 bytes; gaps are zero in values and gradients. A shard
// may begin and end within a parameter. Plain data: no tensor is touched.
class UnitLayout {
 public:
  struct Range {
    int64_t begin = 0, end = 0;
    int64_t size() const { return end - begin; }
  };
  // Range of a rank's shard that one optimizer loop updates.
  struct Slot {
    Range range;  // within the shard
    GroupSettings group;
    bool counted = true;
  };

  // `alignment`: elements in 64 bytes, in the smallest dtype of the buffer.
  UnitLayout(const std::vector<ParameterPtr>& parameters, int ranks, int64_t alignment, const Component& optimizer);

  const std::vector<ParameterPtr>& parameters() const { return parameters_; }  // in order of storage
  int64_t offset(size_t parameter) const { return offsets_[parameter]; }       // offset in the buffer
  const std::vector<Range>& gaps() const { return gaps_; }                     // gaps in the buffer
  int ranks() const { return ranks_; }
  int64_t shard_size() const { return shard_size_; }  // elements per rank
  int64_t whole() const { return shard_size_ * ranks_; }

  std::vector<Slot> slots(int rank) const;
  // Returns the parameter's elements (row-major) in the rank's shard; empty: none. They begin at `offset(parameter) +
  // begin - rank · shard_size()` of the shard.
  Range local_range(size_t parameter, int rank) const;

 private:
  std::vector<ParameterPtr> parameters_;
  std::vector<int64_t> offsets_;
  std::vector<Slot> runs_;  // ranges of the whole buffer
  std::vector<Range> gaps_;
  int ranks_;
  int64_t shard_size_ = 0;
};

// --- ShardedUnit: values and gradients ---

struct UnitRequest {
  std::string name;                      // for messages
  std::vector<ParameterPtr> parameters;  // at least one; of one dtype and device
  Shard shard = Shard::parameters;
  std::optional<at::ScalarType> gathered;  // shard parameters: dtype of gathered values; none: the parameters' dtype
};

// ShardedUnit: parameters with state that is sharded over the ranks of a group (Rajbhandari et al., "ZeRO", SC 2020).
//
// Each rank owns an equal shard of the unit's flat buffer (UnitLayout), with its optimizer moments.
//   optimizer   Values and gradients are whole on every rank. Once per update gradients are summed into the rank's
//               shard, and the new values of the shard are sent to all.
//   gradients   The same, but gradients are whole only during backward, in borrowed memory. Only the shard of their sum
//               is kept.
//   parameters  The same for values: the shard is the master copy. The whole is gathered into borrowed memory for a
//               while, in half precision if products compute in it.
// With `parameters` a parameter keeps its identity while its memory is detached and attached (flat_parameters.h). A
// graph finds its saved parameters again after the next gather. Writing to them in place meanwhile is an error.
// Call order for values: prefetch (optional) → acquire … release, nested. For gradients: begin → open_gradients →
// reduce → finish_reduce, for each backward. The order is equal on all ranks.
// Threads: one at a time.
class ShardedUnit {
 public:
  // Takes over the parameters' values. Computes values without memory (Parameter::initial); if `shard` is parameters,
  // only for the rank's shard.
  ShardedUnit(const UnitRequest& request, CommunicatorPtr group, std::shared_ptr<BufferPool> pool,
              const Component& optimizer);

  const std::string& name() const { return name_; }
  const UnitLayout& layout() const { return layout_; }
  const at::Tensor& values() const { return values_; }        // [layout().shard_size()], this rank's shard
  const at::Tensor& gradients() const { return gradients_; }  // the same for gradients, after a reduction
  int64_t bytes() const;                                      // bytes that are always in memory

  void prefetch();  // starts a gather unless values are present or a gather runs
  void acquire();   // makes values present until `release`
  void release();
  void keep();  // keeps values in memory until `let_go`, even after `release`
  void let_go();
  void spread();  // sends the shard's new values to all; they are present after `acquire` or `flush`
  void flush();

  void begin();           // makes the next gradients overwrite
  void open_gradients();  // makes Parameter::gradient writable
  void reduce();          // starts the sum of complete gradients
  void finish_reduce();   // adds their sum over ranks to gradients()
  void zero_if_none();    // zeroes gradients() if nothing was reduced

 private:
  bool gathers() const { return shard_ == Shard::parameters; }
  void store_shard();
  void store_whole();
  void drop();
  void check_unwritten() const;
  void bind_gradients(const at::Tensor& whole);
  at::Tensor by_rank(const at::Tensor& flat) const;

  std::string name_;
  Shard shard_;
  CommunicatorPtr group_;
  std::shared_ptr<BufferPool> pool_;
  at::ScalarType dtype_;     // type of values and gradients
  at::ScalarType gathered_;  // type of gathered values
  at::Device device_;
  UnitLayout layout_;

  at::Tensor values_, gradients_;
  at::Tensor whole_values_, whole_gradients_;  // set if they are always in memory
  std::unique_ptr<SwappedStorage> storage_;    // storage of the parameters, if they are gathered
  at::Tensor incoming_;                        // borrowed; the destination of a gather
  WorkPtr gather_;
  int uses_ = 0;
  bool kept_ = false;
  std::vector<int64_t> versions_;  // versions of the parameters at the last gather

  bool open_ = false;
  bool fresh_ = true;    // nothing has been reduced since `begin`
  at::Tensor borrowed_;  // borrowed; whole gradients
  at::Tensor sum_;       // borrowed; this rank's shard of the sum
  WorkPtr reduction_;
};

// --- Plans of units: parameters that are stored, gathered and reduced together ---

struct PlannedUnit {
  UnitRequest request;
  CommunicatorPtr partial;  // group over which gradients are partial sums (Parameter::partial); null: they are complete
  size_t part = 0;
  std::vector<size_t> blocks;  // blocks of the part that use it, ascending
};

struct UnitOptions {
  Shard shard = Shard::parameters;
  bool by_tensor = false;                  // one unit per parameter
  std::optional<at::ScalarType> autocast;  // dtype of products under autocast
  CommunicatorPtr tensor;                  // the axis `tensor`; its ranks have the same units
};

// Plans one unit per block: the parameters that only this block uses. Parameters that can be gathered in half precision
// form a separate unit. A tensor that several blocks use, or that ranks with other blocks share, is a unit too. Units
// are in order of parts and blocks. Every trained parameter is in one.
std::vector<PlannedUnit> plan_units(const std::vector<ModelPart*>& parts, const UnitOptions& options);

}  // namespace convoy
