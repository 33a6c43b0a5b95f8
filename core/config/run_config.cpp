// The typed view of resolved data. How it is read: run_reader.cpp.
#include "core/config/run_config.h"

#include "core/config/marks.h"

namespace convoy {
namespace {

Component component_of(const Options& run, const std::string& key) {
  if (!run.has(key)) return {};
  Component component{"", run.section(key)};
  const bool named = component.options.json().contains("name") && component.options.has("name");
  if (named) component.name = component.options.text("name");
  return component;
}

Interval interval_of(const Json& value) {
  Interval interval;
  interval.every = value.at("every");
  const std::string unit = value.at("unit");
  interval.unit = unit == "steps"    ? Interval::Unit::steps
                  : unit == "epochs" ? Interval::Unit::epochs
                                     : Interval::Unit::never;
  return interval;
}

int64_t integer_or_zero(const Options& options, const std::string& name) {
  return options.has(name) && !options.is_auto(name) ? options.integer(name) : 0;
}

TrainConfig train_of(const Options& options) {
  TrainConfig train;
  train.epochs = integer_or_zero(options, "epochs");
  train.max_steps = integer_or_zero(options, "max_steps");
  const Options batch = options.section("batch");
  train.batch.per_rank = batch.has("per_rank");
  train.batch.rows = batch.integer(train.batch.per_rank ? "per_rank" : "global");
  train.evaluate_every = interval_of(options.at("evaluate_every"));
  train.checkpoint_every = interval_of(options.at("checkpoint_every"));
  train.keep_last = options.integer("keep_last");
  train.resume = options.text("resume");
  train.log_every = options.integer("log_every");
  return train;
}

LaunchConfig launch_of(const Options& options) {
  LaunchConfig launch;
  launch.ranks = integer_or_zero(options, "ranks");
  launch.cores_per_rank = integer_or_zero(options, "cores_per_rank");
  launch.threads = integer_or_zero(options, "threads");
  launch.bind = options.text("bind");
  launch.cores = options.texts("cores");
  launch.grace = options.real("grace");
  launch.failure_grace = options.real("failure_grace");
  launch.heartbeat = options.real("heartbeat");
  launch.collective = options.real("collective");
  launch.rendezvous = options.real("rendezvous");
  launch.address = options.is_auto("address") ? "" : options.text("address");
  launch.port = integer_or_zero(options, "port");
  return launch;
}

}  // namespace

const Entry* Catalogues::find(const std::string& kind, const std::string& name) const {
  auto entries = kinds.find(kind);
  if (entries == kinds.end()) return nullptr;
  for (const Entry& entry : entries->second) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

std::vector<std::string> Catalogues::names(const std::string& kind) const {
  std::vector<std::string> names;
  auto entries = kinds.find(kind);
  if (entries == kinds.end()) return names;
  for (const Entry& entry : entries->second) names.push_back(entry.name);
  return names;
}

RunConfig RunConfig::from_resolved(const Json& resolved) {
  const Options run(resolved, marks_of(resolved));
  RunConfig config;
  config.name = run.text("name");
  config.seed = static_cast<uint64_t>(run.integer("seed"));
  config.device = run.text("device");
  config.precision = run.text("precision");
  config.randomness = run.text("randomness");
  config.plugins = run.texts("plugins");
  config.model = component_of(run, "model");
  config.data = component_of(run, "data");
  config.loss = component_of(run, "loss");
  config.optimizer = component_of(run, "optimizer");
  config.strategy = component_of(run, "strategy");
  config.backend = run.text("backend");
  config.train = train_of(run.section("train"));
  config.launch = launch_of(run.section("launch"));
  config.log_level = run.section("log").text("level");
  const Json& model = run.at("model");
  // Until the library is loaded nobody knows which model it brings.
  if (model.contains("plugin") && !model.contains("name"))
    config.model.name = "plugin:" + model["plugin"].get<std::string>();
  config.resolved = resolved;
  return config;
}

Mark mark_of(const Json& resolved, const std::string& key) {
  const Marks marks = marks_of(resolved);
  for (std::string path = key;; path.erase(path.rfind('.'))) {
    const auto found = marks.find(path);
    if (found != marks.end()) return found->second;
    if (path.find('.') == std::string::npos) break;
  }
  const auto whole = marks.find("");
  return whole == marks.end() ? Mark{} : whole->second;
}

}  // namespace convoy
