#include "launch/prepare/prepare.h"

#include <algorithm>
#include <map>

#include "backends/catalogue/catalogue.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/config/init_from.h"
#include "core/config/program.h"
#include "core/config/reader.h"
#include "core/control/fault.h"
#include "core/data/catalogue/catalogue.h"
#include "core/data/catalogue/declared_schema.h"
#include "launch/farm/schedule/options.h"
#include "launch/machine/gpus.h"
#include "launch/machine/topology.h"
#include "launch/prepare/describe.h"
#include "models/catalogue/catalogue.h"
#include "strategies/plans/catalogue.h"

namespace convoy {

// --- launch.min_ranks: which jobs can continue without a rank ---

void check_min_ranks(const PreparedRun& run, const JobPlan& job) {
  const RunConfig& config = run.config;
  const int64_t least = config.launch.min_ranks;
  if (least == 0 || !run.snapshots.is_null() || !run.arguments.bench.is_null() || !run.arguments.use.is_null()) return;
  const auto refuse = [&](const std::string& key, const std::string& reason) {
    throw ConfigError(location_of(config.resolved, key), key, reason);
  };
  const auto refuse_here = [&](const std::string& reason) {
    refuse("launch.min_ranks", str("is ", least, ", but ", reason,
                                   "; leave it out; with launch.max_restarts all ranks start again instead"));
  };
  const StrategyEntry& strategy = strategy_of(config);
  if (!strategy.state_of_lost_rank)
    refuse_here(str("strategy ", config.strategy.name, " cannot continue without one of its ranks"));
  if (run.as.launcher != Launcher::none)
    refuse_here(str(name_of(run.as.launcher), " started the ranks and may end all of them when one dies"));
  if (run.arguments.nodes.any())
    refuse_here("the convoy of each node (--nodes) ends when a peer is lost; type --hosts on one of them instead");
  const BackendEntry& backend = backend_entry(job.backend);
  if (!backend.no_lost_rank.empty() && (!backend.threads_only || job.ranks.size() > 1))
    refuse_here(backend.no_lost_rank);
  if (config.launch.port > 0)
    refuse("launch.port", str("is ", config.launch.port,
                              ", but with launch.min_ranks the control channel takes another "
                              "port each time that a rank is lost; leave it out"));
  if (config.train.batch.per_rank)
    refuse("train.batch",
           "depends on the number of ranks (per_rank), but with launch.min_ranks a step is repeated with "
           "fewer ranks and the same rows; set train.batch.global");
  const std::string lost = strategy.state_of_lost_rank(job);
  if (!lost.empty() && config.train.checkpoint_every.unit == Interval::Unit::never)
    refuse("train.checkpoint_every",
           str("is never, but with launch.min_ranks the ranks return to the newest checkpoint "
               "when one is lost, because ",
               lost, "; set an interval"));
  if (least > static_cast<int64_t>(job.ranks.size()))
    refuse("launch.min_ranks",
           str("is ", least, ", but the job has ", counted(job.ranks.size(), "rank"), "; set at most that number"));
}

// --- The checked configuration, and the placed job ---

namespace {

// Source location of the key, else the file.
SourceLocation key_location(const PreparedRun& run, const std::string& key) {
  const SourceLocation location = location_of(run.config.resolved, key);
  return location.file.empty() ? SourceLocation{run.arguments.config, 0, 0} : location;
}

// Adds the source location to an error of planning, which knows no locations.
[[noreturn]] void add_location(const ConfigError& error, const PreparedRun& run) {
  throw ConfigError(key_location(run, error.key()), error.key(), error.reason(), error.kind());
}

[[noreturn]] void refuse_backend(const PreparedRun& run, const std::string& reason, Failure kind = Failure::config) {
  throw ConfigError(key_location(run, "backend"), "backend", reason, kind);
}

// The launcher decides the number of ranks; a number in the file is for a run without a launcher. A different number on
// the command line is an error.
void resolve_rank_count(PreparedRun& run) {
  const int64_t wanted = run.config.launch.ranks;
  if (run.as.launcher == Launcher::none || wanted == 0 || wanted == run.as.size) return;
  const SourceLocation location = key_location(run, "launch.ranks");
  const bool typed = location.file.rfind("--set", 0) == 0;
  if (typed)
    throw ConfigError(location, run.arguments.ranks > 0 ? "--ranks" : "launch.ranks", wanted, " conflicts with ",
                      run.as.size_from, "=", run.as.size, " of ", name_of(run.as.launcher), "; leave it out");
  run.warnings.push_back(str(run.arguments.config, ": launch.ranks: ", wanted, " has no effect under ",
                             name_of(run.as.launcher), ", which started ", run.as.size, " (", run.as.size_from, ")"));
  run.config = run.config.changed({{"launch", {{"ranks", run.as.size}}}});
}

// Checks requirements of a named backend that are known before planning.
void check_backend(const PreparedRun& run) {
  const std::string& name = run.config.backend;
  if (name == "auto") return;
  const BackendEntry& entry = backend_entry(name);
  if (!entry.built) refuse_backend(run, str("this build has no ", name, "; ", entry.how_to_get));
  const bool several = run.as.launcher != Launcher::none && run.as.size > 1;
  if (entry.threads_only && several)
    refuse_backend(run, str(name, " connects only the threads of one process, but ", name_of(run.as.launcher),
                            " started ", run.as.size, " processes; use gloo or mpi, or start convoy alone"));
  if (entry.by_mpirun && several && !run.as.pmi)
    refuse_backend(run, run.as.launcher == Launcher::slurm
                            ? str(name, " under srun needs its PMIx: type `srun --mpi=pmix …`, or use gloo")
                            : str(name, " cannot find its peers under ", name_of(run.as.launcher),
                                  "; use gloo, or start with mpirun"));
}

void resolve_backend(RunConfig& config, const PreparedRun& run, const Topology& topology,
                     const std::vector<int>& rank_hosts) {
  bool gpus = std::any_of(topology.hosts.begin(), topology.hosts.end(), [](const Host& h) { return !h.gpus.empty(); });
  // If ranks outnumber GPUs, `device: auto` means cores.
  for (size_t host = 0; gpus && config.device == "auto" && host < topology.hosts.size(); ++host)
    gpus = std::count(rank_hosts.begin(), rank_hosts.end(), static_cast<int>(host)) <=
           static_cast<std::ptrdiff_t>(topology.hosts[host].gpus.size());
  const bool on_gpus = gpus && config.device != "cpu";
  if (config.backend == "auto") {
    if (run.as.pmi && run.as.size > 1 && !on_gpus && backend_entry("mpi").built) config.backend = "mpi";
    return;
  }
  if (backend_entry(config.backend).needs_gpu && !on_gpus)
    refuse_backend(run,
                   str(config.backend, " needs GPUs, but ", config.device == "cpu" ? "device is cpu" : "none was found",
                       "; use gloo or mpi"),
                   Failure::device_missing);
}

// Notes on ranks and micro-batches without rows of a global batch. Such ranks and micro-batches do not change the
// result.
std::vector<std::string> notes_on_rows(const RunConfig& config, const JobPlan& job) {
  std::vector<std::string> notes;
  if (!config.program.empty()) return notes;
  const BatchSize& batch = config.train.batch;
  const int64_t shares = job.mesh.degree("data"), ranks = static_cast<int64_t>(job.ranks.size());
  if (!batch.per_rank && batch.rows < shares) {
    const int64_t idle = (shares - batch.rows) * (ranks / shares);
    notes.push_back(str("train.batch: a global batch of ", counted(batch.rows, "row"), " leaves ", idle, " of ", ranks,
                        " ranks without rows in every step; type --set train.batch.global=", shares, " or more, or ",
                        ranks == shares ? str("--ranks ", batch.rows) : "fewer ranks along data"));
    return notes;  // every rank with rows has one
  }
  const int64_t slices = step_options(config.strategy.options).micro_batches;
  const int64_t rows = batch.per_rank ? batch.rows : batch.rows / shares;
  if (rows < slices)
    notes.push_back(str("strategy.micro_batches: ", slices, " of the ", counted(rows, "row"),
                        " that a rank has in a step: ", slices - rows,
                        " have no rows; type --set strategy.micro_batches=", rows, ", or a larger train.batch"));
  return notes;
}

// Refuses a model.freeze that matches no parameter, or all of them.
void check_frozen(const RunConfig& config, const ModelDescription& model) {
  const std::optional<NamePattern> pattern = frozen_names(config.model.options);
  if (!pattern) return;
  std::vector<std::string> trained;
  int64_t frozen = 0;
  for (const BlockDescription& block : model.blocks)
    for (const auto& [name, elements] : block.named) pattern->found_in(name) ? void(++frozen) : trained.push_back(name);
  constexpr size_t shown = 6;
  if (frozen > 0 && !trained.empty()) return;
  const std::string more = trained.size() > shown ? str(", … (", trained.size(), ")") : "";
  trained.resize(std::min(trained.size(), shown));
  throw ConfigError(location_of(config.resolved, "model.freeze"), "model.freeze",
                    frozen == 0 ? str("matches no parameter of the model, which has ", join(trained, ", "), more)
                                : "matches every parameter of the model, so that nothing would be trained");
}

PlacedJob plan_without_locations(const PreparedRun& run, const Topology& topology, const std::vector<int>& rank_hosts,
                                 const std::vector<std::vector<int>>& allowed) {
  RunConfig config = run.config;
  resolve_backend(config, run, topology, rank_hosts);
  PlanRequest request;
  request.ranks = rank_hosts.empty() ? static_cast<int>(config.launch.ranks) : static_cast<int>(rank_hosts.size());
  request.rank_hosts = rank_hosts;
  const StrategyEntry& strategy = strategy_of(config);
  Plan plan = strategy.plan(config, topology, request);
  CONVOY_CHECK(plan.jobs.size() == 1, "strategy ", config.strategy.name, " planned ", plan.jobs.size(), " jobs");
  PlacedJob placed;
  placed.job = std::move(plan.jobs.front());
  faults_from_texts(run.arguments.faults, static_cast<int>(placed.job.ranks.size()));
  if (backend_entry(placed.job.backend).needs_gpu &&
      placed.job.ranks.front().devices.front().kind != DevicePlan::Kind::gpu)
    refuse_backend(run,
                   str(placed.job.backend, " needs a GPU for every rank, and there are fewer than the ",
                       placed.job.ranks.size(), " ranks; take fewer ranks, or gloo or mpi"),
                   Failure::device_missing);
  if (!rank_hosts.empty() && placed.job.processes.size() != rank_hosts.size())
    throw ConfigError(key_location(run, config.program.empty() ? "strategy.name" : "program"),
                      config.program.empty() ? "strategy" : "program",
                      config.program.empty() ? config.strategy.name : config.program.front(), " with backend ",
                      placed.job.backend, " needs ", placed.job.processes.size(), " processes, but ", run.as.size_from,
                      "=", rank_hosts.size(), "; start that number, or start convoy alone");
  check_min_ranks(run, placed.job);
  std::vector<std::string> notes;
  if (wants_blocks(strategy, placed.job) || frozen_names(config.model.options)) {
    const Json described = run.described.is_null() ? describe_run(run.rank_program, config, "blocks") : run.described;
    const auto model = described.at("model").get<ModelDescription>();
    check_frozen(config, model);
    if (wants_blocks(strategy, placed.job)) notes = check_blocks(strategy, placed.job, model);
  }
  const PlacementResult placement = place(placed.job, topology, config.launch, allowed);
  placed.passive = placement.shared;
  for (const std::vector<std::string>& lines :
       {plan.warnings, notes_on_rows(config, placed.job), notes, placement.warnings,
        shared_gpu_notes(placed.job, topology, host_name(), run.variables)})
    placed.warnings.insert(placed.warnings.end(), lines.begin(), lines.end());
  placed.table = placement.table;
  placed.topology = topology_json(topology);
  placed.hosts = topology;
  return placed;
}

void add_cores(const Host& host, Host& merged) {
  for (const Core& core : host.cores) {
    auto same = std::find_if(merged.cores.begin(), merged.cores.end(), [&](const Core& c) { return c.id == core.id; });
    if (same == merged.cores.end())
      merged.cores.push_back(core);
    else if (same->siblings.size() < core.siblings.size())
      *same = core;
  }
}

// Adds GPUs of one rank's view. A launcher may show each rank other GPUs, numbered from 0: equal UUIDs are one GPU.
void add_gpus(const Host& host, Host& merged) {
  const bool first = merged.gpus.empty();
  for (const Gpu& gpu : host.gpus) {
    const bool known = std::any_of(merged.gpus.begin(), merged.gpus.end(),
                                   [&](const Gpu& other) { return !gpu.uuid.empty() && other.uuid == gpu.uuid; });
    if (known || (!first && gpu.uuid.empty())) continue;
    merged.gpus.push_back(gpu);
    merged.gpus.back().index = static_cast<int>(merged.gpus.size()) - 1;
  }
}

// Refuses a plan in which a rank uses a GPU that its launcher hides from it.
void check_visible(const JobPlan& job, const std::vector<Host>& host_of_rank) {
  for (const RankPlan& rank : job.ranks) {
    const Host& host = host_of_rank.at(static_cast<size_t>(rank.process));
    for (const DevicePlan& device : rank.devices) {
      if (device.uuid.empty() ||
          std::any_of(host.gpus.begin(), host.gpus.end(), [&](const Gpu& gpu) { return gpu.uuid == device.uuid; }))
        continue;
      throw Error(Failure::device_missing, "rank ", rank.rank, " on ", host.name, " needs ", device.uuid,
                  ", which its launcher hides from it; start one rank for each visible GPU, or make all visible "
                  "(unset CUDA_VISIBLE_DEVICES; srun --gpus-per-node instead of --gpus-per-task)");
    }
  }
}

// Members of an ensemble train on one batch together, so its size counts once per member.
void check_batch_size(const RunConfig& config, double row_elements) {
  const size_t models = std::max<size_t>(member_overrides(config).size(), 1);
  const double elements = double(config.train.batch.rows) * double(models) * row_elements;
  if (elements <= most_batch_elements) return;
  const std::string key = config.train.batch.per_rank ? "train.batch.per_rank" : "train.batch.global";
  throw ConfigError(location_of(config.resolved, key), key, "is ", config.train.batch.rows, ": a batch would have ",
                    elements, " numbers, ", row_elements, " per row; at most ", most_batch_elements,
                    " are possible; use fewer rows");
}

// Refuses a watched metric that evaluations never give, before the first evaluation.
void check_watched_metrics(const PreparedRun& run) {
  const TrainConfig& train = run.config.train;
  const MemberFunctions& functions = strategy_of(run.config).members;
  const bool members = functions.watches_metric && functions.watches_metric(run.config);
  if (members && !train.early_stop.metric.empty())
    throw ConfigError(key_location(run, "train.early_stop.metric"), "train.early_stop",
                      str("ends the whole training, and strategy.early_stop of ", run.config.strategy.name,
                          " ends its members one by one; keep one of them"));
  if (!members && train.early_stop.metric.empty() && train.keep_best.metric.empty()) return;
  const Json answer = describe_run(run.rank_program, run.config, "metrics").at("metrics");
  if (answer.is_null()) return;
  const auto metrics = answer.get<EvaluationMetrics>();
  if (members) functions.check_metric(run.config, metrics);
  check_watched_metric(run.config, "train.keep_best.metric", train.keep_best.metric, metrics);
  check_watched_metric(run.config, "train.early_stop.metric", train.early_stop.metric, metrics);
}

}  // namespace

// The rows of plugins are unknown here: ranks compare them.
void check_components(const RunConfig& config) {
  const DeclaredSchema rows = declared_schema(config.data.name, config.data.options);
  check_model_rows(config.model.name, config.model.options, config.data.options, rows);
  check_transforms(config.data.options, rows);
  check_loss_rows(config.loss.options, config.data.options, rows);
  const double elements = check_model_sizes(config.model.name, config.model.options, config.data.options, rows,
                                            check_data_sizes(config.data.name, config.data.options));
  check_batch_size(config, elements);
}

bool may_use_gpus(const RunConfig& config) { return config.device != "cpu"; }

Node configuration_tree(const RunArguments& arguments) {
  if (!arguments.stored.is_null()) {
    Node tree = node_of(without_locations(arguments.stored), {{"", {arguments.config, 0, 0}}});
    for (const std::string& assignment : arguments.overrides) apply_override(tree, assignment);
    return tree;
  }
  if (arguments.program.empty()) return read_yaml_file(arguments.config, arguments.overrides);
  return program_tree(arguments.program, arguments.overrides, {"command line", 0, 0});
}

PreparedRun prepare(const RunArguments& arguments, const Variables& variables, const LaunchedAs& as) {
  return prepare(configuration_tree(arguments), arguments, variables, as);
}

PreparedRun prepare(Node tree, const RunArguments& arguments, const Variables& variables, const LaunchedAs& as) {
  PreparedRun run;
  const std::vector<Fault> faults = faults_from_texts(arguments.faults);
  run.arguments = arguments;
  run.quiet = arguments.quiet;
  run.variables = variables;
  gpu_memory_limit(variables);  // checks it before anything starts
  run.as = as;
  run.tree = tree;
  if (arguments.ranks > 0) apply_override(tree, str("launch.ranks=", arguments.ranks));
  for (const std::string& assignment : arguments.fixed) apply_override(tree, assignment);
  refuse_several(tree, arguments.config);
  run.config = read_run_tree(tree, all_catalogues());
  run.warnings = run.config.warnings;
  run.warnings.insert(run.warnings.end(), as.inherited.begin(), as.inherited.end());
  resolve_rank_count(run);
  check_backend(run);
  if (!run.config.program.empty()) {
    check_faults_of_program(faults);
    // Before the rendezvous, on each host.
    executable_path(run.config.program.front(), program_advice);
    return run;
  }
  run.rank_program = rank_program();
  check_plugins(run.config, run.rank_program);
  // A command that reads other rows than those of training has other checks.
  if (!arguments.use.is_null() && !arguments.use.at("reads_data").get<bool>()) return run;
  check_components(run.config);
  // Other hosts need not have the file, and all ranks find the same mistakes: rank 0 reports them.
  if (run.as.rank > 0) return run;
  check_data_files(run.config.data.name, run.config.data.options);
  check_init_from(run.config.model.options, run.config.train.resume);
  check_watched_metrics(run);
  return run;
}

void refuse_program(const RunConfig& config, const std::string& command) {
  if (config.program.empty()) return;
  throw ConfigError(location_of(config.resolved, "program"), "program", "has its own model and loop, but `convoy ",
                    command,
                    "` needs model, data and strategy in the file; make the model a plugin "
                    "(docs/extending.md), or type `convoy run`");
}

TypedCommand typed_command(const RunArguments& arguments) {
  std::vector<std::string> words{"convoy"};
  words.insert(words.end(), arguments.words.begin(), arguments.words.end());
  if (!arguments.config.empty()) words.push_back(arguments.config);
  for (const std::string& item : arguments.overrides)
    if (item.rfind("train.resume=", 0) != 0) words.insert(words.end(), {"--set", item});
  if (arguments.ranks > 0) words.insert(words.end(), {"--ranks", std::to_string(arguments.ranks)});
  if (!arguments.hosts.empty()) words.insert(words.end(), {"--hosts", join(arguments.hosts, ",")});
  if (arguments.nodes.nodes > 0) words.insert(words.end(), {"--nodes", std::to_string(arguments.nodes.nodes)});
  if (arguments.nodes.node >= 0) words.insert(words.end(), {"--node-rank", std::to_string(arguments.nodes.node)});
  if (!arguments.nodes.rendezvous.empty()) words.insert(words.end(), {"--rendezvous", arguments.nodes.rendezvous});
  for (std::string& word : words) word = shell_word(word);
  TypedCommand command{join(words, " ")};
  if (!arguments.program.empty()) command.program = " --";
  for (const std::string& word : arguments.program) command.program += " " + shell_word(word);
  return command;
}

RunFolderRequest folder_request(const PreparedRun& run) {
  RunFolderRequest request;
  request.output = run.arguments.output;
  request.name = run.config.name;
  request.resume = run.config.train.resume;
  request.resolved = run.config.resolved;
  request.command = typed_command(run.arguments);
  return request;
}

PlacedJob plan_and_place(const PreparedRun& run, const Topology& topology, const std::vector<int>& rank_hosts,
                         const std::vector<std::vector<int>>& allowed) {
  try {
    return plan_without_locations(run, topology, rank_hosts, allowed);
  } catch (const ConfigError& error) {
    if (!error.location().file.empty()) throw;
    add_location(error, run);
  }
}

PlacedJob placed_here(const PreparedRun& run) {
  return plan_and_place(run, Topology{{this_host({may_use_gpus(run.config), false})}});
}

PlacedJob plan_and_place(const PreparedRun& run, const std::vector<Host>& host_of_rank) {
  Topology topology;
  std::map<std::string, int> index;
  std::vector<int> rank_hosts;
  std::vector<std::vector<int>> allowed;
  for (const Host& host : host_of_rank) {
    const auto [found, fresh] = index.emplace(host.name, static_cast<int>(topology.hosts.size()));
    if (fresh) topology.hosts.push_back({host.name, {}, {}, host.memory, {}});
    Host& merged = topology.hosts[static_cast<size_t>(found->second)];
    add_cores(host, merged);
    add_gpus(host, merged);
    rank_hosts.push_back(found->second);
    allowed.push_back(host.bound.empty() ? hardware_threads_of(host.cores) : host.bound);
  }
  for (Host& host : topology.hosts)
    std::sort(host.cores.begin(), host.cores.end(), [](const Core& a, const Core& b) {
      return std::tie(a.socket, a.numa, a.id) < std::tie(b.socket, b.numa, b.id);
    });
  PlacedJob placed = plan_and_place(run, topology, rank_hosts, allowed);
  check_visible(placed.job, host_of_rank);
  return placed;
}

}  // namespace convoy
