// StepGraph: a training step of which the device is given one launch instead of hundreds (core/device_graph.h).
//
// Steps run as they are until a few of the usual shape have passed; then one is recorded. With `auto` the recording is tried
// before it is trusted: it must leave what the step itself leaves, at once and again some time later, and be quicker;
// else, and wherever something cannot be recorded, steps run as before, and the log says why. Batches of another shape (the
// last one of an epoch) always run as they are.
// What the host decides anew at each step (rates) is for `before`, which runs ahead of every step; what a step draws with keys
// of the host's (dropout) cannot be recorded.
// Threads: the rank's own.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/context.h"
#include "core/strategy.h"
#include "strategies/parts/parameter.h"

namespace convoy {

class StepGraph {
 public:
  struct Parts {
    std::function<void()> before;
    std::function<StepResult(const StepInput&)> step;
    std::function<void(const StateVisitor&)> state;  // all that a step changes
    std::function<std::string()> obstacle;           // why it cannot be recorded; "" where nothing is known against it
  };
  // `mode`: of graph_option(). Steps run as they are where the device records none.
  StepGraph(const Context& context, const std::string& mode, Parts parts);
  ~StepGraph();

  StepResult run(const StepInput& input);
  // Tensors have changed hands, or something else than a step has: to be recorded anew.
  void forget();

 private:
  struct Key;
  struct Recording;
  struct Trial;

  StepResult launched(const StepInput& input);
  bool record(const StepInput& input);
  bool holds(const StepInput& input, bool timed);
  void say(const std::string& what);
  void give_up(const std::string& why);

  const Context context_;
  const std::string mode_;
  const Parts parts_;
  bool off_ = false;
  int64_t seen_ = 0;    // steps of the usual shape
  int64_t others_ = 0;  // of other shapes since the last one of these
  std::unique_ptr<Key> usual_;
  std::unique_ptr<Recording> recording_;
};

}  // namespace convoy
