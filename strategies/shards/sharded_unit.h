// Units: groups of parameters whose state is sharded over the ranks of a group.
//
// Sections: BufferPool, SwappedStorage, UnitLayout, ShardedUnit, plans of units.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
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
// Freeing and allocating such memory each time costs several times as much as filling it. So the pool keeps a returned
// tensor, and lends it for a later request of more than half its size. Lent and unused bytes together never exceed the
// peak of lent bytes: unused tensors are freed first.
// Threads: one at a time.
class BufferPool {
 public:
  explicit BufferPool(at::Device device) : device_(device) {}

  // Returns uint8 [at least `bytes`], aligned for every dtype; the content is undefined.
  at::Tensor take(int64_t bytes);
  void give(at::Tensor buffer);  // returns it to the pool; ignores an undefined tensor
  // Frees kept tensors, and forgets the peak. Call it when fewer will be lent at one time: tensors that take turns
  // without need push each other out of the cache.
  void restart();

  int64_t bytes() const { return lent_ + kept_; }
  int64_t peak() const { return peak_; }  // largest sum of lent bytes at one time since `restart`

 private:
  at::Tensor lend(at::Tensor buffer);
  void make_room();

  at::Device device_;
  std::vector<at::Tensor> free_;
  int64_t lent_ = 0;
  int64_t kept_ = 0;
  int64_t peak_ = 0;
};

// Returns a view of the buffer's first `elements` elements of `dtype`.
at::Tensor numbers_in(const at::Tensor& buffer, int64_t elements, at::ScalarType dtype);

// --- SwappedStorage: tensors whose memory comes and goes ---

// SwappedStorage: memory of a tensor that can be attached and detached. The tensor, its views and tensors that autograd
// saved stay valid objects.
//
// Parameters that are views of it keep their identity, sizes and gradient accumulators. A graph saves the parameter
// itself, so backward finds the values after memory is attached again. Do not touch a view without memory. LibTorch's
// typed accessors throw ("its data is not allocated yet"), but its elementwise kernels crash.
// Threads: one at a time.
class SwappedStorage {
 public:
  // Has no memory at first.
  SwappedStorage(int64_t elements, at::ScalarType dtype, at::Device device);
  ~SwappedStorage();
  SwappedStorage(const SwappedStorage&) = delete;
  SwappedStorage& operator=(const SwappedStorage&) = delete;

  // Returns a contiguous view from element `offset` on; no autograd.
  at::Tensor view(int64_t offset, at::IntArrayRef shape) const;

  // Attaches `memory` until `take`: contiguous, on the device, large enough.
  void put(at::Tensor memory);
  at::Tensor take();
  bool present() const { return memory_.defined(); }

 private:
  c10::Storage storage_;
  at::TensorOptions options_;
  at::Tensor memory_;
};

// --- UnitLayout: positions and shards ---

// UnitLayout: offset of each parameter in a unit's flat tensor, and the shard of each rank.
//
// The flat tensor is divided into equal, contiguous shards, one per rank of a group. Parameters that one optimizer loop
// can update are adjacent. Each parameter starts at a multiple of 64 bytes; gaps are zero in values and gradients. A
// shard may begin and end within a parameter. The class only computes numbers; it reads and writes no tensor.
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
    bool counted = true;  // as FlatParameters::Slot::counted
  };

  // `alignment`: elements in 64 bytes, for the smallest dtype in which the flat tensor exists.
  UnitLayout(const std::vector<ParameterPtr>& parameters, int ranks, int64_t alignment, const Component& optimizer);

  const std::vector<ParameterPtr>& parameters() const { return parameters_; }  // in order of storage
  int64_t offset(size_t parameter) const { return offsets_[parameter]; }       // elements from the flat tensor's start
  const std::vector<Range>& gaps() const { return gaps_; }                     // ranges without a parameter
  int ranks() const { return ranks_; }
  int64_t shard_size() const { return shard_size_; }      // elements per rank
  int64_t whole() const { return shard_size_ * ranks_; }  // elements of the flat tensor

  std::vector<Slot> slots(int rank) const;
  // Returns which of the parameter's elements (row-major) are in the rank's shard; the range may be empty. In the shard
  // they begin at element `offset(parameter) + begin - rank · shard_size()`.
  Range local_range(size_t parameter, int rank) const;

 private:
  std::vector<ParameterPtr> parameters_;
  std::vector<int64_t> offsets_;
  std::vector<Slot> runs_;  // ranges of the whole flat tensor
  std::vector<Range> gaps_;
  int ranks_;
  int64_t shard_size_ = 0;
};

