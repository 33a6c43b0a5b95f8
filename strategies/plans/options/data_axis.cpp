#include "strategies/plans/options/data_axis.h"

#include <algorithm>
#include <set>

#include "core/base/describe.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "core/config/node.h"
#include "core/optim/catalogue/catalogue.h"

namespace convoy {

void check_memory_options(const RunConfig& config) {
  const Options& options = config.strategy.options;
  if (config.precision == "fp16" && !options.has("loss_scale"))
    throw ConfigError(SourceLocation{}, "precision", "fp16 needs a loss scaler, which strategy ", config.strategy.name,
                      " does not have; use bf16 or fp32");
  const std::vector<std::string> names = recompute_of(options).names;
  std::set<std::string> seen;
  for (size_t i = 0; i < names.size(); ++i)
    if (!seen.insert(names[i]).second)
      options.fail(str("recompute.", i), "names ", names[i], " a second time; name each block once");
}

MeshOptions mesh_options(const Options& strategy) {
  const Options mesh = strategy.section("mesh");
  const Json& data = mesh.at("data");
  Json degree = data, how = "ddp";
  if (data.is_object()) {
    for (const auto& [key, value] : data.items())
      if (key != "degree" && key != "how")
        mesh.fail("data", "has the unknown key ", key, "; it takes a number, or {degree: 2, how: ddp | fsdp}");
    degree = data.value("degree", Json(MeshOptions().data));
    how = data.value("how", Json(how));
  }
  const auto text_of = [](const Json& value) {
    return value.is_string() ? shown(value.get<std::string>()) : value.dump();
  };
  if (!degree.is_number_integer() || degree.get<int64_t>() < 1 || degree.get<int64_t>() > 1 << 20)
    mesh.fail("data", "is ", text_of(degree), ", must be a number of ranks, at least 1");
  if (how != "ddp" && how != "fsdp") mesh.fail("data", "has how: ", text_of(how), ", must be ddp or fsdp");
  return {int(degree.get<int64_t>()), int(mesh.integer("pipeline")), int(mesh.integer("tensor")), how == "fsdp",
          strategy.texts("order")};
}

void check_micro_batches(const RunConfig& config, int64_t data_degree) {
  const Options& options = config.strategy.options;
  const int64_t rows = config.train.batch.rows * (config.train.batch.per_rank ? data_degree : 1);
  const int64_t count = step_options(options).micro_batches;
  if (count > std::max<int64_t>(rows, 1))
    options.fail("micro_batches", "is ", count, ", and the global batch has ", rows, " rows; take at most that");
}

std::vector<Option> joined(const std::vector<std::vector<Option>>& lists) {
  std::vector<Option> all;
  for (const std::vector<Option>& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

Option micro_batches_option(const std::string& how, int64_t fallback) {
  return describe::integer("micro_batches", "micro-batches of each global batch, which " + how, fallback)
      .between(1, 1 << 20)
      .in("micro-batches");
}

std::vector<Option> memory_options() {
  return {
      describe::any("recompute", "none, blocks or list of texts",
                    "activation checkpointing: blocks that keep only their inputs and run forward again in "
                    "backward: none, blocks (all), or a list of their names",
                    "none"),
      describe::section(
          "loss_scale", "precision fp16: dynamic factor on the loss that keeps small gradients above zero",
          {describe::real("initial", "first factor", 65536.0).between(1, 4294967296.0),
           describe::real("growth", "multiplier after growth_interval updates in a row", 2.0).above(1),
           describe::integer("growth_interval", "number of updates with finite gradients before growth", 2000)
               .between(1, most_steps)
               .in("updates"),
           describe::real("backoff", "multiplier after gradients that are not finite", 0.5).above(0).at_most(1)}),
  };
}

std::vector<Option> replicated_data_options() {
  return joined(
      {{
           describe::real("bucket_cap_mb",
                          "size of the gradients that one message reduces; auto: a quarter of them, between 1 and 25",
                          "auto")
               .above(0)
               .in("MiB")
               .or_auto(),
           describe::real("first_bucket_mb", "size of the first bucket, small so that sending starts early", 1)
               .above(0)
               .in("MiB"),
           overlap_option("reduce a bucket as soon as its gradients are ready, during the backward pass"),
       },
       buffer_options()});
}

Option overlap_option(const std::string& what) {
  return describe::boolean("overlap",
                           what +
                               "; auto: yes on GPUs; on cores, where computing and reducing share a core, the first 18 "
                               "updates measure which is faster; results are equal",
                           true)
      .or_auto();
}

std::vector<Option> buffer_options() {
  return {
      describe::choice("buffers", "batch norm's buffers after an update: rank 0's, their mean, or each rank's own",
                       shared_buffers, shared_buffers.front()),
      describe::choice("batch_norm",
                       "rows for mean and variance of batch norm in training: the rank's share (local), or the rows of "
                       "all ranks (sync)",
                       {"local", "sync"}, "local"),
  };
}

Option sync_option() {
  return describe::section(
      "sync", "how often an update is made",
      {describe::integer("every", "steps whose gradients are accumulated for one update", 1)
           .between(1, 1 << 20)
           .in("steps"),
       describe::text("what", "what ranks synchronise: gradients, for every update", "gradients")});
}

namespace {

const SyncGroup defaults;

// Options of the section itself and of each of its groups.
std::vector<Option> group_options(const std::string& every) {
  return {
      describe::integer("every", every, defaults.every).between(1, 1 << 20).in("steps"),
      describe::choice("what",
                       "what ranks synchronise: gradients, for every update; parameters, averaged after local updates "
                       "(local SGD); or diloco, an outer step along the mean change of local updates",
                       sync_kinds, sync_kinds.front()),
      describe::integer("start_after", "parameters, diloco: first updates that sum gradients instead",
                        defaults.start_after)
          .between(0, most_steps)
          .in("updates"),
      describe::choice("moments", "parameters, diloco: the optimizer's moments stay local, or are averaged too",
                       {"local", "averaged"}, "local"),
      describe::section(
          "outer", "diloco: the outer step",
          {describe::real("lr", "learning rate; 1 without momentum takes the mean", defaults.outer_rate).above(0),
           describe::real("momentum", "momentum of the outer steps", defaults.outer_momentum).between(0, 1),
           describe::boolean("nesterov", "use Nesterov momentum", defaults.nesterov)}),
  };
}

// Checks the section or one of its groups.
void check_group(const Options& section, std::vector<std::string>& left_out) {
  const std::string what = section.json().value("what", sync_kinds.front());
  const auto refuse = [&](const std::string& key, const std::string& reason) {
    refuse_without_effect(section, key, reason, {section.location("what")}, &left_out);
  };
  if (what == sync_kinds.front())
    for (const char* key : {"start_after", "moments"})
      refuse(key,
             "needs ranks with local updates, but what is gradients; write what: parameters or diloco, or "
             "leave it out");
  if (what != "diloco") refuse("outer", str("needs what: diloco, but what is ", what, "; leave one of them out"));
  if (!section.json().contains("match")) return;
  NamePattern{section};
}

// Checks that all groups of gradients accumulate the same number of steps.
void check_every(const Options& sync, const SyncPolicy& policy) {
  const std::vector<Options> groups = sync.sections("groups");
  const SyncGroup& rest = policy.groups.back();
  std::string other = rest.what == SyncKind::gradients ? "sync.every" : "";
  int64_t every = rest.every;
  for (size_t i = 0; i < groups.size(); ++i) {
    const SyncGroup& group = policy.groups[i];
    if (group.what != SyncKind::gradients) continue;
    if (!other.empty() && group.every != every)
      groups[i].fail("every", "is ", group.every, ", which conflicts with ", other, " = ", every,
                     ": one update of all parameters needs gradients of equally many steps; write equal numbers, "
                     "or what: parameters for one of them");
    if (other.empty()) other = str("sync.groups.", i, ".every");
    every = group.every;
  }
}

}  // namespace

Option replica_sync_option() {
  Option group;
  group.type = OptionType::section;
  group.help = "parameters with a matching name; keys that are left out have their defaults, not the section's values";
  group.options =
      group_options("gradients: equal to sync.every; parameters, diloco: updates between two synchronisations");
  group.options.insert(group.options.begin(), describe::text("match", NamePattern::help).must());
  std::vector<Option> options = group_options(
      "gradients: steps that are accumulated for one update; parameters, diloco: updates between two synchronisations");
  options.push_back(describe::list("groups", "parameters with other synchronisation", group));
  options.push_back(describe::choice("compress",
                                     "number format of sent gradients; the rounding error is added to the next ones",
                                     compressions, compressions.front()));
  return describe::section("sync", "how often ranks synchronise, and what", options);
}

std::vector<std::string> check_sync(const RunConfig& config, bool copies) {
  std::vector<std::string> left_out;
  const Options& strategy = config.strategy.options;
  if (!strategy.has("sync")) return left_out;
  const Options sync = strategy.section("sync");
  if (!copies) {
    for (const char* key : {"groups", "start_after", "moments", "outer", "compress"})
      refuse_without_effect(sync, key,
                            str("needs a data axis of whole replicas, but strategy ", config.strategy.name,
                                " has none here; leave it out"),
                            {strategy.location("mesh"), strategy.location("name")}, &left_out);
    return left_out;
  }
  check_group(sync, left_out);
  for (const Options& group : sync.sections("groups")) check_group(group, left_out);
  const SyncPolicy policy = sync_policy(strategy);
  check_every(sync, policy);
  if (policy.compress == Compression::none) return left_out;
  if (policy.always_local())
    sync.fail("compress", "needs gradients that ranks send, but these ranks average parameters; leave it out");
  if (config.precision == "fp16")
    sync.fail("compress",
              "conflicts with precision fp16: the rounding error would have another loss scale when it is added; "
              "set precision: bf16 or fp32, or leave it out");
  return left_out;
}

std::string state_of_lost_replica(const JobPlan& job) {
  const Options& strategy = job.config.strategy.options;
  const SyncPolicy policy = sync_policy(strategy);
  const std::string key = "launch.min_ranks";
  if (policy.ever_local())
    strategy.fail("sync", "averages parameters, and with ", key,
                  " a lost rank's own parameters would be missing; set what: gradients, or leave ", key, " out");
  if (policy.compress != Compression::none)
    strategy.fail("sync", "compresses gradients, and with ", key,
                  " the rounding error of a lost rank would be missing; leave compress or ", key, " out");
  if (wants_sharded_rows(job.config.model.options)) return "model.rows: sharded keeps each row on one rank";
  return "";
}

std::string state_of_lost_shard(const JobPlan& job) {
  return str("strategy ", job.config.strategy.name, " keeps each part of the state on one rank");
}

void check_sparse_embeddings(const RunConfig& config, bool supported) {
  const Options& model = config.model.options;
  const RowsOption rows = rows_option(model);
  const bool shares = rows == RowsOption::sharded;
  if (!shares && rows != RowsOption::sparse) return;
  if (!supported)
    model.fail("rows", "is ", shares ? "sharded" : "true", ", and strategy ", config.strategy.name,
               " keeps embeddings dense; leave it auto, or take a strategy whose ranks hold the whole model");
  const OptimizerOptions optimizer = optimizer_options(config.optimizer);
  // With parameter groups, the weight decay of a table depends on its name, which is not known yet.
  const SparseObstacle obstacle = row_obstacle(optimizer, optimizer.groups.empty() ? optimizer.weight_decay : 0);
  if (!obstacle.key.empty()) config.optimizer.options.fail(obstacle.key, obstacle.reason);
  if (!shares) return;
  if (sync_policy(config.strategy.options).ever_local())
    model.fail("rows",
               "conflicts with local updates (strategy.sync), for which each rank needs its own tables; set "
               "rows: true, or what: gradients");
}

std::vector<std::string> sparse_warnings(const RunConfig& config) {
  if (rows_option(config.model.options) != RowsOption::sparse) return {};
  const SyncPolicy policy = sync_policy(config.strategy.options);
  if (std::none_of(policy.groups.begin(), policy.groups.end(),
                   [](const SyncGroup& group) { return group.what == SyncKind::diloco; }))
    return {};
  return {
      "model.rows is true, but embeddings under strategy.sync what: diloco stay dense, because an outer step changes "
      "all rows; set what: parameters for sparse embeddings that are averaged"};
}

}  // namespace convoy
