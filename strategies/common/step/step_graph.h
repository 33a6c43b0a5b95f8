// StepGraph: a training step that the device runs as one CUDA graph instead of hundreds of launches (core/context.h).
//
// After a few normal steps of the usual shape, one step is recorded. With `auto` the recording is tested first. It must
// give the results of the step itself, at once and some time later, and be faster. Otherwise, and if recording fails,
// steps run normally and the log states the reason. Batches of a different shape (the last one of an epoch) always run
// normally.
//
// If ranks make the step together, its collectives are recorded too. All ranks record, test and launch at the same
// steps, or none does. Shares depend only on the rows of a batch, so all ranks see the same usual shape; the ranks
// exchange all other conditions.
// `before` runs before every step and sets the values that the host chooses (learning rates). Random draws with keys of
// the host (dropout) cannot be recorded.
// Threads: the rank's thread.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "core/context.h"
#include "core/strategy.h"
#include "strategies/common/layers/parameter.h"
#include "strategies/plans/options/step_options.h"

namespace convoy {

class StepGraph {
 public:
  struct Hooks {
    std::function<void()> before;
    std::function<StepResult(const StepInput&)> step;
    std::function<void(const StateVisitor&)> state;  // visits the state that a step changes
    std::function<std::string()> obstacle;           // why it cannot be recorded; "" if it can
    // Exchanges the ranks' reasons against recording ("": none) and returns one of them. Collective, at the same steps
    // on all ranks. Null: only this rank makes the step.
    std::function<std::string(const std::string& mine)> agreed = nullptr;
  };
  // Steps run normally if the device cannot record graphs.
  StepGraph(const Context& context, GraphMode mode, Hooks hooks);
  ~StepGraph();

  StepResult run(const StepInput& input);
  // Forgets the recording, after tensors moved or changed outside a step.
  void forget();

 private:
  struct Key;
  struct Recording;
  struct Trial;

  StepResult launched(const StepInput& input);
  bool record(const StepInput& input);
  bool holds(const StepInput& input, bool timed);
  std::string recorded(const StepInput& input);
  std::string difference(const StepInput& input);
  std::string slower(const StepInput& input, std::string& times);
  bool any_obstacle(const std::string& mine);
  void log_status(const std::string& what);
  void turn_off(const std::string& why);

  const Context context_;
  const GraphMode mode_;
  const Hooks hooks_;
  bool off_ = false;
  int64_t seen_ = 0;    // steps of the usual shape
  int64_t others_ = 0;  // steps of other shapes since the last usual one
  std::unique_ptr<Key> usual_;
  std::unique_ptr<Recording> recording_;
};

// Logs why a step is never recorded, if the device can record graphs and the mode allows it.
void log_no_graph(const Context& context, GraphMode mode, const std::string& why);
std::string not_every_step(int64_t every);  // the reason for sync.every > 1

}  // namespace convoy
