#include "launch/rank/rank.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "api/components.h"
#include "core/backend.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/initial_weights.h"
#include "core/checkpoint/stored_files.h"
#include "core/config/run_config.h"
#include "core/context.h"
#include "core/control/assignment.h"
#include "core/control/channel.h"
#include "core/control/exit_codes.h"
#include "core/data/catalogue/declared_schema.h"
#include "core/data/dataset.h"
#include "core/data/loader.h"
#include "core/data/readers/column_cache.h"
#include "core/data/sampler.h"
#include "core/data/sets/interactions.h"
#include "core/files/limits.h"
#include "core/files/summary.h"
#include "core/inject/injector.h"
#include "core/rank_state/position.h"
#include "core/strategy.h"
#include "core/tensors/compare.h"
#include "core/trainer.h"
#include "launch/rank/measure/bench.h"
#include "launch/rank/use/use.h"
#include "models/registry.h"
#include "strategies/registry.h"

namespace convoy {

// Snapshots for `convoy verify`: after every update the state with gradients is saved as a checkpoint. The reference
// run keeps them. The configured run compares its snapshots with the reference's and removes both.
//
// Sparse embeddings stay stale as in training, so that catch-up is compared too. Their gradients are compared after
// every update; their values and moments after the last one, when they are flushed.
//
// Results go to FOLDER/differences.json, a list of StepDifferences (core/base/difference.h). It is rewritten after each
// update, so that a run that fails later leaves its results.
// Threads: the rank's thread; collective over the job. Failure: exceptions of checkpoints.

class Snapshots {
 public:
  // `request` has these fields. "folder": folder of the snapshots. "reference": the reference's folder, "" for the
  // reference itself, or a list of one folder per member for an ensemble. "shares": number of shares of a global batch
  // in the configured run. "splits": true if that run splits the rows of an update, by shares or gradient accumulation.
  Snapshots(const Context& context, Strategy& strategy, const Json& request);
  // Reports an error of the loss to `convoy verify`, in FOLDER/loss_fault.txt. Used by the reference.
  void note_loss_fault(const std::string& fault);
  // Reports that all shares of all steps are equal, by the file FOLDER/no_uneven_batch.txt. Used by the reference.
  void note_no_uneven_batch();
  // Collective. Call it after setup (0 steps) and after each update, up to Context::total_steps.
  void take(int64_t steps_done);

 private:
  void note(const std::string& file, const std::string& text) const;
  void compare_step(int64_t steps_done);
  StateView reference_state(const std::string& folder, int64_t steps_done) const;

