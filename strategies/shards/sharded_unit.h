// ShardedUnit: parameters with state that is sharded over the ranks of a group (Rajbhandari et al., "ZeRO", SC 2020).
//
// Each rank owns an equal shard of the unit's flat buffer (unit_layout.h), with its optimizer moments.
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
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "strategies/common/memory/flat_parameters.h"
#include "strategies/common/model/model_part.h"
#include "strategies/plans/options/sharded.h"
#include "strategies/shards/unit_layout.h"

namespace convoy {

struct UnitRequest {
  std::string name;                      // for messages
  std::vector<ParameterPtr> parameters;  // at least one; of one dtype and device
  Shard shard = Shard::parameters;
  std::optional<at::ScalarType> gathered;  // shard parameters: dtype of gathered values; none: the parameters' dtype
};

class ShardedUnit {
 public:
  // Takes over the parameters' values. Computes values without memory (Parameter::initial); if `shard` is parameters,
  // only for the rank's shard.
  ShardedUnit(const UnitRequest& request, CommunicatorPtr group, std::shared_ptr<BufferPool> pool,
              const Component& optimizer);

  const std::string& name() const { return name_; }
  const UnitLayout& layout() const { return layout_; }
  const at::Tensor& values() const { return values_; }        // [layout().part()], this rank's shard
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
