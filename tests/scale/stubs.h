// The hosts of one process of tests/scale: agents and rank stubs, with real clients of the control channel.
#pragma once
#include <string>

namespace convoy::scale {

// Ranks [first, end) of `size`, `per_host` of them on each host. `slow`: the rank that has not reached the collective
// in which all others wait.
struct StubPlan {
  std::string address;  // address of the control channel, as one line
  int first = 0, end = 0, size = 0, per_host = 1, slow = 0;
};

// Runs until the end of standard input. Lines of input: "steps": the ranks make steps until they stop together;
// "die R": rank R dies. Lines of output: "stopped" and "aborted", when all ranks and agents here have.
int run_stubs(const StubPlan& plan);

}  // namespace convoy::scale