  const Context& context_;
  Strategy& strategy_;
  std::string folder_;
  std::vector<std::string> references_;  // empty: this run is the reference; several: by member
  bool ensemble_ = false;
  Checkpoints checkpoints_;
  std::set<std::string> stale_;  // keys that are not compared after this step
  Json differences_ = Json::array();
};

namespace {

std::string step_folder(const std::string& folder, int64_t step) { return str(folder, "/step-", step); }

StateView without(StateView state, const std::function<bool(const std::string& key)>& left_out) {
  state.keys.erase(std::remove_if(state.keys.begin(), state.keys.end(), left_out), state.keys.end());
  return state;
}

// Leaves out state of single replicas: the reference has one replica.
StateView without_replica_state(StateView state) {
  return without(std::move(state), [](const std::string& key) { return key.find("@replica") != std::string::npos; });
}

}  // namespace

Snapshots::Snapshots(const Context& context, Strategy& strategy, const Json& request)
    : context_(context),
      strategy_(strategy),
      folder_(request.at("folder").get<std::string>()),
      ensemble_(request.at("reference").is_array()),
      checkpoints_(context, folder_, 0) {
  const Json& reference = request.at("reference");
  if (ensemble_)
    references_ = reference.get<std::vector<std::string>>();
  else if (!reference.get<std::string>().empty())
    references_ = {reference.get<std::string>()};
}

void Snapshots::note_loss_fault(const std::string& fault) { note("loss_fault.txt", fault); }

void Snapshots::note_no_uneven_batch() { note("no_uneven_batch.txt", "none"); }

void Snapshots::note(const std::string& file, const std::string& text) const {
  if (text.empty() || context_.rank != 0) return;
  std::filesystem::create_directories(folder_);
  write_whole(folder_ + "/" + file, text, false);
}

void Snapshots::take(int64_t steps_done) {
  const bool last = steps_done >= context_.total_steps;
  last ? strategy_.flush() : strategy_.flush_for_evaluation();
  stale_.clear();
  strategy_.visit_state([this](const StateEntry& entry) {
    if (entry.stale) stale_.insert(entry.key());
  });
  checkpoints_.save(strategy_, {steps_done, Json::object()}, true);
  // Other ranks continue until the next collective.
  if (!references_.empty() && context_.rank == 0) compare_step(steps_done);
}

StateView Snapshots::reference_state(const std::string& folder, int64_t steps_done) const {
  return without(stored_state(step_folder(folder, steps_done)),
                 [this](const std::string& key) { return stale_.count(key) > 0; });
}

void Snapshots::compare_step(int64_t steps_done) {
  const std::string mine = step_folder(folder_, steps_done);
  const bool updated = std::all_of(references_.begin(), references_.end(), [&](const std::string& reference) {
    return std::filesystem::exists(step_folder(reference, steps_done));
  });
  StepDifferences step = update_in_one_run(steps_done, "is made by an update, and the reference made none then");
  if (updated) step.tensors.clear();
  for (size_t i = 0; i < references_.size() && updated; ++i) {
    const int member = ensemble_ ? static_cast<int>(i) : -1;
    for (TensorDifference& tensor :
         compare(without_replica_state(stored_state(mine, member)), reference_state(references_[i], steps_done))) {
      if (ensemble_) tensor.name += str("@member", member);
      step.tensors.push_back(std::move(tensor));
    }
  }
  differences_.push_back(to_json(step));
  write_whole(folder_ + "/differences.json", differences_.dump(), false);
  // A snapshot has at least four times the size of the model, so both are removed before the next step.
  std::filesystem::remove_all(mine);
  for (const std::string& reference : references_) std::filesystem::remove_all(step_folder(reference, steps_done));
}

// Data check: all processes of a job train on the same data set. The process of rank 0 compares it with the checkpoint
// from which the run resumes, and decides. The other processes check that their data is equal, and follow.
//
// Each process calls it once, before it creates the model; it returns when all processes have read their data. A
// process that joins a running job waits for no other. With other numbers for users, items or classes, parameters would
// get other shapes or belong to other ids. Failure: ConfigError at data.path. Kinds: `config` for a checkpoint that
// train.resume names, `output` for a checkpoint in the run folder, `disagreement` for a host with other data.

struct DataCheck {
  const RunConfig& config;
  std::string folder;  // of the run
  int process = 0, processes = 1;
  bool first = true;  // this process has rank 0
  std::string host;   // of this process
  Channel* channel = nullptr;
  Json decided = {};   // protocol::checked_data of the job that this process joins; null: the processes decide
  bool trains = true;  // false: a command uses the trained run, and other data is the user's intention
};

// Returns `data` itself, or the same rows with the checkpoint's numbers for ids and classes.
DatasetPtr check_data(const DatasetPtr& data, const DataCheck& check);

namespace {

// Longer than any reading: the supervisor ends a job without progress after launch.rendezvous.
constexpr Timeout reading_limit = std::chrono::hours(24 * 30);

class DataChecker {
 public:
  DataChecker(const DatasetPtr& data, const DataCheck& check)
      : data_(data), check_(check), config_(check.config), mine_(data->contents()) {}

  DatasetPtr run() {
    if (!check_.decided.is_null()) return follow(check_.decided);
    std::string numbers;  // the checkpoint whose numbers are used; "": those of the data
    DatasetPtr used = data_;
    if (const auto resumed = check_.first ? resumed_data(config_.train.resume, check_.folder) : std::nullopt) {
      used = resume_data(*resumed);
      if (used != data_) numbers = resumed->path;
    }
    const Json message{
        {"first", check_.first}, {"fingerprint", mine_.fingerprint}, {"host", check_.host}, {"numbers", numbers}};
    if (check_.first) check_.channel->post(protocol::checked_data, message);
    if (check_.processes == 1) return used;
    // Ranks start their rendezvous only after all processes have read their data.
    const std::vector<std::string> all =
        check_.channel->agree(protocol::data, check_.process, check_.processes, message.dump(), reading_limit);
    if (check_.first) return used;
    for (const std::string& text : all)
      if (const Json other = Json::parse(text); other.at("first")) return follow(other);
    throw Error(Failure::internal, "no process of the job has rank 0");
  }

