// `convoy top RUN [--once] [--every SECONDS]`
#pragma once
#include <string>

namespace convoy {

struct TopArguments {
  std::string folder;
  bool once = false;
  double every = 0;  // seconds; 0: 1 on a screen, 10 as plain text
};

// Shows until the run is over, or `q`: 0; 128 + n after signal n. Throws Error(command_line) where there is no run.
int top_command(const TopArguments& arguments);

}  // namespace convoy
