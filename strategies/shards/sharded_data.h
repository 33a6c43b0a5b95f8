// ShardedData: the ranks of the axis `data` shard the optimizer state, and on request gradients and parameters
// (Rajbhandari et al., "ZeRO", SC 2020; Zhao et al., "PyTorch FSDP", VLDB 2023).
//
// Units are blocks (sharded_unit.h). Each is a flat tensor; a rank owns an equal shard of it. Only the shards are
// updated, as slots of the shared update.
//   optimizer    Gradients of an update are reduce-scattered by unit as soon as the last backward has passed the unit's
//                first block. New values are gathered while the next forward begins.
//   gradients    The same after every backward; the rank keeps only its shard of the sum.
//   parameters   Values are gathered before a block's forward and again before its backward, one block ahead, and freed
//                afterwards. Any block works: a graph saves the parameters themselves, and only their memory is freed
//                and allocated.
// Messages follow the order of blocks and do not depend on a rank's gradients. So all ranks issue the same collectives.
// The weight and the sum of the loss are all-reduced in a separate message.
// Threads: the rank's thread, and its backward.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strategies/common/step/mesh_strategy.h"
#include "strategies/common/step/overlap_choice.h"
#include "strategies/replicas/bucket_reducer.h"
#include "strategies/shards/sharded_unit.h"

namespace convoy {

// Without `overlap` nothing is gathered ahead, and the rank waits for each sum right after it starts.
struct ShardedOptions : ShardedStepOptions {
  // For a program that calls the module itself: the parts' forward is not called, and a block's gradients are complete
  // when each of its parameters has one. Not for `parameters`. New values are gathered before `update` returns.
  bool by_gradient = false;
  OptimizerFactory optimizer = {};
  int number = 0;  // number of data axes that this job made before
};

class ShardedData : public DataAxis {
 public:
  // Collective along the axis: calls check_equal_parameters and share_foreign_values. Parts may be `deferred`.
  ShardedData(const Context& context, std::vector<ModelPart*> parts, const ShardedOptions& options);
  ~ShardedData() override;

  void begin(bool first, bool updates) override;
  void add_loss(const Loss& loss) override;
  void last_backward(int part) override;
  void keep() override {}
  UpdateStatistics update(double nominal, bool log_step) override;
  void flush() override;
  void visit_state(const StateVisitor& visit) override;
  void visit_gradients(const StateVisitor& visit) override;
  void state_restored() override;

  int64_t local_bytes() const;          // bytes of values and gradients that are always in memory
  int64_t borrowed_bytes_peak() const;  // peak of gathered values and whole gradients

 private:
  class PartHooks;
  std::vector<ParameterPiece> pieces_of(const ShardedUnit& unit, const UnitLayout::Slot& slot) const;
  void add_unit(PlannedUnit plan);
  void attach_update();
  void reduce(const std::vector<size_t>& units);
  void finish_reductions();
  void sum_partial();
  void visit_unit(size_t unit, StateKind kind, const StateVisitor& visit);

  ShardedOptions options_;
  OverlapChoice overlap_;
  Component optimizer_;
  std::map<std::string, std::shared_ptr<BufferPool>> pools_;  // by device
  std::vector<std::unique_ptr<ShardedUnit>> units_;
  std::vector<CommunicatorPtr> partial_;  // by unit
  std::vector<int> first_slots_;          // by unit: index of its first slot
  std::vector<std::unique_ptr<PartHooks>> hooks_;
  at::Tensor header_;  // [2]: weight and sum of the loss
  std::optional<BufferSync> buffer_sync_;
  bool updates_ = false;          // this step ends with an update
  std::vector<size_t> reducing_;  // units with a reduction in progress
};

}  // namespace convoy
