#include "launch/rank/rank.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "backends/registry.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/data/catalogue/declared_schema.h"
#include "core/data/loader.h"
#include "core/data/readers/column_cache.h"
#include "core/data/sampler.h"
#include "core/files/limits.h"
#include "core/inject/injector.h"
#include "core/rank_state/position.h"
#include "core/trainer.h"
#include "launch/machine/topology.h"
#include "launch/process/exit_codes.h"
#include "launch/rank/components.h"
#include "launch/rank/crash.h"
#include "launch/rank/data_check.h"
#include "launch/rank/measure/bench.h"
#include "launch/rank/snapshots.h"
#include "strategies/registry.h"

namespace convoy {
namespace {

Timeout milliseconds(double seconds) { return Timeout(static_cast<int64_t>(seconds * 1000)); }

// Returns the reason as JSON that fits into a state file: shortens the message, so that the JSON stays valid.
std::string short_json(Abort reason) {
  constexpr size_t room = 4095;
  std::string text = to_json(reason).dump();
  while (text.size() > room && !reason.message.empty()) {
    const size_t excess = std::min(reason.message.size(), text.size() - room);
    reason.message.resize(utf8_prefix(reason.message.data(), reason.message.size(), reason.message.size() - excess));
    text = to_json(reason).dump();
  }
  return text;
}

// Maps a device of the plan to this process's GPU numbers: the launcher shows each process only its own GPUs.
at::Device device_of(const std::vector<std::string>& shown, const DevicePlan& plan) {
  if (plan.kind != DevicePlan::Kind::gpu) return at::Device(at::kCPU);
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(gpu_index_in(shown, plan)));
}

// Shared by the ranks of a process; read-only components are created once.
struct Shared {
  const ProcessAssignment& assignment;
  const Registry& registry;
  std::shared_ptr<Channel> channel;
  Components trained;  // empty in a job that does not train
  std::shared_ptr<StallReporter> stall_reporter;
};

// False for a benchmark, which needs no model and no data.
bool trains(const ProcessAssignment& assignment) { return assignment.bench.is_null(); }

// Selects a new stream for this thread: on the default stream, ranks on one GPU would run one after another.
void take_own_stream(const at::Device& device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.exchangeStream(guard.getStreamFromGlobalPool(device));
}

CollectiveChecks checks_named(const std::string& name) {
  return name == "none" ? CollectiveChecks::none : name == "all" ? CollectiveChecks::all : CollectiveChecks::sampled;
}

class RankThread {
 public:
  RankThread(const Shared& shared, const RankPlan& plan) : shared_(shared), plan_(plan), host_(host_name()) {}
  ~RankThread() { set_crash_rank(nullptr); }

  // Creates the state file. Other processes can see this rank's position from now on.
  FileProgress::Rank open() {
    state_ = std::make_shared<StateFile>(state_path());
    records_ = std::make_shared<CollectiveRecords>(state_path());
    shared_.stall_reporter->add(plan_.rank, records_);
    state_->phase(reading_phase);
    return {state_path(), records_};
  }

  // Attributes crashes of the calling thread to this rank.
  void attribute_crashes() const { set_crash_rank(state_.get(), plan_.rank); }

  // Returns 0 or an exit code. Failures have been reported.
  int run() {
    try {
      attribute_crashes();
      shared_.stall_reporter->add(plan_.rank, records_);
      train_rank();
      return stopped_ ? exit_code_of(Failure::stopped) : 0;
    } catch (...) {
      return fail(translate_exception(Failure::training));
    }
  }

 private:
  std::string state_path() const { return str(shared_.assignment.folder, "/logs/rank", plan_.rank, ".state"); }