 private:
  DatasetPtr resume_data(const ResumedData& resumed) {
    if (mine_.fingerprint.empty()) {
      log::warning(str("data set ", config_.data.name, " does not identify its data (Dataset::contents), so it ",
                       "cannot be compared with that of ", resumed.path, ": give the same data"));
      return data_;
    }
    if (!resumed.contents) {
      log::warning(str(resumed.path, " does not identify its data, because an earlier version wrote it: ",
                       "give the same data, which cannot be checked"));
      return data_;
    }
    const DataChange change = data_change(*resumed.contents, mine_);
    if (!change.unknown.empty() || (!change.other.empty() && !allowed())) refuse(resumed.path, change);
    if (!change.other.empty() && check_.trains)
      log::warning(str("data.changed is allow: the run resumes from ", resumed.path, " with other data (",
                       change.text(), ")", change.renumber ? " and the checkpoint's numbers" : "",
                       "; best values of metrics start anew"));
    return change.renumber ? numbered(*resumed.contents) : data_;
  }

  DatasetPtr follow(const Json& first) const {
    if (first.at("fingerprint") != mine_.fingerprint)
      fail(Failure::disagreement,
           str("differs on host ", check_.host, " from what rank 0 reads on ", first.at("host").get<std::string>(),
               "; copy it from there, or use storage that all hosts share"));
    const std::string path = first.at("numbers");
    if (path.empty()) return data_;
    const auto stored = stored_contents(read_manifest_file(path), path);
    if (!stored)
      throw Error(Failure::io, path, ": host ", check_.host,
                  " cannot read its lists of ids, but rank 0 can; share the run folder");
    return numbered(*stored);
  }

  DatasetPtr numbered(const DataContents& stored) const {
    const DatasetPtr made = data_->numbered_as(stored);
    if (!made)
      fail(Failure::config,
           str("numbers ids or classes differently from the checkpoint, but data set ", config_.data.name,
               " cannot use the checkpoint's numbers (Dataset::numbered_as); give the same data"));
    return made;
  }

  bool allowed() const {
    return config_.data.options.has("changed") && config_.data.options.text("changed") == "allow";
  }

  [[noreturn]] void refuse(const std::string& path, const DataChange& change) const {
    if (!check_.trains)
      fail(Failure::config, str("has what the model does not know: ", change.text(),
                                "; give data with the ids, classes ", "and columns of the training"));
    const bool automatic = config_.train.resume == "auto";
    const std::string anew = automatic
                                 ? "start anew: give another --output, or --set train.resume=never without --output"
                                 : "start anew with --set train.resume=never";
    fail(automatic ? Failure::output : Failure::config,
         str("is not the data that ", path, " was trained on: ", change.text(), "; ",
             change.unknown.empty()
                 ? "type --set data.changed=allow to continue with this data and the checkpoint's numbers, or "
                 : "give data that the checkpoint knows, or ",
             anew));
  }

  [[noreturn]] void fail(Failure kind, const std::string& reason) const {
    const Json& data = config_.resolved.at("data");
    const std::string key = data.contains("path") ? "data.path" : "data";
    throw ConfigError(location_of(config_.resolved, key), key, reason, kind);
  }

  const DatasetPtr& data_;
  const DataCheck& check_;
  const RunConfig& config_;
  const DataContents mine_;
};

}  // namespace

DatasetPtr check_data(const DatasetPtr& data, const DataCheck& check) { return DataChecker(data, check).run(); }

namespace {

// The training, or the measurement, of one rank.
class RankTraining {
 public:
  // `kept`: state for the training that continues if a peer is lost; null: it ends.
  RankTraining(Rank& rank, const ProcessAssignment& assignment, const Registry& registry, const Components& trained,
               KeptTraining* kept)
      : rank_(rank), assignment_(assignment), registry_(registry), trained_(trained), kept_(kept) {}

  // Returns 0 or an exit code. Failures have been reported, except lost_peer().
  int run() {
    try {
      Context context = rank_.start(registry_);
      if (!assignment_.bench.is_null())
        rank_.end(context, run_bench(context, assignment_.bench));
      else if (!assignment_.use.is_null())
        rank_.end(context, use_run(context));
      else
        return train_rank(context);
      return 0;
    } catch (...) {
      const TranslatedException failure = translate_exception(Failure::training);
      if (kept_ == nullptr || failure.kind != Failure::peer_lost) return rank_.fail(failure);
      lost_peer_ = failure;
      return exit_code_of(failure.kind);
    }
  }

  const std::optional<TranslatedException>& lost_peer() const { return lost_peer_; }

 private:
  TrainingResult use_run(const Context& context) {
    UseContext use(context, assignment_.use, registry_, trained_, rank_.injector());
    const Json result = make_use(assignment_.use.at("command"))->run(use);
    return {false, {{"use", result}}, Json::object()};
  }

