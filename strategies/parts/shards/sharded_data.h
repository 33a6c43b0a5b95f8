// ShardedData: the ranks of the axis `data` divide the optimizer's state among them, and on request gradients and
// parameters too (Rajbhandari et al., "ZeRO", SC 2020; Zhao et al., "PyTorch FSDP", VLDB 2023).
//
// Units are blocks (unit_plan.h), each a flat buffer of which a rank owns an equal part (sharded_unit.h). The parts alone
// are updated, as slots of the shared update.
//   optimizer    gradients of an update are reduce-scattered by unit as soon as the last backward has passed its first block;
//                new values are gathered while the next forward begins.
//   gradients    the same behind every backward, and only the own part of the sum is kept.
//   parameters   values are gathered in front of a block's forward and again in front of its backward, one block ahead, and
//                given back behind. Blocks of any make are served alike: a graph saves the parameters themselves, whose
//                memory is what goes and comes.
// Everything is sent in the order of blocks, whatever gradients a rank has, so that all ranks issue the same collectives.
// The loss' weight and sum are all-reduced by a message of their own.
// Threads: the rank's own, and its backward.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strategies/parts/data_axis.h"
#include "strategies/parts/gradient_collector.h"
#include "strategies/parts/replicas/buffer_sync.h"
#include "strategies/parts/shards/unit_plan.h"

namespace convoy {

struct ShardedOptions {
  int64_t every = 1;  // steps an update
  Shard shard = Shard::parameters;
  bool reshard = true;            // parameters: given back behind forward too, not only behind backward
  bool by_tensor = false;         // units are tensors, not blocks
  bool overlap = true;            // false: nothing is gathered ahead, every sum is waited for at once
  std::string buffers = "local";  // see BufferSync
};

// Of a strategy that has sharded_data_options() (parts/shards/sharded_entry.h) and sync_option().
ShardedOptions sharded_options(const Options& strategy);

class ShardedData : public DataAxis {
 public:
  // Takes part in check_equal_start and share_foreign_values along the axis. Parts may be `deferred`.
  ShardedData(const Context& context, std::vector<ModelPart*> parts, const ShardedOptions& options);
  ~ShardedData() override;

  void begin(bool first, bool updates) override;
  void add_loss(const Loss& loss) override;
  void last_backward(int part) override;
  void keep() override {}
  UpdateFigures update(double nominal, bool told) override;
  void settle() override;
  void visit_state(const StateVisitor& visit) override;
  void state_restored() override;
  void renumbered(int64_t steps) override { update_.renumbered(steps); }

  const std::vector<std::unique_ptr<ShardedUnit>>& units() const { return units_; }
  int64_t held_bytes() const;           // of values and gradients, all the time
  int64_t borrowed_bytes_peak() const;  // of whole ones, for a while

 private:
  class PartHooks;
  void add_unit(PlannedUnit plan);
  void attach_update();
  void reduce(const std::vector<size_t>& units);
  void finish_reductions();
  void sum_partial();
  void visit_unit(size_t unit, StateKind kind, const StateVisitor& visit);

  ShardedOptions options_;
  Component optimizer_;
  CommunicatorPtr group_;     // the axis data
  CommunicatorPtr pipeline_;  // the axis along which the model's depth is cut
  bool first_of_job_;
  std::vector<ModelPart*> parts_;
  std::map<std::string, std::shared_ptr<BufferPool>> pools_;  // by device
  std::vector<std::unique_ptr<ShardedUnit>> units_;
  std::vector<CommunicatorPtr> partial_;  // by unit
  std::vector<int> first_slots_;          // by unit: index of its first slot
  std::vector<std::unique_ptr<PartHooks>> hooks_;
  std::vector<std::unique_ptr<GradientCollector>> collectors_;  // one per part
  at::Tensor header_;                                           // [2]: weight and sum of the loss
  Update update_;
  std::optional<BufferSync> buffer_sync_;
  bool updates_ = false;          // this step ends with an update
  std::vector<size_t> reducing_;  // units whose sums are on their way
};

}  // namespace convoy
