#include "launch/explain/candidate.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/config/reader.h"
#include "launch/machine/host_lists.h"
#include "launch/prepare/describe.h"
#include "strategies/plans/catalogue.h"

namespace convoy {
namespace {

constexpr size_t most_hosts = 8;  // lines of hosts that are too small

// Hosts of the ranks for `--hosts a:2,b:2`; empty if --hosts has only names.
std::vector<int> requested_hosts(PreparedRun& run) {
  const std::vector<int> hosts = rank_hosts(host_shares(run.arguments.hosts), run.arguments.ranks);
  if (hosts.empty()) return hosts;
  run.as.size_from = "--hosts";
  run.config = run.config.changed({{"launch", {{"ranks", hosts.size()}}}});
  return hosts;
}

void plan_and_count(Candidate& candidate, const Topology& topology) {
  const std::vector<int> hosts = requested_hosts(candidate.run);
  candidate.placed = plan_and_place(candidate.run, topology, hosts);
  const StrategyEntry& strategy = strategy_entry(candidate.strategy);
  const ModelDescription description = candidate.run.described.at("model").get<ModelDescription>();
  const JobPlan& job = candidate.placed.job;
  candidate.costs = rank_costs_of(strategy, job, description);
  candidate.schedule = strategy_report(strategy, job, description);
}

// True if the strategy refuses only the number of ranks.
bool is_about_ranks(const ConfigError& error) { return error.key() == "launch.ranks" || error.key() == "--ranks"; }

// Removes a `sync` of parameters if the strategy has no replicas: only replicas train locally.
void remove_local_sync(Json& section, const StrategyEntry& strategy) {
  if (strategy.replicas || sync_policy(Options(section)).groups.back().what == SyncKind::gradients) return;
  section.erase("sync");
}

// The error without its source location: the user did not write this section.
std::string without_source_location(const ConfigError& error) {
  return ConfigError({}, error.key(), error.reason()).what();
}

// Sets fields that are 0 in every block, because they were not measured, to a large value. A measured 0 stays.
ModelDescription with_unknown_fields(ModelDescription description) {
  if (description.measured) return description;
  constexpr int64_t large = 1 << 20;
  const auto fill = [&](int64_t BlockDescription::*field, auto value) {
    const bool unknown = std::all_of(description.blocks.begin(), description.blocks.end(),
                                     [field](const BlockDescription& block) { return block.*field == 0; });
    if (!unknown) return;
    for (BlockDescription& block : description.blocks) block.*field = value(block);
  };
  const auto large_value = [](const BlockDescription&) { return large; };
  for (auto field :
       {&BlockDescription::row_output_bytes, &BlockDescription::row_saved_bytes, &BlockDescription::row_cut_input_bytes,
        &BlockDescription::row_cut_output_bytes, &BlockDescription::cut_exchanges})
    fill(field, large_value);
  fill(&BlockDescription::row_cut_saved_bytes, [](const BlockDescription& block) { return block.row_saved_bytes / 2; });
  fill(&BlockDescription::cut_parameters, [](const BlockDescription& block) { return block.parameters; });
  fill(&BlockDescription::cut_product_parameters,
       [](const BlockDescription& block) { return block.product_parameters; });
  return description;
}

CostValue cost_value(double known, double probed) {
  const bool at_most = probed < known;
  return {known == probed ? CostValue::Known::exactly
          : at_most       ? CostValue::Known::at_most
                          : CostValue::Known::not_measured,
          known};
}

// Names of the mesh's axes with several ranks.
std::vector<std::string> shared_axes(const Mesh& mesh) {
  std::vector<std::string> names;
  for (const Axis& axis : mesh.axes())
    if (axis.degree > 1) names.push_back(axis.name);
  return names;
}

AxisCost along(const RankCost& cost, const std::string& axis, bool only) {
  if (only && cost.axes.empty()) return {axis, cost.bytes_sent_per_step, cost.messages_per_step};
  AxisCost all{axis};
  for (const AxisCost& one : cost.axes) {
    if (one.axis != axis) continue;
    all.bytes += one.bytes;
    all.messages += one.messages;
  }
  return all;
}

RankCosts compared(const RankCost& known, const RankCost& probed, const Mesh& mesh) {
  RankCosts costs;
  costs.sent = cost_value(known.bytes_sent_per_step, probed.bytes_sent_per_step);
  costs.messages = cost_value(known.messages_per_step, probed.messages_per_step);
  costs.parameters = cost_value(known.parameter_bytes, probed.parameter_bytes);
  costs.gradients = cost_value(known.gradient_bytes, probed.gradient_bytes);
  costs.moments = cost_value(known.moment_bytes, probed.moment_bytes);
  costs.activations = cost_value(known.activation_bytes, probed.activation_bytes);
  costs.buffers = cost_value(known.buffer_bytes, probed.buffer_bytes);
  costs.owned = known.owned_bytes;
  const std::vector<std::string> axes = shared_axes(mesh);
  for (const std::string& axis : axes) {
    const AxisCost one = along(known, axis, axes.size() == 1), other = along(probed, axis, axes.size() == 1);
    costs.sent_on[axis] = cost_value(one.bytes, other.bytes);
    costs.messages_on[axis] = cost_value(one.messages, other.messages);
  }
  return costs;
}

CostValue larger(const CostValue& a, const CostValue& b) {
  return {std::max(a.known, b.known), std::max(a.value, b.value)};
}

std::string text_of(const CostValue& cost, const std::string& value) {
  if (cost.known == CostValue::Known::not_measured) return "not measured";
  return (cost.exact() ? "" : "≤ ") + value;
}

std::string zero_or_bytes(double bytes) { return bytes == 0 ? "0" : human_bytes(bytes); }

}  // namespace

Json shared_keys(const Options& values, const std::vector<Option>& options, bool written_only) {
  Json shared = Json::object();
  for (const Option& option : options) {
    if (!values.has(option.name) || (written_only && values.locations().count(option.name) == 0)) continue;
    const Json& found = values.at(option.name);
    const bool nested = option.type == OptionType::section && found.is_object();
    const Json value = nested ? shared_keys(values.section(option.name), option.options, written_only) : found;
    // A given default counts as written by the user, and may be refused as a key without effect.
    if (nested ? !value.empty() : value != option.fallback.json()) shared[option.name] = value;
  }
  return shared;
}

double Candidate::update_rows() const {
  const BatchSize& batch = run.config.train.batch;
  return static_cast<double>(batch.rows) * (batch.per_rank ? placed.job.mesh.degree("data") : 1);
}

PreparedRun described_run(const RunArguments& arguments) {
  PreparedRun run = prepare(arguments, {}, {});
  refuse_program(run.config, "explain");
  run.described = describe_run(run.rank_program, run.config, "activations");
  if (const std::string reason = run.described.value("unmeasured", ""); !reason.empty())
    run.warnings.push_back(
        "activations are not measured: the model needs values, not only shapes, and is too large to run here: " +
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

std::vector<Candidate> embedding_variants(const Candidate& candidate, const Topology& topology) {
  using Embeddings = Candidate::Embeddings;
  if (!candidate.refused.empty() || !candidate.run.config.model.options.has("rows")) return {};
  const auto variant = [&](Embeddings embeddings, const char* rows, const char* title) -> std::optional<Candidate> {
    Candidate other = candidate_under(candidate.run, candidate.strategy, topology, {str("model.rows=", rows)});
    other.embeddings = embeddings;
    other.title = str(candidate.title, ", ", title);
    return other.refused.empty() ? std::optional<Candidate>(std::move(other)) : std::nullopt;
  };
  std::optional<Candidate> dense = variant(Embeddings::dense, "false", "dense tables");
  // Equal gradients mean that no embedding is sparse.
  if (!dense || dense->costs.front().gradients.value == candidate.costs.front().gradients.value) return {};
  std::vector<Candidate> all;
  const bool sharded = candidate.run.config.model.options.json()["rows"] == "sharded";
  std::optional<Candidate> other = sharded ? variant(Embeddings::whole, "true", "whole rows")
                                           : variant(Embeddings::sharded, "sharded", "sharded rows");
  if (other && other->costs.front().sent.value != candidate.costs.front().sent.value) all.push_back(*std::move(other));
  all.push_back(*std::move(dense));
  return all;
}

std::vector<RankCost> costs_of(const Candidate& candidate, const Calibration* calibration) {
  ModelDescription description = candidate.run.described.at("model").get<ModelDescription>();
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
    const StrategyEntry& entry = strategy_entry(strategy);
    section.update(shared_keys(run.config.strategy.options, entry.options, true));
    remove_local_sync(section, entry);
    arguments.overrides.push_back(str("strategy=", section.dump()));
  }
  arguments.overrides.insert(arguments.overrides.end(), overrides.begin(), overrides.end());
  const size_t applied = run.arguments.overrides.size();  // run.tree has these
  const auto attempt = [&] {
    Node tree = run.tree;
    for (size_t i = applied; i < arguments.overrides.size(); ++i) apply_override(tree, arguments.overrides[i]);
    candidate.run = prepare(std::move(tree), arguments, {}, {});
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
      candidate.note = "always has " + counted(ranks, "rank");
    }
  } catch (const ConfigError& error) {
    candidate.refused = without_source_location(error);
  }
  return candidate;
}

Memory memory_of(const RankCosts& rank) {
  Memory memory;
  for (const CostValue* term : {&rank.parameters, &rank.gradients, &rank.moments, &rank.activations, &rank.buffers}) {
    if (term->exact()) memory.bytes += term->value;
    memory.complete = memory.complete && term->exact();
  }
  return memory;
}

Memory largest_memory(const std::vector<RankCosts>& ranks) {
  Memory most;
  for (const RankCosts& rank : ranks) {
    const Memory memory = memory_of(rank);
    most = {std::max(most.bytes, memory.bytes), most.complete && memory.complete};
  }
  return most;
}

std::string misfit_text(const Candidate& candidate, const Topology& topology) {
  const JobPlan& job = candidate.placed.job;
  std::string text;
  std::vector<double> of_host(topology.hosts.size(), 0);
  for (size_t rank = 0; rank < job.ranks.size(); ++rank) {
    const RankPlan& plan = job.ranks[rank];
    const double bytes = memory_of(candidate.costs[rank]).bytes;
    const Host& host = topology.hosts[static_cast<size_t>(plan.host)];
    int64_t gpus = 0;
    for (const DevicePlan& device : plan.devices)
      if (const Gpu* gpu = gpu_of(device, host)) gpus += gpu->memory;
    const bool on_gpu = plan.devices.front().kind == DevicePlan::Kind::gpu;
    if (!on_gpu) of_host[static_cast<size_t>(plan.host)] += bytes;
    if (on_gpu && gpus > 0 && bytes > static_cast<double>(gpus) && text.empty())
      text =
          str("does not fit: rank ", rank, " needs ", human_bytes(bytes), " and its GPU has ", human_bytes(gpus), "\n");
  }
  size_t full = 0;
  for (size_t host = 0; host < of_host.size(); ++host)
    if (topology.hosts[host].memory > 0 && of_host[host] > static_cast<double>(topology.hosts[host].memory) &&
        ++full <= most_hosts)
      text += str("does not fit: the ranks of ", topology.hosts[host].name, " need ", human_bytes(of_host[host]),
                  " and it has ", human_bytes(topology.hosts[host].memory), "\n");
  if (full > most_hosts) text += str("does not fit: ", full - most_hosts, " more hosts neither\n");
  return text;
}

std::vector<RankCosts> rank_costs_of(const StrategyEntry& strategy, const JobPlan& job,
                                     const ModelDescription& description) {
  const std::vector<RankCost> known = strategy.cost(job, description);
  const std::vector<RankCost> probed = strategy.cost(job, with_unknown_fields(description));
  CONVOY_CHECK(known.size() == job.ranks.size() && probed.size() == known.size(), "strategy ", strategy.name,
               " returned ", known.size(), " costs of ", job.ranks.size(), " ranks");
  std::vector<RankCosts> costs;
  for (size_t rank = 0; rank < known.size(); ++rank) costs.push_back(compared(known[rank], probed[rank], job.mesh));
  return costs;
}

CostValue largest(const std::vector<RankCosts>& ranks, CostValue RankCosts::*cost) {
  CostValue most;
  for (const RankCosts& rank : ranks) most = larger(most, rank.*cost);
  return most;
}

std::string bytes_text(const CostValue& cost) { return text_of(cost, zero_or_bytes(cost.value)); }

std::string count_text(const CostValue& cost) { return text_of(cost, str(std::round(cost.value * 10) / 10)); }

std::string memory_text(const Memory& memory) { return (memory.complete ? "" : "≥ ") + zero_or_bytes(memory.bytes); }

}  // namespace convoy
