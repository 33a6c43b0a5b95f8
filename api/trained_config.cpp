#include "api/trained_config.h"

#include "core/base/describe.h"
#include "core/base/text.h"
#include "core/config/node.h"
#include "core/config/option_reader.h"
#include "core/optim/catalogue/catalogue.h"
#include "strategies/plans/catalogue.h"
#include "strategies/plans/options/data_axis.h"
#include "strategies/plans/options/devices.h"
#include "strategies/plans/options/step_options.h"

namespace convoy {
namespace {

template <class T>
void set(Json& section, const char* key, const std::optional<T>& value) {
  if (value) section[key] = *value;
}

template <class Options>
Json loss_scale_of(const Options& options) {
  Json section = Json::object();
  set(section, "initial", options.loss_scale.initial);
  set(section, "growth", options.loss_scale.growth);
  set(section, "growth_interval", options.loss_scale.growth_interval);
  set(section, "backoff", options.loss_scale.backoff);
  return section;
}

Json rule_of(const SyncRule& rule) {
  Json section = Json::object();
  set(section, "what", rule.what);
  set(section, "every", rule.every);
  set(section, "start_after", rule.start_after);
  set(section, "moments", rule.moments);
  Json outer = Json::object();
  set(outer, "lr", rule.outer.lr);
  set(outer, "momentum", rule.outer.momentum);
  set(outer, "nesterov", rule.outer.nesterov);
  if (!outer.empty()) section["outer"] = outer;
  return section;
}

Json optimizer_of(const FusedOptimizer& fused) {
  Json section{{"name", fused.name}};
  set(section, "lr", fused.lr);
  set(section, "weight_decay", fused.weight_decay);
  set(section, "momentum", fused.momentum);
  set(section, "nesterov", fused.nesterov);
  set(section, "eps", fused.eps);
  if (fused.betas) section["betas"] = Json::array({fused.betas->first, fused.betas->second});
  for (const FusedGroup& group : fused.groups) {
    Json item{{"match", group.match}};
    set(item, "lr", group.lr);
    set(item, "weight_decay", group.weight_decay);
    section["groups"].push_back(item);
  }
  return section;
}

template <class Options>
TrainedSettings common_settings(const Options& options, const FusedOptimizer* fused) {
  TrainedSettings settings;
  settings.clip_norm = options.clip_norm;
  settings.precision = options.precision;
  if (fused != nullptr) settings.optimizer = optimizer_of(*fused);
  set(settings.strategy, "buffers", options.buffers);
  set(settings.strategy, "overlap", options.overlap);
  if (const Json scale = loss_scale_of(options); !scale.empty()) settings.strategy["loss_scale"] = scale;
  return settings;
}

std::string chosen_precision(const TrainedSettings& settings, const std::string& own) {
  const std::string& wanted = settings.precision;
  if (wanted.empty() || wanted == own) return own;
  if (wanted != "bf16" && wanted != "fp16")
    throw ConfigError({settings.source, 0, 0}, "precision", "is ", wanted, ", and the module's parameters are ",
                      own == "fp64" ? "double" : "float", "; take bf16 or fp16, or convert the module with to(",
                      wanted == "fp64" ? "torch::kDouble" : "torch::kFloat", ") and leave precision out");
  if (own == "fp64")
    throw ConfigError({settings.source, 0, 0}, "precision", "is ", wanted,
                      ", which needs parameters of float, and the module's are double; convert it "
                      "with to(torch::kFloat)");
  return wanted;
}

// Returns the error of a YAML key as that of the C++ option: strategy.sync.what becomes sync.what of ReplicaOptions.
ConfigError error_of_member(const ConfigError& error, const std::string& source) {
  std::string structure = source, member = error.key();
  const std::string strategy = "strategy.", optimizer = "optimizer.";
  if (begins_with(member, strategy)) {
    member = member.substr(strategy.size());
  } else if (begins_with(member, optimizer)) {
    member = member.substr(optimizer.size());
    if (member != "clip_norm") structure = "FusedOptimizer";
  }
  return {{structure, 0, 0}, member, error.reason(), error.kind()};
}

}  // namespace

TrainedSettings settings_of(const ReplicaOptions& options, const FusedOptimizer* fused) {
  TrainedSettings settings = common_settings(options, fused);
  settings.source = "ReplicaOptions";
  set(settings.strategy, "first_bucket_mb", options.first_bucket_mb);
  set(settings.strategy, "bucket_cap_mb", options.bucket_cap_mb);
  Json sync = rule_of(options.sync);
  set(sync, "compress", options.sync.compress);
  for (const SyncGroupOptions& group : options.sync.groups) {
    Json item = rule_of(group);
    item["match"] = group.match;
    sync["groups"].push_back(item);
  }
  if (!sync.empty()) settings.strategy["sync"] = sync;
  return settings;
}

TrainedSettings settings_of(const ShardOptions& options, const FusedOptimizer* fused) {
  TrainedSettings settings = common_settings(options, fused);
  settings.source = "ShardOptions";
  if (options.stage < 1 || options.stage > 3)
    throw ConfigError({settings.source, 0, 0}, "stage", "is ", options.stage, ", must be 1, 2 or 3");
  if (options.stage != 3 && options.reshard_after_forward)
    throw ConfigError({settings.source, 0, 0}, "reshard_after_forward",
                      "needs stage 3, which shards the parameters, and ", "stage is ", options.stage);
  settings.shards = true;
  settings.strategy["shard"] = options.stage == 1 ? "optimizer" : options.stage == 2 ? "gradients" : "parameters";
  set(settings.strategy, "reshard_after_forward", options.reshard_after_forward);
  return settings;
}

namespace {

RunConfig checked_config(const RunConfig& job, const TrainedSettings& settings, const std::string& own_precision) {
  Catalogues catalogues;
  catalogues.kinds["optimizer"] = optimizer_catalogue();
  catalogues.kinds["schedule"] = schedule_catalogue();
  catalogues.kinds["strategy"] = strategy_entries();
  // A torch optimizer needs none of these options but clip_norm.
  Json optimizer = settings.optimizer.is_null() ? Json{{"name", "sgd"}} : settings.optimizer;
  set(optimizer, "clip_norm", settings.clip_norm);
  const std::vector<Option> described{describe::component("optimizer", "update rule", "optimizer"),
                                      describe::component("strategy", "distribution", "strategy")};
  OptionReader reader(catalogues, {});
  const std::string& name = (settings.shards ? shards_strategy() : replicas_strategy()).name;
  Json strategy = settings.strategy;
  strategy["name"] = name;
  const Json given{{"optimizer", optimizer}, {"strategy", strategy}};
  const Json read = reader.read_fields(described, node_of(given, {{"", {settings.source, 0, 0}}}), "");
  const Options all(read, reader.locations());
  RunConfig config = job;
  config.precision = chosen_precision(settings, own_precision);
  config.optimizer = {optimizer.at("name"), all.section("optimizer")};
  config.strategy = {name, all.section("strategy")};
  check_sync(config, !settings.shards);
  if (settings.shards) check_shard_effects(config.strategy.options);
  if (settings.continues) {
    JobPlan plan;
    plan.config = config;
    state_of_lost_replica(plan);
  }
  return config;
}

}  // namespace

RunConfig trained_config(const RunConfig& job, const TrainedSettings& settings, const std::string& own_precision) {
  try {
    return checked_config(job, settings, own_precision);
  } catch (const ConfigError& error) {
    throw error_of_member(error, settings.source);
  }
}

}  // namespace convoy
