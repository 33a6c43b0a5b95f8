// `convoy add RUN FILE`, `convoy add RUN --set strategy.grid.KEY=[…]`
#pragma once
#include <string>
#include <vector>

namespace convoy {

struct AddArguments {
  std::string folder;                  // of a farm
  std::string file;                    // one pipeline: name, config, priority, preempt, …; "": `overrides` say what
  std::vector<std::string> overrides;  // more values of keys of the farm's grid
  double wait = 30;                    // seconds for the farm's answer
};

// Checks FILE as `convoy run` would, hands it to the farm and tells what came of it: 0 it is in the queue. Throws
// ConfigError and Error(config) for mistakes and refusals, Error(command_line) where RUN is no farm, Error(output) where
// nobody runs it any more, Error(hang) when no answer came in time; then the farm will not take it any more either.
// Values of a grid start an ended farm again; the exit code is then that of its run.
int add_command(const AddArguments& arguments);

}  // namespace convoy
