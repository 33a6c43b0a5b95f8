#include "launch/prepare.h"

#include <algorithm>
#include <map>

#include "backends/catalogue.h"
#include "core/config/overrides.h"
#include "core/config/pipeline_texts.h"
#include "core/data/data_files.h"
#include "core/data/described_rows.h"
#include "core/inject/fault.h"
#include "launch/catalogues.h"
#include "launch/describe.h"
#include "launch/farm/read.h"
#include "launch/gpu_memory.h"
#include "launch/mps.h"
#include "launch/placement.h"
#include "launch/plugin_check.h"
#include "launch/topology.h"
#include "launch/typed_command.h"
#include "models/catalogue.h"
#include "strategies/catalogue.h"
#include "strategies/parts/members/catalogue.h"

namespace convoy {
namespace {

// Where the user wrote it, else the file.
Mark written(const PreparedRun& run, const std::string& key) {
  const Mark mark = mark_of(run.config.resolved, key);
  return mark.file.empty() ? Mark{run.arguments.config, 0, 0} : mark;
}

// Plans are made without knowing where keys were written.
[[noreturn]] void locate(const ConfigError& error, const PreparedRun& run) {
  const std::string prefix = error.key() + ": ";
  std::string reason = error.what();
  if (reason.rfind(prefix, 0) == 0) reason.erase(0, prefix.size());
  throw ConfigError(written(run, error.key()), error.key(), reason, error.kind());
}

const BackendEntry& backend_entry(const std::string& name) {
  for (const BackendEntry& entry : backend_catalogue())
    if (entry.name == name) return entry;
  throw Error(Failure::internal, str("backend '", name, "' is not in the catalogue"));
}

// The launcher decides how many ranks there are; a file's own number is for whoever starts it alone. Who types another
// number beside the launcher's has made a mistake.
void settle_rank_count(PreparedRun& run) {
  const int64_t wanted = run.config.launch.ranks;
  if (run.as.launcher == Launcher::none || wanted == 0 || wanted == run.as.size) return;
  const Mark mark = written(run, "launch.ranks");
  const bool typed = mark.file.rfind("--set", 0) == 0;
  if (typed)
    throw ConfigError(mark, run.arguments.ranks > 0 ? "--ranks" : "launch.ranks",
                      str(wanted, " contradicts ", run.as.size_from, "=", run.as.size, ": ", name_of(run.as.launcher),
                          " started ", run.as.size, "; leave it out"));
  run.warnings.push_back(str(run.arguments.config, ": launch.ranks: ", wanted, " is for convoy alone; ",
                             name_of(run.as.launcher), " started ", run.as.size, " (", run.as.size_from, ")"));
  run.config.launch.ranks = run.as.size;
  run.config.resolved["launch"]["ranks"] = run.as.size;
}

// What a named backend needs that is known before planning.
void check_backend(const PreparedRun& run) {
  const std::string& name = run.config.backend;
  if (name == "auto") return;
  const BackendEntry& entry = backend_entry(name);
  if (!entry.built)
    throw ConfigError(written(run, "backend"), "backend", str("this build has no ", name, "; ", entry.how_to_get));
  const bool several = run.as.launcher != Launcher::none && run.as.size > 1;
  if (entry.threads_only && several)
    throw ConfigError(written(run, "backend"), "backend",
                      str(name, " reaches the threads of one process only, and ", name_of(run.as.launcher), " started ",
                          run.as.size, "; use gloo or mpi, or start convoy alone"));
  if (name == "mpi" && several && !run.as.pmi)
    throw ConfigError(
        written(run, "backend"), "backend",
        run.as.launcher == Launcher::slurm
            ? "mpi under srun needs its PMIx: type `srun --mpi=pmix …`, or use gloo"
            : str("mpi cannot find its peers under ", name_of(run.as.launcher), "; use gloo, or start with mpirun"));
}

void resolve_backend(RunConfig& config, const PreparedRun& run, const Topology& topology,
                     const std::vector<int>& rank_hosts) {
  bool gpus = std::any_of(topology.hosts.begin(), topology.hosts.end(), [](const Host& h) { return !h.gpus.empty(); });
  // Where ranks outnumber GPUs, `device: auto` means cores.
  for (size_t host = 0; gpus && config.device == "auto" && host < topology.hosts.size(); ++host)
    gpus = std::count(rank_hosts.begin(), rank_hosts.end(), static_cast<int>(host)) <=
           static_cast<std::ptrdiff_t>(topology.hosts[host].gpus.size());
  const bool on_gpus = gpus && config.device != "cpu";
  if (config.backend == "auto") {
    if (run.as.pmi && run.as.size > 1 && !on_gpus && backend_entry("mpi").built) config.backend = "mpi";
    return;
  }
  if (backend_entry(config.backend).needs_gpu && !on_gpus)
    throw ConfigError(written(run, "backend"), "backend",
                      str(config.backend, " needs GPUs, and ",
                          config.device == "cpu" ? "device is cpu" : "none was found", "; use gloo or mpi"),
                      Failure::device_missing);
}

// Ranks and micro-batches that get no rows of a global batch. They change no result, and they train nothing.
std::vector<std::string> notes_on_rows(const RunConfig& config, const Job& job) {
  std::vector<std::string> notes;
  const BatchSize& batch = config.train.batch;
  const int64_t shares = job.mesh.degree("data"), ranks = static_cast<int64_t>(job.ranks.size());
  if (!batch.per_rank && batch.rows < shares) {
    const int64_t idle = (shares - batch.rows) * (ranks / shares);
    notes.push_back(str("train.batch: a global batch of ", batch.rows, batch.rows == 1 ? " row" : " rows", " leaves ",
                        idle, " of ", ranks,
                        " ranks without rows in every step; type --set train.batch.global=", shares, " or more, or ",
                        ranks == shares ? str("--ranks ", batch.rows) : "fewer ranks along data"));
    return notes;  // every rank with rows has one
  }
  const Json& strategy = job.config.at("strategy");
  const Json slices = strategy.value("micro_batches", Json(1));
  const int64_t rows = batch.per_rank ? batch.rows : batch.rows / shares;
  if (slices.is_number_integer() && rows < slices.get<int64_t>())
    notes.push_back(str("strategy.micro_batches: ", slices.get<int64_t>(), " of the ", rows,
                        rows == 1 ? " row" : " rows", " that a rank has in a step: ", slices.get<int64_t>() - rows,
                        " have no rows; type --set strategy.micro_batches=", rows, ", or a larger train.batch"));
  return notes;
}

Placed plan_unlocated(const PreparedRun& run, const Topology& topology, const std::vector<int>& rank_hosts,
                      const std::vector<std::vector<int>>& allowed) {
  RunConfig config = run.config;
  resolve_backend(config, run, topology, rank_hosts);
  PlanRequest request;
  request.ranks = rank_hosts.empty() ? static_cast<int>(config.launch.ranks) : static_cast<int>(rank_hosts.size());
  request.rank_hosts = rank_hosts;
  const StrategyEntry& strategy = strategy_entry(config.strategy.name);
  Plan plan = strategy.plan(config, topology, request);
  if (plan.farm) {
    Placed placed;
    placed.warnings = plan.warnings;
    placed.farm = plan.farm;
    return placed;
  }
  CONVOY_CHECK(plan.jobs.size() == 1, "strategy ", config.strategy.name, " planned ", plan.jobs.size(), " jobs");
  Placed placed;
  placed.job = std::move(plan.jobs.front());
  faults_from_texts(run.arguments.faults, static_cast<int>(placed.job.ranks.size()));
  if (backend_entry(placed.job.backend).needs_gpu &&
      placed.job.ranks.front().devices.front().kind != DevicePlan::Kind::gpu)
    throw ConfigError(written(run, "backend"), "backend",
                      str(placed.job.backend, " needs a GPU for every rank, and there are fewer than the ",
                          placed.job.ranks.size(), " ranks; take fewer ranks, or gloo or mpi"),
                      Failure::device_missing);
  if (!rank_hosts.empty() && placed.job.processes.size() != rank_hosts.size())
    throw ConfigError(
        written(run, "strategy.name"), "strategy",
        str(config.strategy.name, " with backend ", placed.job.backend, " wants ", placed.job.processes.size(),
            " processes, but ", run.as.size_from, "=", rank_hosts.size(), "; start that many, or start convoy alone"));
  std::vector<std::string> notes;
  if (wants_blocks(strategy, placed.job)) {
    const Json described =
        run.described.is_null() ? describe_run(run.rank_program, config.resolved, "blocks") : run.described;
    notes = check_blocks(strategy, placed.job, description_from_json(described.at("model")));
  }
  const PlacementResult placement = place(placed.job, topology, config.launch, allowed);
  placed.passive = placement.shared;
  placed.warnings = plan.warnings;
  for (std::string& note : notes_on_rows(config, placed.job)) placed.warnings.push_back(std::move(note));
  placed.warnings.insert(placed.warnings.end(), notes.begin(), notes.end());
  placed.warnings.insert(placed.warnings.end(), placement.warnings.begin(), placement.warnings.end());
  for (std::string& note : shared_gpu_notes(placed.job, topology, host_name(), run.variables))
    placed.warnings.push_back(std::move(note));
  placed.table = placement.table;
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

// A launcher may show each rank other GPUs of the host, all of them numbered from 0: the UUID says which are the same.
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

// A rank can use no GPU that its launcher hides from it.
void check_visible(const Job& job, const std::vector<Host>& host_of_rank) {
  for (const RankPlan& rank : job.ranks) {
    const Host& host = host_of_rank.at(static_cast<size_t>(rank.process));
    for (const DevicePlan& device : rank.devices) {
      if (device.uuid.empty()) continue;
      if (std::any_of(host.gpus.begin(), host.gpus.end(), [&](const Gpu& gpu) { return gpu.uuid == device.uuid; }))
        continue;
      throw Error(Failure::device_missing,
                  str("rank ", rank.rank, " on ", host.name, " is to use ", device.uuid,
                      ", which its launcher hides from it; start one rank for each GPU that is shown, or show all "
                      "(unset CUDA_VISIBLE_DEVICES; srun --gpus-per-node instead of --gpus-per-task)"));
    }
  }
}

// Members of an ensemble work on the batch together.
void check_batch_size(const RunConfig& config, double row_elements) {
  const Json& strategy = config.strategy.options.json();
  const bool several = strategy.contains("members") && strategy["members"].is_number_integer();
  const double members = several ? double(strategy["members"].get<int64_t>()) : 1;
  const double elements = double(config.train.batch.rows) * members * row_elements;
  if (elements <= most_batch_elements) return;
  const std::string key = config.train.batch.per_rank ? "train.batch.per_rank" : "train.batch.global";
  throw ConfigError(mark_of(config.resolved, key), key,
                    str("is ", config.train.batch.rows, ", which makes a batch of ", elements, " numbers at ",
                        row_elements, " a row; ", most_batch_elements, " are the most; take fewer rows"));
}

// Rows against what is to be done with them, as far as options tell. What a plugin brings, ranks compare.
void check_parts_fit(const RunConfig& config) {
  const DescribedRows rows = described_rows(config.data.name, config.data.options);
  check_model_rows(config.model.name, config.model.options, config.data.options, rows);
  check_transforms(config.data.options, rows);
  check_loss_rows(config.loss.options, config.data.options, rows);
  const double elements = check_model_sizes(config.model.name, config.model.options, config.data.options, rows,
                                            check_data_sizes(config.data.name, config.data.options));
  check_batch_size(config, elements);
}

// A figure that evaluations never tell would be found out behind the first of them.
void check_figures(const PreparedRun& run) {
  if (!watches_figures(run.config)) return;
  const Json told = describe_run(run.rank_program, run.config.resolved, "figures").at("figures");
  if (!told.is_null()) check_watched_figures(run.config, evaluation_figures_from_json(told));
}

// Of a file that is no run, everything that is wrong with it.
void refuse_with_all_mistakes(const ReadRequest& request) {
  const Catalogues catalogues = all_catalogues();
  RunTreesReader reader(catalogues);
  reader.read(read_yaml_file(request.path, request.overrides));
  refuse_all(reader.mistakes());
}

// A file of several runs may lack what one run must have; then that is no mistake of it.
RunConfig read_one_run(const ReadRequest& request, const RunArguments& arguments) {
  try {
    RunConfig config = read_run_config(request, all_catalogues());
    if (strategy_entry(config.strategy.name).pipelines != nullptr) refuse_several(arguments);
    return config;
  } catch (const ConfigError&) {
    refuse_several(arguments);
    refuse_with_all_mistakes(request);
    throw;
  }
}

}  // namespace

bool wants_gpus(const RunConfig& config) { return config.device != "cpu"; }

PreparedRun prepare(const RunArguments& arguments, const Variables& variables, const LaunchedAs& as) {
  PreparedRun run;
  faults_from_texts(arguments.faults);
  run.arguments = arguments;
  run.variables = variables;
  gpu_memory_limit(variables);  // what is wrong with it is told now
  run.as = as;
  ReadRequest request{arguments.config, arguments.overrides};
  if (arguments.ranks > 0) request.overrides.push_back(str("launch.ranks=", arguments.ranks));
  request.overrides.insert(request.overrides.end(), arguments.fixed.begin(), arguments.fixed.end());
  run.config = read_one_run(request, arguments);
  run.warnings = run.config.warnings;
  run.warnings.insert(run.warnings.end(), as.inherited.begin(), as.inherited.end());
  settle_rank_count(run);
  check_backend(run);
  run.rank_program = rank_program();
  check_plugins(run.config, run.rank_program);
  check_parts_fit(run.config);
  // Other hosts need not have the file at all, and all ranks meet the same mistakes: the first tells.
  if (run.as.rank > 0) return run;
  check_data_files(run.config.data.name, run.config.data.options);
  check_figures(run);
  return run;
}

FolderRequest folder_request(const PreparedRun& run) {
  FolderRequest request;
  request.output = run.arguments.output;
  request.name = run.config.name;
  request.resume = run.config.train.resume;
  request.resolved = run.config.resolved;
  request.command = typed_command(run.arguments);
  return request;
}

Placed plan_and_place(const PreparedRun& run, const Topology& topology, const std::vector<int>& rank_hosts,
                      const std::vector<std::vector<int>>& allowed) {
  try {
    return plan_unlocated(run, topology, rank_hosts, allowed);
  } catch (const ConfigError& error) {
    if (!error.mark().file.empty()) throw;
    locate(error, run);
  }
}

Placed plan_and_place(const PreparedRun& run, const std::vector<Host>& host_of_rank) {
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
    allowed.push_back(host.bound.empty() ? units_of(host.cores) : host.bound);
  }
  for (Host& host : topology.hosts)
    std::sort(host.cores.begin(), host.cores.end(), [](const Core& a, const Core& b) {
      return std::tie(a.socket, a.numa, a.id) < std::tie(b.socket, b.numa, b.id);
    });
  Placed placed = plan_and_place(run, topology, rank_hosts, allowed);
  if (placed.farm)
    throw ConfigError(
        written(run, "strategy"), "strategy",
        str("wants its runs queued, which ", name_of(run.as.launcher), " has no slots for; start convoy alone"));
  check_visible(placed.job, host_of_rank);
  return placed;
}

}  // namespace convoy
