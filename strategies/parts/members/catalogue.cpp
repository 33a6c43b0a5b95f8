#include "strategies/parts/members/catalogue.h"

#include <algorithm>

#include "core/text.h"
#include "strategies/parts/members/members_entry.h"

namespace convoy {

std::vector<Way> ways_of(const RunConfig& config) {
  std::vector<Way> ways;
  if (config.strategy.name != "ensemble" || config.strategy.options.text("how") != "auto") return ways;
  for (const char* how : {"stacked", "threads", "processes"}) {
    Way way{how, config.resolved.at("strategy")};
    way.section["how"] = how;
    ways.push_back(std::move(way));
  }
  return ways;
}

std::string way_of(const Job& job) {
  if (job.ranks.size() == 1) return "stacked";
  return job.processes.size() == 1 ? "threads" : "processes";
}

Json to_json(const EvaluationFigures& figures) {
  return {{"evaluated", figures.evaluated}, {"held_out", figures.held_out}};
}

EvaluationFigures evaluation_figures_from_json(const Json& json) {
  return {json.at("evaluated").get<std::vector<std::string>>(), json.at("held_out").get<std::vector<std::string>>()};
}

bool watches_figures(const RunConfig& config) {
  if (config.strategy.name != "ensemble") return false;
  const std::vector<MemberSettings> members = members_of(config);
  return std::any_of(members.begin(), members.end(), [](const MemberSettings& one) { return one.patience > 0; });
}

void check_watched_figures(const RunConfig& config, const EvaluationFigures& figures) {
  const Options stop = config.strategy.options.section("early_stop");
  std::vector<std::string> names = figures.evaluated;
  if (draws_of(config.strategy.options).front().rows == MemberDraw::Rows::fold)
    for (const std::string& name : figures.held_out) names.push_back("out_of_fold_" + name);
  if (names.empty())
    stop.fail("metric",
              "has nothing to go by: the data set has no rows to evaluate on; leave early_stop out, or give "
              "the data an evaluation split");
  const std::string& wanted = stop.text("metric");
  if (std::find(names.begin(), names.end(), wanted) != names.end()) return;
  const std::string near = nearest(wanted, names);
  stop.fail("metric", str("is ", wanted, ", and no evaluation of a member tells that; there are ", join(names, ", "),
                          near.empty() ? "" : "; did you mean " + near + "?"));
}

}  // namespace convoy