// --- ShardedUnit: values and gradients ---

struct UnitRequest {
  std::string name;                      // for messages
  std::vector<ParameterPtr> parameters;  // at least one; of one dtype and device
  Shard shard = Shard::parameters;
  std::optional<at::ScalarType> gathered;  // with Shard::parameters: dtype of gathered values; none: the parameters'
};

// ShardedUnit: parameters with state that is sharded over the ranks of a group (Rajbhandari et al., "ZeRO", SC 2020).
//
// Each rank owns an equal shard of the unit's flat tensor (UnitLayout), with its optimizer moments.
//   optimizer   Values and gradients are whole on every rank. Once per update gradients are summed into the rank's
//               shard, and the new values of the shard are sent to all ranks.
//   gradients   As optimizer, but gradients are whole only during backward, in memory of the pool. Of their sum only
//               the rank's shard is kept.
//   parameters  As gradients, but a rank keeps only its shard of the values. `acquire` gathers the whole values into
//               memory of the pool, in half precision if only half-precision products read them.
// With `parameters` a parameter stays the same tensor while its memory is detached and attached (SwappedStorage). So a
// graph can use the parameters that it saved after the next gather. Writing to gathered values is Error(training).
// Call order for values: prefetch (optional) → acquire … release, nested. For gradients of an update: begin; then for
// each backward open_gradients → reduce → finish_reduce. The order is equal on all ranks.
// Threads: one at a time.
class ShardedUnit {
 public:
  // Moves the parameters' values into the unit. Values without memory (Parameter::initial) are computed; with
  // Shard::parameters only those of the rank's shard.
  ShardedUnit(const UnitRequest& request, CommunicatorPtr group, std::shared_ptr<BufferPool> pool,
              const Component& optimizer);

  const std::string& name() const { return name_; }
  const UnitLayout& layout() const { return layout_; }
  const at::Tensor& values() const { return values_; }        // [layout().shard_size()], this rank's shard
  const at::Tensor& gradients() const { return gradients_; }  // the same for gradients, after a reduction
  int64_t bytes() const;                                      // bytes that are always in memory

  void prefetch();  // starts a gather, unless values are present or a gather runs
  void acquire();   // makes values present until `release`
  void release();
  void keep();  // keeps values in memory until `let_go`, even after `release`
  void let_go();
  void spread();  // starts to send the shard's new values to all ranks; `acquire` and `flush` wait for it
  void flush();

  void begin();           // makes the next gradients overwrite
  void open_gradients();  // makes Parameter::gradient writable
  void reduce();          // starts the sum of complete gradients
  void finish_reduce();   // waits; adds the sum over ranks to gradients(), or overwrites them after `begin`
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
  at::Tensor incoming_;                        // destination of a gather; memory from the pool
  WorkPtr gather_;
  int uses_ = 0;
  bool kept_ = false;
  std::vector<int64_t> versions_;  // versions of the parameters at the last gather

  bool open_ = false;
  bool fresh_ = true;    // nothing has been reduced since `begin`
  at::Tensor borrowed_;  // whole gradients of the unit; memory from the pool
  at::Tensor sum_;       // this rank's shard of the sum; memory from the pool
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

// Plans one unit per block: the parameters that only this block uses. Two kinds of them form separate units: those that
// can be gathered in half precision, and those whose gradients are partial sums over the axis `tensor`. A parameter
// that several blocks use, or that is tied to a layer of another rank's block, is a unit alone. Units are in the order
// of parts and blocks. Every trained parameter is in exactly one.
std::vector<PlannedUnit> plan_units(const std::vector<ModelPart*>& parts, const UnitOptions& options);

}  // namespace convoy
