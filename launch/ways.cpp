#include "launch/ways.h"

#include "core/files.h"
#include "launch/commands/run.h"
#include "strategies/parts/members/catalogue.h"

namespace convoy {
namespace {

// Reads ways.json of the folder; null where it is missing or unreadable.
Json kept_choice(const std::string& folder) {
  const Json choice = Json::parse(read_file_if_any(folder + "/ways.json"), nullptr, false);
  return choice.is_object() && choice.value("taken", Json()).is_string() ? choice : Json();
}

std::string reason(const std::string& way) {
  if (way == "stacked") return "there is one rank";
  if (way == "threads") return "one rank for each core set or GPU, as threads of one process";
  return "ranks of several hosts, of a launcher or of another backend than local are processes";
}

}  // namespace

void keep_way(const PreparedRun& run, const std::string& folder, Placed& placed) {
  const Json choice = kept_choice(folder);
  if (choice.is_null() || choice["taken"] == way_of(placed.job)) return;
  for (const Way& way : ways_of(run.config)) {
    if (way.name != choice["taken"]) continue;
    PreparedRun planned = run;
    planned.config.resolved["strategy"] = way.section;
    planned.config = RunConfig::from_resolved(planned.config.resolved);
    try {
      Placed kept = placed_here(planned);
      kept.job.config["strategy"] = run.config.resolved["strategy"];  // each rank chooses what is left to it
      kept.warnings.push_back(str(ways_key, ": auto takes ", way.name, ": this run has begun so"));
      placed = std::move(kept);
    } catch (const ConfigError&) {
      // This host has no room for it any more: as planned.
    }
  }
}

Json choice_of(const PreparedRun& run, const std::string& folder, const Job& job) {
  if (ways_of(run.config).empty()) return nullptr;
  const std::string taken = way_of(job);
  const Json kept = kept_choice(folder);
  if (kept.is_object() && kept["taken"] == taken) return kept;
  return {{"taken", taken}, {"because", reason(taken)}, {"tried", Json::array()}};
}

}  // namespace convoy
