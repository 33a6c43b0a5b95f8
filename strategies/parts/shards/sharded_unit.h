// ShardedUnit: parameters whose state is divided among the ranks of a group (Rajbhandari et al., "ZeRO", SC 2020).
//
// Each rank owns an equal part of the unit's flat buffer (unit_layout.h), with the optimizer's moments of it.
//   optimizer   values and gradients are whole on every rank; gradients are summed into the own part once an update, and the
//               own part of the new values is spread to all.
//   gradients   as before, but gradients are whole in borrowed memory only while backward makes them; their sum is kept for
//               the own part alone.
//   parameters  values too: the own part is the master, and the whole is gathered into borrowed memory for a while, in a
//               narrower dtype where that serves as well.
// In the last case parameters keep their identity while their memory comes and goes (swapped_storage.h). What a graph saved
// of them it finds again once they have been gathered again; writing to them in place meanwhile is found out and refused.
// Call order for values: prefetch (may be left out) → acquire … release, nested; for gradients: begin → open_gradients →
// reduce → finish_reduce, for each backward. The same on all ranks. Threads: one at a time.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "strategies/parts/shards/buffer_pool.h"
#include "strategies/parts/shards/unit_layout.h"
#include "strategies/parts/swapped_storage.h"

namespace convoy {

enum class Shard { optimizer, gradients, parameters };

struct UnitRequest {
  std::string name;                      // for messages
  std::vector<ParameterPtr> parameters;  // at least one; of one dtype and device
  Shard shard = Shard::parameters;
  std::optional<at::ScalarType> gathered;  // shard parameters: the dtype they are gathered in; none: their own
};

class ShardedUnit {
 public:
  // Takes the parameters' values over; those without memory (Parameter::initial) are made, of the own part only where
  // `shard` is parameters.
  ShardedUnit(const UnitRequest& request, CommunicatorPtr group, std::shared_ptr<BufferPool> pool,
              const Component& optimizer);

  const std::string& name() const { return name_; }
  const UnitLayout& layout() const { return layout_; }
  const at::Tensor& values() const { return values_; }        // [layout().part()], this rank's own
  const at::Tensor& gradients() const { return gradients_; }  // the same of the gradients, once they have been reduced
  int64_t bytes() const;                                      // held all the time

  void prefetch();  // starts gathering, unless values are there or on their way
  void acquire();   // values are there until `release`
  void release();
  void keep();  // values stay where they are until `let_go`, released or not
  void let_go();
  void spread();  // the own part has new values: they are on their way to all, and there after `acquire` or `settle`
  void settle();

  void begin();           // the next gradients overwrite
  void open_gradients();  // Parameter::gradient may be written to
  bool open() const { return open_; }
  void reduce();         // starts summing: gradients are complete
  void finish_reduce();  // their sum over ranks has been added to gradients()
  void zero_if_none();   // gradients() of which nothing was ever reduced

 private:
  bool gathers() const { return shard_ == Shard::parameters; }
  void store_part();
  void store_whole();
  void drop();
  void check_unwritten() const;
  void bind_gradients(const at::Tensor& whole);
  at::Tensor by_rank(const at::Tensor& flat) const;

  std::string name_;
  Shard shard_;
  CommunicatorPtr group_;
  std::shared_ptr<BufferPool> pool_;
  at::ScalarType dtype_;     // of values and gradients
  at::ScalarType gathered_;  // of the whole
  at::Device device_;
  UnitLayout layout_;

  at::Tensor values_, gradients_;
  at::Tensor whole_values_, whole_gradients_;  // where they are held all the time
  std::unique_ptr<SwappedStorage> storage_;    // of the parameters, where they are gathered
  at::Tensor incoming_;                        // borrowed, being gathered into
  WorkPtr gather_;
  int uses_ = 0;
  bool kept_ = false;
  std::vector<int64_t> versions_;  // of the parameters, when they were gathered

  bool open_ = false;
  bool fresh_ = true;    // nothing has been reduced since `begin`
  at::Tensor borrowed_;  // gradients, whole
  at::Tensor sum_;       // borrowed, of the own part
  WorkPtr reduction_;
};

}  // namespace convoy
