// Runner: leads a step's micro-batches forward and backward through the parts of the model that this rank holds.
//
// Call order: train or evaluate, the same on all ranks. Threads: the rank's own calls; hooks are called in whichever thread
// runs that part. Failure: as ModelPart; CommError from ranks that hold other parts.
#pragma once
#include <functional>
#include <vector>

#include "strategies/parts/model_part.h"

namespace convoy {

class Runner {
 public:
  struct Hooks {
    std::function<void(const Loss&)> loss;        // of each micro-batch, where the last block is
    std::function<void(int part)> last_backward;  // in front of the part's last backward of the step
  };

  virtual ~Runner() = default;
  virtual const std::vector<ModelPart*>& parts() const = 0;  // in the model's order
  // Gradients of the sum over micro-batches of loss.sum ÷ nominal.
  virtual void train(const std::vector<Batch>& micro, int64_t step, double nominal, const Hooks& hooks) = 0;
  // "loss" first; the same names on every rank, and zeros where the last block is not.
  virtual std::vector<Metric> evaluate(const Batch& batch) = 0;
};

// The whole model in one part.
std::unique_ptr<Runner> make_whole_runner(const Context& context, ModelPtr model,
                                          std::shared_ptr<const LossFunction> loss, PartRequest request = {});

}  // namespace convoy
