// The catalogue of strategies, and checks that several strategies share.
#include "strategies/plans/catalogue.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/data/catalogue/declared_schema.h"
#include "strategies/plans/costs/replica_cost.h"
#include "strategies/plans/costs/sparse_cost.h"
#include "strategies/plans/mesh_plan.h"
#include "strategies/plans/options/data_axis.h"

namespace convoy {

#define CONVOY_DECLARE(name) StrategyEntry name##_entry();
CONVOY_STRATEGIES(CONVOY_DECLARE)
#undef CONVOY_DECLARE

namespace {

// True if batch norm uses the rows of several ranks. One rank along `data` has the whole batch already.
bool synchronises_norms(const JobPlan& job) {
  return step_options(job.config.strategy.options).synchronises_norms && job.mesh.degree("data") > 1;
}

// Refuses foreign modules under `batch_norm: sync`: LibTorch's modules use only the rows of one rank.
void check_own_norms(const JobPlan& job, const ModelDescription& description) {
  if (!synchronises_norms(job)) return;
  for (const BlockDescription& block : description.blocks) {
    if (!block.foreign_norms.empty())
      throw ConfigError(SourceLocation{}, "strategy.batch_norm", "is sync, and block ", block.name, " makes ",
                        join(block.foreign_norms, ", "),
                        " itself, with statistics of each rank's share; take the layer from "
                        "Layers::batch_norm, or set batch_norm: local");
    if (!block.tracking_norms.empty())
      throw ConfigError(SourceLocation{}, "strategy.batch_norm", "is sync, and block ", block.name, " makes ",
                        join(block.tracking_norms, ", "),
                        " itself, which trains by the statistics of each row, and evaluates by running statistics "
                        "that only each rank's share updates; set track_running_stats to false, or set "
                        "batch_norm: local");
  }
}

// Lines of a strategy whose ranks all do the same.
std::string equal_ranks_text(const StepOptions& step) {
  const int64_t slices = step.micro_batches, every = step.sync.every;
  std::string text = "all ranks do the same: ";
  text += slices == 1 ? "forward and backward of their share of a batch"
                      : str("forward and backward of each of ", slices, " micro-batches of their share of a batch");
  return text + (every == 1 ? ", one update\n" : str(", one update every ", every, " steps\n"));
}

Plan plan_program(const RunConfig& config, const Topology& topology, const PlanRequest& request) {
  Plan made = plan_data_axis(config, topology, request);
  if (made.jobs.front().processes.size() < made.jobs.front().ranks.size())
    throw ConfigError(SourceLocation{}, "backend",
                      "is local, which reaches the threads of one process only, but each rank of a program is a "
                      "process; use gloo or mpi");
  return made;
}

}  // namespace

const char* name_of(Exchange kind) {
  constexpr const char* names[] = {"all_reduce", "all_gather", "reduce_scatter", "send"};
  return names[size_t(kind)];
}

Exchange exchange_named(const std::string& name) {
  for (const Exchange kind : {Exchange::all_reduce, Exchange::gather, Exchange::scatter, Exchange::send})
    if (name == name_of(kind)) return kind;
  throw Error(Failure::config, "'", name, "' is no kind of exchange");
}

bool wants_blocks(const StrategyEntry& entry, const JobPlan& job) {
  if (!job.config.program.empty()) return false;  // the program has the model
  const StepOptions step = step_options(job.config.strategy.options);
  return entry.check || (entry.sparse_embeddings && sparse_check_wants_blocks(job)) || !step.recompute.names.empty() ||
         synchronises_norms(job) || !step.sync.patterns.empty();
}

std::vector<std::string> check_blocks(const StrategyEntry& entry, const JobPlan& job,
                                      const ModelDescription& description) {
  std::vector<std::string> names;
  for (const BlockDescription& block : description.blocks) names.push_back(block.name);
  check_recomputed_names(step_options(job.config.strategy.options).recompute.names, names);
  check_sync_names(job, description);
  check_own_norms(job, description);
  if (entry.sparse_embeddings) check_sparse_blocks(job, description);
  return entry.check ? entry.check(job, description) : std::vector<std::string>();
}

std::string strategy_report(const StrategyEntry& entry, const JobPlan& job, const ModelDescription& description) {
  std::string text = entry.report ? entry.report(job, description) : "";
  if (text.empty()) text = equal_ranks_text(step_options(job.config.strategy.options));
  return entry.sparse_embeddings ? text + sparse_text(job, description) : text;
}

const std::vector<StrategyEntry>& strategy_catalogue() {
#define CONVOY_ENTRY(name) name##_entry(),
  static const std::vector<StrategyEntry> entries = [] {
    const std::vector<StrategyEntry> all{CONVOY_STRATEGIES(CONVOY_ENTRY)};
    for (const StrategyEntry& entry : all) {
      const MemberFunctions& members = entry.members;
      CONVOY_CHECK(!members.modes == !members.mode && !members.modes == members.mode_key.empty() &&
                       !members.watches_metric == !members.check_metric,
                   "strategy ", entry.name, " lacks one of the MemberFunctions that are set together");
    }
    return all;
  }();
#undef CONVOY_ENTRY
  return entries;
}

std::vector<Entry> strategy_entries() {
  const auto& entries = strategy_catalogue();
  return {entries.begin(), entries.end()};
}

const StrategyEntry& strategy_entry(const std::string& name) {
  for (const StrategyEntry& entry : strategy_catalogue()) {
    if (entry.name == name) return entry;
  }
  std::vector<std::string> names;
  for (const StrategyEntry& entry : strategy_catalogue()) names.push_back(entry.name);
  const std::string near = nearest(name, names);
  throw Error(Failure::config, "strategy.name: there is no strategy '", name, "'; there are ", join(names, ", "),
              near.empty() ? "" : "; did you mean " + near + "?");
}

const StrategyEntry& strategy_of(const RunConfig& config) {
  static const StrategyEntry of_programs = [] {
    StrategyEntry entry;
    entry.plan = plan_program;
    // Replicas checks its options: api/trained_config.cpp.
    entry.state_of_lost_rank = [](const JobPlan&) { return std::string(); };
    return entry;
  }();
  return config.program.empty() ? strategy_entry(config.strategy.name) : of_programs;
}

const StrategyEntry& reference_strategy() { return strategy_entry("single"); }
const StrategyEntry& equal_ranks_strategy() { return strategy_entry("ddp"); }
const StrategyEntry& members_strategy() { return strategy_entry("ensemble"); }
const StrategyEntry& replicas_strategy() { return strategy_entry("ddp"); }
const StrategyEntry& shards_strategy() { return strategy_entry("fsdp"); }

double compression_error(const Options& strategy) {
  const Compression compress = sync_policy(strategy).compress;
  return compress == Compression::none ? 0 : compress == Compression::fp16 ? 2e-1 : 3e-1;
}

void refuse_local_updates(const Options& strategy, const std::function<std::string(const std::string&)>& reason) {
  if (!strategy.has("sync")) return;
  const std::string& agreed = sync_kinds[size_t(SyncKind::gradients)];
  const auto check = [&](const Options& section) {
    if (section.has("what") && section.text("what") != agreed) section.fail("what", reason(section.text("what")));
  };
  const Options sync = strategy.section("sync");
  check(sync);
  if (!sync.has("groups")) return;
  for (const Options& group : sync.sections("groups")) check(group);
}

std::vector<std::vector<std::string>> member_overrides(const RunConfig& config) {
  const MemberFunctions& members = strategy_of(config).members;
  return members.overrides ? members.overrides(config) : std::vector<std::vector<std::string>>();
}

std::vector<std::string> EvaluationMetrics::names(bool folds) const {
  std::vector<std::string> names = evaluated;
  if (folds)
    for (const std::string& name : held_out) names.push_back("out_of_fold_" + name);
  return names;
}

void check_reported(const RunConfig& config, const std::string& key, const std::string& metric,
                    const std::vector<std::string>& names, const std::string& whose) {
  if (std::find(names.begin(), names.end(), metric) != names.end()) return;
  const auto fail = [&](const std::string& reason) {
    throw ConfigError(location_of(config.resolved, key), key, reason);
  };
  if (names.empty())
    fail(
        "never has a value: the data set has no rows to evaluate on; leave it out, or give the data an evaluation "
        "split");
  const std::string near = nearest(metric, names);
  fail(str("is ", metric, ", which no evaluation", whose, " reports; there are ", join(names, ", "),
           near.empty() ? "" : "; did you mean " + near + "?"));
}

std::vector<std::string> reported_metrics(const RunConfig& config, const EvaluationMetrics& metrics) {
  const MemberFunctions& members = strategy_of(config).members;
  if (members.metrics) return members.metrics(config, metrics);
  return metrics.names(member_sample(config.data.options, config.seed).rows == MemberSample::Rows::fold);
}

void check_watched_metric(const RunConfig& config, const std::string& key, const std::string& metric,
                          const EvaluationMetrics& metrics) {
  if (!metric.empty()) check_reported(config, key, metric, reported_metrics(config, metrics), "");
}

}  // namespace convoy
