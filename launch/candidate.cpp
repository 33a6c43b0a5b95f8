#include "launch/candidate.h"

#include "launch/describe.h"
#include "launch/hosts.h"
#include "strategies/catalogue.h"

namespace convoy {
namespace {

// What every rank does where a strategy has no schedule of its own.
std::string plain_schedule(const Json& strategy) {
  const Json slices = strategy.value("micro_batches", Json(1));
  const Json every = strategy.contains("sync") ? strategy["sync"].value("every", Json(1)) : Json(1);
  std::string text = "all ranks do the same: ";
  text += slices == 1 ? "forward and backward of their share of a batch"
                      : str("forward and backward of each of ", slices.dump(), " slices of their share of a batch");
  return text + (every == 1 ? ", one update\n" : str(", one update every ", every.dump(), " steps\n"));
}

// As `convoy run --hosts a:2,b:2` would have them; empty where only names were given.
std::vector<int> wanted_hosts(PreparedRun& run) {
  const std::vector<int> hosts = rank_hosts(host_shares(run.arguments.hosts), run.arguments.ranks);
  if (hosts.empty()) return hosts;
  run.as.size_from = "--hosts";
  run.config.launch.ranks = static_cast<int64_t>(hosts.size());
  run.config.resolved["launch"]["ranks"] = hosts.size();
  return hosts;
}

void plan_and_count(Candidate& candidate, const Topology& topology) {
  const std::vector<int> hosts = wanted_hosts(candidate.run);
  candidate.placed = plan_and_place(candidate.run, topology, hosts);
  const StrategyEntry& strategy = strategy_entry(candidate.strategy);
  const Description description = description_from_json(candidate.run.described.at("model"));
  const Job& job = candidate.placed.job;
  candidate.figures = figures_of(strategy, job, description);
  if (strategy.schedule) candidate.schedule = strategy.schedule(job, description);
  if (candidate.schedule.empty()) candidate.schedule = plain_schedule(job.config.at("strategy"));
  if (strategy.tables) candidate.schedule += strategy.tables(job, description);
}

PreparedRun prepared(const RunArguments& arguments) { return prepare(arguments, {}, {}); }

// Whether a strategy refused the number of ranks, and not what it is to do.
bool is_about_ranks(const ConfigError& error) { return error.key() == "launch.ranks" || error.key() == "--ranks"; }

// Ranks that train apart are those of strategies whose ranks are replicas; by any other the model is trained as if gradients
// of every update were summed.
void without_agreement(Json& section, const StrategyEntry& strategy) {
  const auto sync = section.find("sync");
  if (sync == section.end() || sync->value("what", "gradients") == "gradients") return;
  for (const Option& option : strategy.options)
    if (option.name == "sync")
      for (const Option& key : option.options)
        if (key.name == "groups") return;
  section.erase("sync");
}

// The section was not written by the user, so where it stands says nothing.
std::string without_place(const ConfigError& error) {
  const std::string message = error.what();
  const size_t key = message.rfind(error.key() + ": ");
  return key == std::string::npos ? message : message.substr(key);
}

}  // namespace

Json shared_keys(const Json& values, const std::vector<Option>& options) {
  Json shared = Json::object();
  for (const Option& option : options) {
    const auto found = values.find(option.name);
    if (found == values.end() || found->is_null()) continue;
    const bool nested = option.type == OptionType::section && found->is_object();
    const Json value = nested ? shared_keys(*found, option.options) : *found;
    // A default that is given counts as wanted, and may have no effect there.
    if (nested ? !value.empty() : value != option.fallback) shared[option.name] = value;
  }
  return shared;
}

double Candidate::update_rows() const {
  const BatchSize& batch = run.config.train.batch;
  return static_cast<double>(batch.rows) * (batch.per_rank ? placed.job.mesh.degree("data") : 1);
}

PreparedRun described_run(const RunArguments& arguments) {
  PreparedRun run = prepared(arguments);
  run.described = describe_run(run.rank_program, run.config.resolved, "activations");
  if (const std::string reason = run.described.value("unmeasured", ""); !reason.empty())
    run.warnings.push_back(
        "activations are not measured: the model does not run by shapes alone, and is too large to run here: " +
        reason);
  return run;
}

Candidate configured_candidate(const PreparedRun& run, const Topology& topology) {
  Candidate candidate;
  candidate.run = run;
  candidate.strategy = candidate.title = run.config.strategy.name;
  plan_and_count(candidate, topology);
  return candidate;
}

std::vector<Candidate> table_variants(const Candidate& candidate, const Topology& topology) {
  using Tables = Candidate::Tables;
  if (!candidate.refused.empty() || !candidate.run.config.model.options.has("rows")) return {};
  const auto kept = [&](Tables tables, const char* rows, const char* title) -> std::optional<Candidate> {
    Candidate other = candidate_under(candidate.run, candidate.strategy, topology, {str("model.rows=", rows)});
    other.tables = tables;
    other.title = str(candidate.title, ", ", title);
    return other.refused.empty() ? std::optional<Candidate>(std::move(other)) : std::nullopt;
  };
  std::optional<Candidate> dense = kept(Tables::dense, "false", "dense tables");
  // Gradients of rows are counted otherwise.
  if (!dense || dense->figures.front().gradients.value == candidate.figures.front().gradients.value) return {};
  std::vector<Candidate> all;
  const bool sharded = candidate.run.config.model.options.json()["rows"] == "sharded";
  std::optional<Candidate> other =
      sharded ? kept(Tables::whole, "true", "whole rows") : kept(Tables::sharded, "sharded", "sharded rows");
  if (other && other->figures.front().sent.value != candidate.figures.front().sent.value)
    all.push_back(*std::move(other));
  all.push_back(*std::move(dense));
  return all;
}

std::vector<RankCost> costs_of(const Candidate& candidate, const Calibration* calibration) {
  Description description = description_from_json(candidate.run.described.at("model"));
  if (calibration != nullptr)
    for (BlockDescription& block : description.blocks)
      for (const auto& [name, share] : calibration->blocks)
        if (name == block.name) block.time = share;
  return strategy_entry(candidate.strategy).cost(candidate.placed.job, description);
}

Candidate candidate_under(const PreparedRun& run, const std::string& strategy, const Topology& topology,
                          const std::vector<std::string>& overrides) {
  Candidate candidate;
  candidate.strategy = candidate.title = strategy;
  RunArguments arguments = run.arguments;
  if (strategy != run.config.strategy.name) {
    Json section = {{"name", strategy}};
    section.update(shared_keys(run.config.strategy.options.json(), strategy_entry(strategy).options));
    without_agreement(section, strategy_entry(strategy));
    arguments.overrides.push_back(str("strategy=", section.dump()));
  }
  arguments.overrides.insert(arguments.overrides.end(), overrides.begin(), overrides.end());
  const auto attempt = [&] {
    candidate.run = prepared(arguments);
    candidate.run.described = run.described;
    plan_and_count(candidate, topology);
  };
  try {
    try {
      attempt();
    } catch (const ConfigError& error) {
      if (!is_about_ranks(error)) throw;
      arguments.ranks = 0;
      for (std::string& host : arguments.hosts) host = host_shares({host}).front().name;
      arguments.overrides.emplace_back("launch.ranks=auto");
      attempt();
      const size_t ranks = candidate.placed.job.ranks.size();
      candidate.note = str("has ", ranks, ranks == 1 ? " rank" : " ranks", " of its own");
    }
  } catch (const ConfigError& error) {
    candidate.refused = without_place(error);
  }
  return candidate;
}

}  // namespace convoy
