// What only LibTorch can tell, asked of `convoy-rank --describe` before anything starts.
#pragma once
#include <string>

#include "core/options.h"

namespace convoy {

// Gives the resolved configuration to `convoy-rank --describe`, which loads the plugins that it names and checks their
// options. Returns {"version", "config": completed} and, with `what`, "model": a Description (strategies/catalogue.h), for
// which the data set and the model are made: "blocks" counts, "activations" runs a micro-batch forward too. With "figures" it is
// "figures" instead: EvaluationFigures (strategies/parts/members/catalogue.h), or null. Its message and code become the Error's; Error(hang)
// where it took longer than a minute.
Json describe_run(const std::string& rank_program, const Json& resolved, const std::string& what = "");

}  // namespace convoy