  int train_rank(Context& context) {
    const RunConfig& config = context.config;
    const std::shared_ptr<Injector> injector = rank_.injector();
    context.state->phase(building_phase);
    std::unique_ptr<Strategy> strategy = registry_.strategies.make(config.strategy.name, config.strategy.options);
    TrainingComponents parts{trained_.data, trained_.transforms, strategy.get()};
    parts.shares_device = rank_.shares_gpu();
    parts.kept = kept_;
    const std::optional<int64_t> uneven = uneven_rows_here(strategy->sampling(), context);
    if (uneven) parts.train_rows = *uneven;
    const int64_t rows = rows_per_epoch(strategy->sampling(), config, rows_to_train_on(parts));
    const TrainingLength length = training_length(config.train, rows, context.mesh.degree("data"));
    context.steps_per_epoch = length.steps_per_epoch;
    context.total_steps = length.total_steps;

    const std::string loss_fault = loss_fault_here(context, length);
    strategy->setup(context, injector->decorate(trained_.model), trained_.loss);
    parts.initial_values = [&] {
      load_initial_weights(context, *strategy, weight_names(config.model.name, config.model.options));
    };
    if (!injector->idle()) {
      parts.reached = [&injector](InjectPoint point, int64_t number) { injector->reached(point, number); };
      parts.files = &injector->decorate(uncached_files());
    }
    std::optional<Snapshots> snapshots;
    if (!assignment_.snapshots.is_null()) {
      snapshots.emplace(context, *strategy, assignment_.snapshots);
      snapshots->note_loss_fault(loss_fault);
      const int64_t shares = assignment_.snapshots.at("shares").get<int64_t>();
      if (!uneven && !has_uneven_batch(rows, length.global_rows, length.total_steps, shares))
        snapshots->note_no_uneven_batch();
      parts.after_update = [&](int64_t steps_done) { snapshots->take(steps_done); };
    }
    const TrainingResult result = train(context, parts);
    rank_.end(context, result);
    return result.stopped ? exit_code_of(Failure::stopped) : 0;
  }

  // `convoy verify` limits the rows so that one global batch has uneven shares, if possible.
  std::optional<int64_t> uneven_rows_here(const Sampling& sampling, const Context& context) const {
    if (assignment_.snapshots.is_null()) return std::nullopt;
    const RunConfig& config = assignment_.job.config;
    const int64_t rows = trained_.data->size(Split::train);
    const MemberSample sample =
        sampling.samples.empty() ? member_sample(config.data.options, config.seed) : sampling.samples.front();
    const int64_t global_rows = training_length(config.train, rows, context.mesh.degree("data")).global_rows;
    return uneven_rows(sample, rows, global_rows, config.train.max_steps, assignment_.snapshots.at("shares"));
  }

  // Returns why the loss of `convoy verify` is no sum over rows; "" if it is. The reference run checks this for every
  // strategy, because a mean is wrong with uneven batches of one rank too.
  std::string loss_fault_here(const Context& context, const TrainingLength& length) const {
    const Json& request = assignment_.snapshots;
    if (request.is_null() || request.at("reference") != "") return "";
    const RunConfig& config = context.config;
    const Sampler sampler(trained_.data->size(Split::train), length.global_rows,
                          member_sample(config.data.options, config.seed));
    LoaderOptions options = LoaderOptions::from(config.data.options, config.seed);
    options.device = context.devices.front();
    Loader loader(trained_.data, trained_.transforms, sampler, 0, 1, options);
    return loss_fault(context, trained_.model, trained_.loss, *loader.next(), request.at("splits").get<bool>());
  }

