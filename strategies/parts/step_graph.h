// StepGraph: a training step of which the device is given one launch instead of hundreds (core/device_graph.h).
//
// Steps run as they are until a few of the usual shape have passed; then one is recorded. With `auto` the recording is tried
// before it is trusted: it must leave what the step itself leaves, at once and again some time later, and be quicker;
// else, and wherever something cannot be recorded, steps run as before, and the log says why. Batches of another shape (the
// last one of an epoch) always run as they are.
// Where ranks make the step together its collectives are recorded with it, and all record it, try it and launch it at the same
// steps, or none does: shares of a batch are a function of its rows, so that all see the same usual shape, and all else is
// agreed on.
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
    // Of a step that ranks make together: what any of them has against it ("": nothing), told to all of them. All call it at
    // the same steps, since the decisions in between are the same on all. Null: the step is this rank's alone.
    std::function<std::string(const std::string& mine)> agreed = nullptr;
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
  std::string recorded(const StepInput& input);
  std::string difference(const StepInput& input);
  std::string slower(const StepInput& input, std::string& times);
  bool given_up(const std::string& mine);
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

// Of a step that is never recorded: says so, and why, where the device records any and the mode lets it.
void tell_no_graph(const Context& context, const std::string& mode, const std::string& why);
std::string not_every_step(int64_t every);  // why, under sync.every

}  // namespace convoy
