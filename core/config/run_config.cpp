// Typed view of resolved data, and the descriptions of all options. run_reader.cpp reads the values.

#include "core/config/run_config.h"

#include "core/base/describe.h"
#include "core/config/init_from.h"
#include "core/config/node.h"
#include "core/data/catalogue/catalogue.h"

namespace convoy {
namespace {

Component component_of(const Options& run, const std::string& key) {
  if (!run.has(key)) return {};
  Component component{"", run.section(key)};
  const bool named = component.options.json().contains("name") && component.options.has("name");
  if (named) component.name = component.options.text("name");
  return component;
}

}  // namespace

Interval interval_of(const Json& value) {
  Interval interval;
  interval.every = value.at("every");
  const std::string unit = value.at("unit");
  interval.unit = unit == "steps"    ? Interval::Unit::steps
                  : unit == "epochs" ? Interval::Unit::epochs
                                     : Interval::Unit::never;
  return interval;
}

Json to_json(const Interval& interval) {
  static const char* const units[] = {"never", "steps", "epochs"};  // in the enum's order
  return {{"every", interval.every}, {"unit", units[static_cast<size_t>(interval.unit)]}};
}

namespace {

int64_t integer_or_zero(const Options& options, const std::string& name) {
  return options.has(name) && !options.is_auto(name) ? options.integer(name) : 0;
}

WatchConfig watch_of(const Options& train, const std::string& name) {
  WatchConfig watch;
  if (!train.json().contains(name) || !train.has(name)) return watch;  // a run with a program, or an earlier version
  const Options section = train.section(name);
  if (section.has("metric")) watch.metric = section.text("metric");
  watch.direction = section.text("direction");
  if (section.json().contains("patience")) watch.patience = section.integer("patience");
  return watch;
}

TrainConfig train_of(const Options& options) {
  TrainConfig train;
  train.epochs = integer_or_zero(options, "epochs");
  train.max_steps = integer_or_zero(options, "max_steps");
  if (options.json().contains("batch")) {  // a run with a program has none
    const Options batch = options.section("batch");
    train.batch.per_rank = batch.has("per_rank");
    train.batch.rows = batch.integer(train.batch.per_rank ? "per_rank" : "global");
    train.evaluate_every = interval_of(options.at("evaluate_every"));
    // Checkpoints of earlier versions do not have it.
    if (options.json().contains("pause_after")) train.pause_after = interval_of(options.at("pause_after"));
  }
  train.checkpoint_every = interval_of(options.at("checkpoint_every"));
  train.keep_last = options.integer("keep_last");
  if (options.has("checkpoint_async") && !options.is_auto("checkpoint_async"))
    train.checkpoint_async = options.boolean("checkpoint_async");
  train.continue_after_save_error = options.has("on_save_error") && options.text("on_save_error") == "continue";
  train.keep_best = watch_of(options, "keep_best");
  train.early_stop = watch_of(options, "early_stop");
  train.resume = options.text("resume");
  train.log_every = options.integer("log_every");
  return train;
}

// --- Descriptions of all top-level keys, their sections, and the catalogue of each component ---

using describe::OptionBuilder;

constexpr double month = 30 * 86400.0;  // in seconds; a longer time limit is probably a wrong unit

OptionBuilder time_limit(const std::string& name, const std::string& help, double seconds) {
  return describe::option(OptionType::duration, name, help, static_cast<int64_t>(seconds))
      .above(0)
      .at_most(month)
      .in("seconds");
}

Option batch_section() {
  return describe::section("batch", "batch size of a step; set exactly one of the two keys",
                           {describe::integer("global", "rows of the global batch, over all ranks")
                                .between(1, most_rows)
                                .in("rows")
                                .may_be_null(),
                            describe::integer("per_rank", "rows for each data-parallel rank")
                                .between(1, most_rows)
                                .in("rows")
                                .may_be_null()})
      .must();
}

std::vector<Option> watch_options(std::vector<Option> more) {
  std::vector<Option> options{
      describe::text("metric", "metric of the evaluations, such as loss; default: none").may_be_null(),
      describe::choice("direction", "better values are lower or higher; auto: lower for losses and gini, else higher",
                       {"auto", "minimize", "maximize"}, "auto")};
  options.insert(options.end(), more.begin(), more.end());
  return options;
}

Option train_section() {
  using describe::option;
  const TrainConfig defaults;
  return describe::section(
             "train", "length of the training, batches, evaluation and checkpoints",
             {describe::integer("epochs", "passes over the training rows; default without limit if max_steps is set",
                                defaults.epochs)
                  .between(1, most_epochs)
                  .in("epochs")
                  .may_be_null(),
              describe::integer("max_steps",
                                "number of training steps; if epochs is set too, the smaller limit ends the run")
                  .between(1, most_steps)
                  .in("steps"),
              batch_section(),
              option(OptionType::interval, "evaluate_every", "interval between evaluations", "1 epoch"),
              option(OptionType::interval, "checkpoint_every", "interval between checkpoints", "1 epoch"),
              option(OptionType::interval, "pause_after",
                     "stops at this point of the training, after a checkpoint and, unless train.evaluate_every is "
                     "never, an evaluation; a later point, or never, resumes. Schedules of the learning rate follow "
                     "the whole length",
                     "never"),
              describe::integer("keep_last", "number of checkpoints that are kept", defaults.keep_last)
                  .between(1, 1 << 20),
              describe::boolean("checkpoint_async",
                                "write checkpoints while training continues, from a copy of the state in host memory; "
                                "auto: if the copies of a host's ranks fit into half of its free memory")
                  .or_auto(),
              describe::choice("on_save_error",
                               "fail: a checkpoint that cannot be written ends the run; continue: it is counted in "
                               "summary.json, and the run continues. The last checkpoint of a run must succeed, and "
                               "so must the lines of metrics.jsonl",
                               {"fail", "continue"}, "fail"),
              describe::section("keep_best",
                                "also keeps the checkpoint of the best evaluation, which RUN@best names; saves one "
                                "whenever the metric improves",
                                watch_options({})),
              describe::section(
                  "early_stop", "ends the training when the metric no longer improves",
                  watch_options({describe::integer("patience", "evaluations without improvement", default_patience)
                                     .between(1, most_steps)})),
              describe::text("resume",
                             "auto: resume an unfinished run of this name; never: start from the beginning; the path "
                             "of a checkpoint or "
                             "run folder: start a new run from its state, also with other options if the state fits",
                             defaults.resume),
              describe::integer("log_every", "steps between two logged records of metrics", defaults.log_every)
                  .between(1, most_steps)
                  .in("steps")})
      .must();
}

Option launch_section() {
  const LaunchConfig defaults;
  return describe::section(
      "launch", "processes, cores and time limits",
      {describe::integer("ranks", "number of ranks; auto: the strategy chooses").between(1, 65536).or_auto(),
       describe::integer("cores_per_rank", "cores of each rank; auto: the host's cores, divided by its ranks")
           .between(1, 65536)
           .or_auto(),
       describe::integer("threads", "intra-op threads of each rank; auto: one for each of its cores")
           .between(1, 65536)
           .or_auto(),
       describe::choice("bind",
                        "binding of a rank: its cores, their NUMA node or socket, or list: the cores of launch.cores; "
                        "keep: the binding of mpirun or srun; convoy: its share of all cores of the job, ignoring the "
                        "binding of mpirun or srun",
                        {"none", "core", "numa", "socket", "list", "keep", "convoy"}, defaults.bind),
       describe::list("cores", "for bind: list: hardware threads of the first rank of a host, of the second, …",
                      describe::text("", "0-3, or 0+2")),
       time_limit("grace", "time from TERM to KILL after a stop request", defaults.grace),
       time_limit("failure_grace", "time from TERM to KILL after a failure", defaults.failure_grace),
       time_limit("heartbeat", "a rank without a heartbeat for this time is lost; at most launch.collective",
                  defaults.heartbeat),
       time_limit("collective", "time limit of one collective", defaults.collective),
       time_limit("rendezvous",
                  "time limit of the rendezvous of all ranks, and of each phase of their set-up; reading data or a "
                  "checkpoint may take longer while it makes progress",
                  defaults.rendezvous),
       describe::option(
           OptionType::duration, "step_timeout",
           "time limit of one step, evaluation batch or checkpoint of a rank; finds endless loops even if no other "
           "rank waits; default: none")
           .above(0)
           .at_most(month)
           .in("seconds")
           .may_be_null(),
       describe::choice(
           "check_collectives",
           "check that all ranks call the same collectives. sampled: the first calls of each group, then some; "
           "all: each call before it starts, which names the rank that differs and costs a message per call",
           {"none", "sampled", "all"}, defaults.check_collectives),
       describe::boolean(
           "host_memory",
           "backends gloo and mpi: ranks of one host exchange tensors through shared memory instead of sockets "
           "or messages, and keep one copy of each sparse embedding for the host",
           defaults.host_memory),
       describe::integer(
           "max_restarts",
           "number of restarts after failures; each starts all ranks from the newest checkpoint; not under an "
           "outer mpirun or srun",
           defaults.max_restarts)
           .between(0, 1000),
       describe::integer(
           "min_ranks",
           "the job continues without ranks that died while this many are left: the others repeat the "
           "interrupted step, or return to the newest checkpoint if a part of the state is lost; 0: the job "
           "ends. Needs backend gloo and train.batch.global",
           defaults.min_ranks)
           .between(0, 65536),
       describe::option(OptionType::duration, "backoff",
                        "delay before a restart; doubled after each attempt without progress, up to 10 minutes",
                        static_cast<int64_t>(defaults.backoff))
           .between(0, 3600)
           .in("seconds"),
       describe::text("address",
                      "numeric address of the interface on which the control channel listens, or a network "
                      "(10.0.0.0/16) that contains an address of each host; auto: a network of all hosts")
           .or_auto(),
       describe::integer("port", "TCP port of the control channel; auto: any free port").between(1, 65535).or_auto(),
       describe::list("remote_shell", "for --hosts: program and options that run a command on another host, like ssh",
                      describe::text("", "a word of the command line"), Json(defaults.remote_shell))});
}

Option backend_option() {
  return describe::text("backend", "communication library; auto: nccl for GPU ranks, mpi under mpirun, gloo otherwise")
      .with(&Option::catalogue, "backend")
      .or_auto();
}

Option log_section() {
  const LogConfig defaults;
  return describe::section(
      "log", "log messages, and files for other tools",
      {describe::choice("level", "lowest level that is logged", {"debug", "info", "warning", "error"}, defaults.level),
       describe::boolean("tensorboard", "write event files for TensorBoard into RUN/tensorboard", defaults.tensorboard),
       describe::integer("histograms",
                         "steps between histograms of weights and gradients in the event files, each of the part that "
                         "rank 0 holds; default: none")
           .between(1, most_steps)
           .in("steps")
           .may_be_null(),
       describe::text("prometheus",
                      "file of the job's metrics in the textfile format of Prometheus' node_exporter, such as "
                      "/var/lib/node_exporter/{name}.prom; {name} stands for the name of the run folder; default: none")
           .may_be_null()});
}

LogConfig log_of(const Options& options) {
  LogConfig log;
  log.level = options.text("level");
  // Configurations of earlier versions have no other key.
  if (options.has("tensorboard")) log.tensorboard = options.boolean("tensorboard");
  log.histograms = integer_or_zero(options, "histograms");
  if (options.has("prometheus")) log.prometheus = options.text("prometheus");
  return log;
}

std::vector<Option> described() {
  const RunConfig defaults;
  return {
      describe::text("name", "name of the run and its folder: letters, digits, '.', '_', '-'").must(),
      describe::integer("seed", "seed of initial values, sampling and all random draws", defaults.seed).at_least(0),
      describe::choice("device",
                       "device type of the ranks; auto: GPUs if each host has one for each of its ranks, else cores",
                       {"auto", "cpu", "cuda"}, defaults.device),
      describe::choice("precision",
                       "number format; with bf16 and fp16, products and activations have it, and parameters, gradients "
                       "and moments stay in fp32",
                       {"fp64", "fp32", "bf16", "fp16"}, defaults.precision),
      describe::choice("randomness",
                       "exact: random draws do not depend on the layout; fast: one generator per step, layer and rank; "
                       "auto: exact on the CPU, fast on GPUs",
                       {"auto", "exact", "fast"}, defaults.randomness),
      describe::list("plugins", "shared libraries that register losses, data sets, transforms or models",
                     describe::text("", "absolute path of a shared library")),
      describe::component("model", "model to train; {plugin: /abs/libmine.so, …} loads your own", "model")
          .with(&Option::options, common_model_options())
          .must(),
      describe::component("data", "data set", "data").with(&Option::options, common_data_options()).must(),
      describe::component("loss", "loss function; default: that of the model", "loss"),
      describe::component("optimizer", "update rule", "optimizer").must(),
      describe::component("strategy", "how ranks divide model, data and optimizer state", "strategy").must(),
      describe::list(
          "program",
          "program that each rank runs, with its arguments: [./mine, --epochs, 3]; it uses the C++ library of "
          "convoy, and replaces model, data, loss, optimizer and strategy",
          describe::text("", "program or argument")),
      backend_option(),
      train_section(),
      launch_section(),
      log_section(),
      describe::section(
          "profile", "trace of some steps: RUN/trace.json, for Perfetto and chrome://tracing",
          {describe::text("steps", "first and last traced step, such as 10-12, counted from 1; default: none")
               .may_be_null()}),
  };
}

}  // namespace

LaunchConfig launch_config(const Options& options) {
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
  // Configurations of earlier versions lack some keys.
  if (options.has("step_timeout")) launch.step_timeout = options.real("step_timeout");
  if (options.has("check_collectives")) launch.check_collectives = options.text("check_collectives");
  if (options.has("host_memory")) launch.host_memory = options.boolean("host_memory");
  if (options.has("max_restarts")) launch.max_restarts = options.integer("max_restarts");
  if (options.has("min_ranks")) launch.min_ranks = options.integer("min_ranks");
  if (options.has("backoff")) launch.backoff = options.real("backoff");
  if (options.has("remote_shell")) launch.remote_shell = options.texts("remote_shell");
  launch.address = options.is_auto("address") ? "" : options.text("address");
  launch.port = integer_or_zero(options, "port");
  return launch;
}

RunConfig RunConfig::from_resolved(const Json& resolved) {
  const Options run(resolved, locations_of(resolved));
  RunConfig config;
  config.name = run.text("name");
  config.seed = static_cast<uint64_t>(run.integer("seed"));
  config.device = run.text("device");
  config.backend = run.text("backend");
  config.train = train_of(run.section("train"));
  config.launch = launch_config(run.section("launch"));
  config.log = log_of(run.section("log"));
  if (run.has("profile"))
    if (const Options profile = run.section("profile"); profile.has("steps"))
      config.profile = traced_steps(profile.text("steps"));
  config.resolved = resolved;
  if (run.has("program")) {
    config.program = run.texts("program");
    return config;
  }
  config.precision = run.text("precision");
  config.randomness = run.text("randomness");
  config.plugins = run.texts("plugins");
  config.model = component_of(run, "model");
  config.data = component_of(run, "data");
  config.loss = component_of(run, "loss");
  config.optimizer = component_of(run, "optimizer");
  config.strategy = component_of(run, "strategy");
  const Json& model = run.at("model");
  // The name of the model is unknown until the library is loaded.
  if (model.contains("plugin") && !model.contains("name"))
    config.model.name = "plugin:" + model["plugin"].get<std::string>();
  return config;
}

RunConfig RunConfig::changed(const Json& values) const {
  Json merged = resolved;
  merged.update(values, true);
  RunConfig config = from_resolved(merged);
  config.warnings = warnings;
  return config;
}

ProfileConfig traced_steps(const std::string& text) {
  constexpr size_t most_digits = 15;
  ProfileConfig steps;
  const size_t dash = text.find('-');
  const auto number = [](const std::string& digits) {
    const bool valid =
        !digits.empty() && digits.size() <= most_digits && digits.find_first_not_of("0123456789") == std::string::npos;
    return valid ? std::stoll(digits) : 0;
  };
  steps.first = number(text.substr(0, dash));
  steps.last = dash == std::string::npos ? steps.first : number(text.substr(dash + 1));
  return steps.first > 0 && steps.first <= steps.last ? steps : ProfileConfig();
}

SourceLocation location_of(const Json& resolved, const std::string& key) {
  return location_of(locations_of(resolved), key);
}

const std::vector<Option>& run_options() {
  static const std::vector<Option> options = described();
  return options;
}

}  // namespace convoy