  Rank& rank_;
  const ProcessAssignment& assignment_;
  const Registry& registry_;
  const Components& trained_;  // empty in a job that does not train
  KeptTraining* const kept_;
  std::optional<TranslatedException> lost_peer_;
};

// Creates the components, with one check of the data for all processes of the job.
Components make_checked_components(const ProcessAssignment& assignment, const Registry& registry, Channel& channel) {
  const RunConfig& config = assignment.job.config;
  const bool first = assignment.job.processes[static_cast<size_t>(assignment.process)].ranks.front() == 0;
  const DataCheck check{config,
                        assignment.folder,
                        assignment.process,
                        static_cast<int>(assignment.job.processes.size()),
                        first,
                        host_name(),
                        &channel,
                        assignment.data,
                        assignment.use.is_null()};
  return make_components(config, registry, [&](const DatasetPtr& data) { return check_data(data, check); });
}

// Returns the first exit code of a failure in this process that is not a lost peer, else the first code that is not 0.
int worst_of(const std::vector<int>& codes) {
  int worst = 0;
  for (int code : codes)
    if (code != 0 && (worst == 0 || worst == protocol::peer_lost_exit)) worst = code;
  return worst;
}

// Largest number of parameters for a real measurement, if fake tensors are not supported.
constexpr int64_t most_real_parameters = 1 << 26;

void measure(const Components& components, const RunConfig& config, MeasuredTensors tensors,
             ModelDescription& description) {
  constexpr int64_t rows = 2;
  Batch batch = components.data->gather_once(Split::train, at::arange(rows), 0);
  batch.global_rows = batch.nominal_rows = rows;
  measure_activations(config, components.model, components.loss, batch, description, tensors);
  const bool tables = std::any_of(description.blocks.begin(), description.blocks.end(),
                                  [](const BlockDescription& block) { return !block.tables.empty(); });
  if (tables) measure_lookups(config, components.model, components.loss, *components.data, description, tensors);
}

// Recommends a full ranking where its scores cost at most three epochs of training. A training instance counts as three
// scores: forward, and twice that backward.
std::string ranking_advice(const Dataset& data, const RunConfig& config) {
  constexpr double cheap = 3, scores_per_instance = 3;
  const Interactions* all = data.interactions();
  const Json& options = config.resolved.at("data");
  if (all == nullptr || options.value("ranking", "") != "sampled" || data.size(Split::evaluate) == 0) return "";
  const Json rows = options.value("rows", Json());  // of synthetic data, which is described with fewer
  const double trained = rows.is_number() ? rows.get<double>() : double(data.size(Split::train));
  const double epochs =
      double(all->users) * double(all->items) / (scores_per_instance * trained * double(data.instances_per_row()));
  if (epochs > cheap) return "";
  return str("evaluation ranks ", options.value("candidates", Json(99)), " drawn candidates. Ranking all ", all->items,
             " items costs at most as much as ", std::max(0.1, std::round(epochs * 10) / 10),
             " epochs of training, and its metrics order models correctly: data.ranking=full");
}

}  // namespace

DescribedBlocks describe_blocks(const RunConfig& config, const Registry& registry, bool activations) {
  const Components components = make_components(config, registry);
  const ModelDescription counted = describe_model(*components.model, config.precision);
  const std::string advice = ranking_advice(*components.data, config);
  if (!activations) return {counted, "", advice};
  at::set_num_threads(1);
  DescribedBlocks described{counted, "", advice};
  try {
    measure(components, config, MeasuredTensors::fake, described.model);
    return described;
  } catch (const std::exception& error) {
    described = {counted, error.what(), advice};
  }
  int64_t parameters = 0;
  for (const BlockDescription& block : counted.blocks) parameters += block.parameters;
  if (parameters > most_real_parameters) return described;
  measure(components, config, MeasuredTensors::real, described.model);
  return {described.model, "", advice};
}

namespace {

// Continues with the ranks that are left each time that a peer is lost.
int run_rank_without_lost_peers(RankProcess& process, const Registry& registry, const Components& trained) {
  KeptTraining kept;
  while (true) {
    std::optional<TranslatedException> lost;
    {
      const FileProgress progress(process.opened());
      RankTraining training(*process.ranks().front(), process.assignment(), registry, trained, &kept);
      const int code = training.run();
      if (!training.lost_peer()) return code;
      lost = training.lost_peer();
    }
    if (!process.join_next())
      return process.ranks().empty() ? exit_code_of(lost->kind) : process.ranks().front()->fail(*lost);
    if (!process.assignment().in_memory) kept.clear();
  }
}

}  // namespace

int run_ranks(RankProcess& process, const Registry& registry) {
  const ProcessAssignment& assignment = process.assignment();
  process.open(reading_phase);
  std::optional<FileProgress> progress(process.opened());
  const CacheLockLimit limit(assignment.job.config.launch.rendezvous / 2);
  Components trained;
  const bool reads_data = assignment.use.is_null() || assignment.use.at("reads_data").get<bool>();
  if (assignment.bench.is_null() && reads_data)
    trained = make_checked_components(assignment, registry, process.channel());

  if (continues_without_lost_ranks(assignment)) {
    progress.reset();  // its files belong to ranks of one membership
    return run_rank_without_lost_peers(process, registry, trained);
  }
  const std::vector<std::unique_ptr<Rank>>& ranks = process.ranks();
  std::vector<int> codes(ranks.size(), 0);
  auto run = [&](size_t i) { codes[i] = RankTraining(*ranks[i], assignment, registry, trained, nullptr).run(); };
  // The first rank runs in the main thread, which MPI and debuggers prefer.
  std::vector<std::thread> threads;
  for (size_t i = 1; i < ranks.size(); ++i) threads.emplace_back(run, i);
  run(0);
  for (std::thread& thread : threads) thread.join();
  return worst_of(codes);
}

}  // namespace convoy
