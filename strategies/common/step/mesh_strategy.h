// MeshStrategy: the step that all strategies on a mesh {data, pipeline, tensor} share. Strategies differ in the
// StepRunner (leads micro-batches through the model), the layers (PartRequest::layers) and the DataAxis (makes updates
// from gradients).
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/batch.h"
#include "core/model_interface.h"
#include "core/state.h"
#include "core/strategy.h"
#include "strategies/common/model/model_part.h"
#include "strategies/common/step/gradient_collector.h"
#include "strategies/common/step/update.h"

namespace convoy {

// StepRunner: leads a step's micro-batches forward and backward through this rank's parts of the model.
//
// Call order: train or evaluate, the same on all ranks. Threads: the rank's thread; hooks run in the thread of the
// part. Failure: as for ModelPart; CommError from ranks with other parts.
class StepRunner {
 public:
  struct Hooks {
    std::function<void(const Loss&)> loss;        // for each micro-batch, on the rank with the last block
    std::function<void(int part)> last_backward;  // before the part's last backward of the step
  };

  virtual ~StepRunner() = default;
  virtual const std::vector<ModelPart*>& parts() const = 0;  // in the model's order
  // Computes gradients of the sum over micro-batches of loss.sum ÷ nominal.
  virtual void train(const std::vector<Batch>& micro, int64_t step, double nominal, const Hooks& hooks) = 0;
  // Returns "loss" first; the same names on every rank, and zeros on ranks without the last block.
  virtual std::vector<Metric> evaluate(const Batch& batch) = 0;
};

// Returns a request with batch norm and activation checkpointing as in `options`. Collective along the axis `data`.
PartRequest part_request(const Context& context, const StepOptions& options);

// Creates a runner of the whole model in one part.
std::unique_ptr<StepRunner> make_whole_runner(const Context& context, ModelPtr model, LossPtr loss,
                                              PartRequest request = {});

// Recordable: a data axis with an update that a CUDA graph can record (step_graph.h). Steps of other data axes are
// never recorded.
// Threads: the rank's thread.
class Recordable {
 public:
  virtual ~Recordable() = default;
  // Sets the values of the next update that the host computes (learning rates). After the first call it must be called
  // before every update.
  virtual void set_rates() = 0;
  // Returns why a step with an update cannot be recorded; "" if it can. Equal on all ranks.
  virtual std::string obstacle() const = 0;
};

// DataAxis: turns the gradients of this rank's parameters into an update, with the ranks along the axis `data`.
//
// Call order: begin; then for each micro-batch add_loss (on ranks with the loss) and backward, with last_backward
// before the last one of each part; then update, or keep if `begin` got updates = false. The order is equal on all
// ranks.
// Threads: the rank's thread, and its backward. Failure: CommError.
class DataAxis {
 public:
  // `every`: steps per update. `cut`, `optimizer`: as in Update. The parts get the loss scale of the update.
  DataAxis(const Context& context, std::vector<ModelPart*> parts, int64_t every, std::vector<CommunicatorPtr> cut = {},
           OptimizerFactory optimizer = {});
  virtual ~DataAxis() = default;

  // Begins a step. `first`: first step of an accumulation, whose gradients overwrite. `updates`: the step ends with an
  // update.
  virtual void begin(bool first, bool updates) = 0;
  // Announces the step's batch, on all ranks, before its first forward.
  virtual void expect(const Batch& /*batch*/) {}
  virtual void add_loss(const Loss& loss) = 0;
  // Announces that the next backward of this part is its last in this step: complete gradients may be sent.
  virtual void last_backward(int part) = 0;
  // Ends a step without an update.
  virtual void keep() = 0;
  // Reduces the remaining gradients and updates. `nominal`: divisor of the losses in backward. `log_step`: see
  // StepInput.
  virtual UpdateStatistics update(double nominal, bool log_step) = 0;

  virtual void flush() = 0;
  virtual void flush_and_copy(int64_t /*most*/) { flush(); }  // as in Strategy
  virtual void flush_for_evaluation() { flush(); }            // as in Strategy
  virtual void visit_state(const StateVisitor& visit) = 0;
  virtual void visit_gradients(const StateVisitor& visit) = 0;
  virtual void state_restored() { update_.restored(); }
  void renumbered(int64_t steps) { update_.renumbered(steps); }  // as in Strategy
  // Restores the rank's values that flush replaced, before the next forward. `begin` does it too.
  virtual void continue_training() {}
  // Returns the parameters whose values are equal on all ranks of the axis between steps.
  virtual std::vector<ParameterPtr> equal_parameters() const { return {}; }
  // Call it after `set_` of a parameter: see GradientCollector::watch.
  void watch_gradients() {
    for (auto& collector : collectors_) collector->watch();
  }
  // Returns the update, for its learning rate and its counts.
  Update& end_of_step() { return update_; }
  // Returns the recordable part of a step; null if no step can be recorded.
  virtual Recordable* recordable() { return nullptr; }

 protected:
  const CommunicatorPtr group_;     // the axis data
  const CommunicatorPtr pipeline_;  // the axis of pipeline stages
  const bool first_of_job_;
  const std::vector<ModelPart*> parts_;
  Update update_;
  std::vector<std::unique_ptr<GradientCollector>> collectors_;  // one per part
};

// --- The strategy ---

struct MeshComponents {
  StepOptions options;
  std::function<std::unique_ptr<StepRunner>(const Context&, ModelPtr, LossPtr)> runner = nullptr;
  std::function<std::unique_ptr<DataAxis>(const Context&, const std::vector<ModelPart*>&)> data = nullptr;
};

std::unique_ptr<Strategy> make_mesh_strategy(MeshComponents components);

}  // namespace convoy
