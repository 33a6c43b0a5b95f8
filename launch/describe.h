// What only LibTorch can tell, asked of `convoy-rank --describe` before anything starts.
#pragma once
#include <chrono>
#include <string>

#include "core/options.h"

namespace convoy {

// What begins a line on its standard error that is no message: a ThreadStack as JSON, null behind the last. Such lines answer
// describe_stacks_signal.
inline constexpr char describe_stack_line[] = "convoy-stack ";
int describe_stacks_signal();

// Gives the resolved configuration to `convoy-rank --describe`, which loads the plugins that it names and checks their
// options. Returns {"version", "config": completed} and, with `what`, "model": a Description (strategies/catalogue.h), for
// which the data set and the model are made: "blocks" counts, "activations" runs a micro-batch forward too. With "figures" it is
// "figures" instead: EvaluationFigures (strategies/parts/members/catalogue.h), or null. Its message and code become the Error's; Error(hang)
// where it took longer than `limit`: it is asked where it is, which the message tells, and killed. Never waits much longer than
// that, whoever else has its pipes open.
Json describe_run(const std::string& rank_program, const Json& resolved, const std::string& what = "",
                  std::chrono::milliseconds limit = std::chrono::seconds(60));

}  // namespace convoy