  void train_rank() {
    const ProcessAssignment& assignment = shared_.assignment;
    const RunConfig& config = assignment.config;
    state_->phase(starting_phase);
    // One-rank processes were bound before LibTorch was loaded; rank threads are bound here.
    if (assignment.job.processes[static_cast<size_t>(plan_.process)].ranks.size() > 1) bind_this_thread(plan_.cores);
    at::set_num_threads(plan_.threads);

    Context context;
    context.rank = plan_.rank;
    context.size = static_cast<int>(assignment.job.ranks.size());
    for (const RankPlan& other : assignment.job.ranks)
      if (other.host == plan_.host && other.rank < plan_.rank) ++context.local_rank;
    context.host = host_;
    context.devices.clear();
    const std::vector<std::string> shown = visible_gpus(assignment.job, plan_.process);
    for (const DevicePlan& device : plan_.devices) {
      context.devices.push_back(device_of(shown, device));
      context.device_cores.push_back(device.cores);
    }
    context.threads = plan_.threads;
    context.process_ranks = static_cast<int>(assignment.job.processes[static_cast<size_t>(plan_.process)].ranks.size());
    context.mesh = assignment.job.mesh;
    context.channel = shared_.channel;
    context.folder = assignment.folder;
    context.config = config;
    context.state = state_;
    context.add_to_summary = [this](const Json& more) { report_more(more); };
    report_info(context);
    if (shares_gpu()) take_own_stream(context.devices.front());

    const auto injector = std::make_shared<Injector>(InjectRequest{assignment.faults, context.rank, context.size,
                                                                   assignment.attempt, host_, shared_.channel, state_});
    // Faults are injected by host code, which the launch of a CUDA graph bypasses.
    if (injector->idle()) context.make_graph = make_device_graph;
    state_->phase(rendezvous_phase);
    injector->reached(InjectPoint::join, 0);
    connect(context, injector);
    if (!trains(assignment)) return report_end(context, run_bench(context, assignment.bench));
    state_->phase(building_phase);
    std::unique_ptr<Strategy> strategy =
        shared_.registry.strategies.make(config.strategy.name, config.strategy.options);
    TrainingComponents parts{shared_.trained.data, shared_.trained.transforms, strategy.get()};
    parts.shares_device = shares_gpu();
    const std::optional<int64_t> uneven = uneven_rows_here(strategy->sampling(), context);
    if (uneven) parts.train_rows = *uneven;
    const int64_t rows = rows_per_epoch(strategy->sampling(), config, rows_to_train_on(parts));
    const TrainingLength length = training_length(config.train, rows, context.mesh.degree("data"));
    context.steps_per_epoch = length.steps_per_epoch;
    context.total_steps = length.total_steps;

    const std::string loss_fault = loss_fault_here(context, length);
    strategy->setup(context, injector->decorate(shared_.trained.model), shared_.trained.loss);
    if (!injector->idle()) {
      parts.reached = [&injector](InjectPoint point, int64_t number) { injector->reached(point, number); };
      parts.files = &injector->decorate(system_files());
    }
    std::optional<Snapshots> snapshots;
    if (!assignment.snapshots.is_null()) {
      snapshots.emplace(context, *strategy, assignment.snapshots);
      snapshots->note_loss_fault(loss_fault);
      const int64_t shares = assignment.snapshots.at("shares").get<int64_t>();
      if (!uneven && !has_uneven_batch(rows, length.global_rows, length.total_steps, shares))
        snapshots->note_no_uneven_batch();
      parts.after_update = [&](int64_t steps_done) { snapshots->take(steps_done); };
    }
    report_end(context, train(context, parts));
  }

  // `convoy verify` limits the rows so that one global batch has uneven shares, if possible.
  std::optional<int64_t> uneven_rows_here(const Sampling& sampling, const Context& context) const {
    if (shared_.assignment.snapshots.is_null()) return std::nullopt;
    const RunConfig& config = shared_.assignment.config;
    const int64_t rows = shared_.trained.data->size(Split::train);
    const MemberSample draw =
        sampling.draws.empty() ? member_sample(config.data.options, config.seed) : sampling.draws.front();
    const int64_t global_rows = training_length(config.train, rows, context.mesh.degree("data")).global_rows;
    return uneven_rows(draw, rows, global_rows, config.train.max_steps, shared_.assignment.snapshots.at("shares"));
  }

