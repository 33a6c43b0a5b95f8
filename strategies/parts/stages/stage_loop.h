// StageLoop: executes one list of a schedule with the parts of a model that belong to it.
//
// Memory: of each micro-batch between its forward and its backward what backward needs, and no outputs: their graph is
// enough. Where a schedule drains, a backward may keep as much as parameters and gradients take for products that wait.
// Threads: one thread per loop. Failure: as ModelPart and the link.
#pragma once
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "strategies/parts/runner.h"
#include "strategies/parts/stages/schedule.h"
#include "strategies/parts/stages/stage_inputs.h"
#include "strategies/parts/stages/ties.h"

namespace convoy {

// A stage that is executed here.
struct HeldStage {
  int stage = 0;
  int part = 0;  // its number among the rank's parts
  ModelPart* model = nullptr;
};

// A step of training, as Runner::train is given it.
struct StepWork {
  const std::vector<Batch>& micro;
  int64_t step = 0;
  double nominal = 1;
  const Runner::Hooks& hooks;
};

class StageLoop {
 public:
  // `ties` of the rank's parts; it must outlive the loop.
  StageLoop(std::vector<HeldStage> stages, Ties& ties) : stages_(std::move(stages)), ties_(ties) {}

  void train(const std::vector<Action>& actions, const StepWork& work, StageLink& link);
  // Sums over micro-batches; empty where the last stage is not.
  std::vector<Metric> evaluate(const std::vector<Action>& actions, const std::vector<Batch>& micro, StageLink& link);

 private:
  // What a micro-batch leaves between its forward and its backward.
  struct Live {
    std::unique_ptr<StageInputs> inputs;  // null: of the first stage
    Roots roots;
    Loss loss;  // of the last stage
  };
  const HeldStage* find(int stage) const;  // null: it is not executed here
  const HeldStage& held(int stage) const;
  void forward(const Action& action, const StepWork& work, StageLink& link);
  void backward(const Action& action, const StepWork& work, StageLink& link, bool draining);

  std::vector<HeldStage> stages_;
  Ties& ties_;
  std::map<std::pair<int, int>, Live> live_;  // by stage and micro-batch
};

}  // namespace convoy
