// Command lines of the commands that use trained runs: evaluate, runs, compare, ….
#pragma once
#include <functional>
#include <vector>

namespace CLI {
class App;
}

namespace convoy {

struct ParsedCommand {
  CLI::App* line = nullptr;  // converts to true if the user typed this command
  std::function<int()> run;  // after parsing; returns the exit code
};

// Adds the commands. The values that they parse live as long as the results.
std::vector<ParsedCommand> add_use_commands(CLI::App& app);

}  // namespace convoy