  // Returns why the loss of `convoy verify` is no sum over rows; "" if it is. The reference run checks this for every
  // strategy, because a mean is wrong with uneven batches of one rank too.
  std::string loss_fault_here(const Context& context, const TrainingLength& length) const {
    const Json& request = shared_.assignment.snapshots;
    if (request.is_null() || request.at("reference") != "") return "";
    const Components& trained = shared_.trained;
    const RunConfig& config = context.config;
    const Sampler sampler(trained.data->size(Split::train), length.global_rows,
                          member_sample(config.data.options, config.seed));
    LoaderOptions options = LoaderOptions::from(config.data.options, config.seed);
    options.device = context.devices.front();
    Loader loader(trained.data, trained.transforms, sampler, 0, 1, options);
    return loss_fault(context, trained.model, trained.loss, *loader.next(), request.at("splits").get<bool>());
  }

  // True if another rank of this process uses the same GPU.
  bool shares_gpu() const {
    const DevicePlan& mine = plan_.devices.front();
    const JobPlan& job = shared_.assignment.job;
    const std::vector<int>& ranks = job.processes[static_cast<size_t>(plan_.process)].ranks;
    return mine.kind == DevicePlan::Kind::gpu && std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
             const DevicePlan& other = job.ranks[static_cast<size_t>(rank)].devices.front();
             return rank != plan_.rank && other.kind == mine.kind && other.gpu == mine.gpu;
           });
  }

  void report_end(const Context& context, const TrainingResult& result) {
    stopped_ = result.stopped;
    // Other ranks may still need this rank for their last collective.
    context.world->barrier({"end of training", {}})->wait();
    Json summary = result.summary;
    if (stopped_) summary[protocol::stopped_early] = true;
    if (plan_.rank == 0) shared_.channel->set(protocol::result, summary.dump());
    shared_.channel->set(str(protocol::rank_result, plan_.rank), result.rank.dump());
  }

  void report_info(const Context& context) {
    info_ = {{"host", host_},
             {"pid", getpid()},
             {"device", context.devices.front().str()},
             {"cores", bound_cores()},
             {"threads", at::get_num_threads()}};
    report_more(Json::object());
  }

  // Replaces this rank's entry in the control store.
  void report_more(const Json& more) {
    info_.update(more);
    shared_.channel->set(str(protocol::rank_info, plan_.rank), info_.dump());
  }

  void connect(Context& context, const std::shared_ptr<Injector>& injector) {
    const ProcessAssignment& assignment = shared_.assignment;
    BackendRequest request;
    request.rank = context.rank;
    request.size = context.size;
    request.device = context.devices.front();
    request.channel = shared_.channel;
    request.job = str(assignment.job.name, "/", assignment.attempt);
    request.address = assignment.data_address;
    request.timeout = milliseconds(assignment.config.launch.collective);
    request.rendezvous = milliseconds(assignment.config.launch.rendezvous);
    request.waiting = [state = state_, injector](const char* name) {
      state->collective(name);
      if (*name != '\0') injector->waiting();
    };
    request.notes = records_;
    // A benchmark measures the collective without checks.
    request.checks =
        trains(assignment) ? checks_named(assignment.config.launch.check_collectives) : CollectiveChecks::none;
    request.late = [stall_reporter = shared_.stall_reporter, rank = plan_.rank](const SlowCollective& call) {
      stall_reporter->late(rank, call);
    };
    context.world = injector->decorate(shared_.registry.backends.make(assignment.job.backend, request));
    for (const Axis& axis : context.mesh.axes()) {
      const std::vector<int> group = context.mesh.group(context.rank, axis.name);
      // An axis over all ranks is the world.
      context.axes[axis.name] = static_cast<int>(group.size()) == context.size
                                    ? context.world
                                    : context.world->split(group.front(), context.rank, {"axis " + axis.name, {}});
    }
  }

  int fail(const TranslatedException& failure) {
    Abort reason;
    reason.kind = failure.kind;
    reason.rank = failure.rank.value_or(plan_.rank);
    if (reason.rank == plan_.rank) reason.host = host_;
    reason.message = failure.message;
    if (state_) {
      const auto position = read_state_file(state_path());
      if (position) reason.step = position->step;
      state_->failure(short_json(reason).c_str());
    }
    // A lost peer is a consequence: only the rank that failed first logs an error.
    const bool follows = failure.kind == Failure::peer_lost;
    const std::string step = reason.step >= 0 && !follows ? str(", step ", reason.step) : "";
    const std::string text = str("rank ", plan_.rank, " on ", host_, step, ": ", failure.message);
    follows ? log::info(text) : log::error(text);
    shared_.channel->abort(reason);
    return exit_code_of(failure.kind);
  }

  const Shared& shared_;
  const RankPlan& plan_;
  const std::string host_;
  std::shared_ptr<StateFile> state_;
  std::shared_ptr<CollectiveRecords> records_;  // in the same file
  Json info_;
  bool stopped_ = false;
};

