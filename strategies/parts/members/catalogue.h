// What the launcher asks of a configuration whose strategy trains members, before it starts any: in which ways that may be done,
// and whether what is watched is told. Nothing of it concerns other strategies. Without LibTorch.
//
// Ways place and divide one training with the same results up to rounding; where the configuration leaves it to convoy which
// it is to be, `plan` decides.
// Figures of evaluations that a strategy goes by (`early_stop.metric`): which there are, only the model and the data can tell.
// `convoy-rank --describe figures` does, so that one that there is not is refused before anything is trained.
#pragma once
#include <string>
#include <vector>

#include "core/config/run_config.h"
#include "core/plan.h"

namespace convoy {

inline constexpr char ways_key[] = "strategy.how";

struct Way {
  std::string name;
  Json section;  // `strategy` of a resolved configuration that is planned this way
};

// Empty: nothing is left open. Whether each is possible is for `plan` to say.
std::vector<Way> ways_of(const RunConfig& config);

// Which of them a planned job is.
std::string way_of(const Job& job);

struct EvaluationFigures {
  std::vector<std::string> evaluated;  // by name, of the evaluation split; empty: it has no rows
  std::vector<std::string> held_out;   // of rows to train on; empty: those cannot be evaluated on
};
Json to_json(const EvaluationFigures& figures);
EvaluationFigures evaluation_figures_from_json(const Json& json);

// Whether the configuration has a figure watched. Throws ConfigError where its section contradicts itself.
bool watches_figures(const RunConfig& config);
// Throws ConfigError at the key, listing what there is, for a figure that there is not.
void check_watched_figures(const RunConfig& config, const EvaluationFigures& figures);

}  // namespace convoy