// Creates the components, with one check of the data for all processes of the job.
Components make_checked_components(const ProcessAssignment& assignment, const Registry& registry, Channel& channel) {
  const RunConfig& config = assignment.config;
  const bool first = assignment.job.processes[static_cast<size_t>(assignment.process)].ranks.front() == 0;
  const DataCheck check{
      config,      assignment.folder, assignment.process, static_cast<int>(assignment.job.processes.size()), first,
      host_name(), &channel};
  return make_components(config, registry, [&](const DatasetPtr& data) { return check_data(data, check); });
}

// Returns the first exit code of a failure in this process that is not a lost peer, else the first code that is not 0.
int worst_of(const std::vector<int>& codes) {
  int worst = 0;
  for (int code : codes)
    if (code != 0 && (worst == 0 || worst == protocol::peer_lost_exit)) worst = code;
  return worst;
}

}  // namespace

ProcessAssignment read_assignment(Channel& channel, int process, Timeout timeout) {
  ProcessAssignment assignment{rank_assignment_from_json(Json::parse(channel.get(protocol::job, timeout))), 0, {}, ""};
  assignment.process = process;
  assignment.config = RunConfig::from_resolved(assignment.job.config);
  CONVOY_CHECK(process >= 0 && process < static_cast<int>(assignment.job.processes.size()), "process ", process, " of ",
               assignment.job.processes.size());
  return assignment;
}

namespace {

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

}  // namespace

DescribedBlocks describe_blocks(const RunConfig& config, const Registry& registry, bool activations) {
  const Components components = make_components(config, registry);
  const ModelDescription counted = describe_model(*components.model, config.precision);
  if (!activations) return {counted, ""};
  at::set_num_threads(1);
  DescribedBlocks described{counted, ""};
  try {
    measure(components, config, MeasuredTensors::fake, described.model);
    return described;
  } catch (const std::exception& error) {
    described = {counted, error.what()};
  }
  int64_t parameters = 0;
  for (const BlockDescription& block : counted.blocks) parameters += block.parameters;
  if (parameters > most_real_parameters) return described;
  measure(components, config, MeasuredTensors::real, described.model);
  return {described.model, ""};
}

int run_ranks(const ProcessAssignment& assignment, const Registry& registry, std::shared_ptr<Channel> channel) {
  Shared shared{assignment, registry, channel, {}, {}};
  shared.stall_reporter =
      StallReporter::create(channel, assignment.job.processes[static_cast<size_t>(assignment.process)].ranks.front());
  const std::vector<int>& ranks = assignment.job.processes[static_cast<size_t>(assignment.process)].ranks;
  std::vector<std::unique_ptr<RankThread>> rank_threads;
  std::vector<FileProgress::Rank> seen;
  for (int rank : ranks) {
    rank_threads.push_back(std::make_unique<RankThread>(shared, assignment.job.ranks[static_cast<size_t>(rank)]));
    seen.push_back(rank_threads.back()->open());
  }
  const FileProgress progress(std::move(seen));
  rank_threads.front()->attribute_crashes();  // covers the work that all ranks of the process share
  const CacheLockLimit limit(assignment.config.launch.rendezvous / 2);
  if (trains(assignment)) shared.trained = make_checked_components(assignment, registry, *channel);

  std::vector<int> codes(ranks.size(), 0);
  auto run = [&](size_t i) { codes[i] = rank_threads[i]->run(); };
  // The first rank runs in the main thread, which MPI and debuggers prefer.
  std::vector<std::thread> threads;
  for (size_t i = 1; i < ranks.size(); ++i) threads.emplace_back(run, i);
  run(0);
  for (std::thread& thread : threads) thread.join();
  return worst_of(codes);
}

}  // namespace convoy
