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
#include "core/binding.h"
#include "core/control/phases.h"
#include "core/control/protocol.h"
#include "core/data/column_cache.h"
#include "core/data/draws.h"
#include "core/data/loader.h"
#include "core/data/samples.h"
#include "core/inject/injector.h"
#include "core/log.h"
#include "core/trainer.h"
#include "core/utf8.h"
#include "launch/exit_codes.h"
#include "launch/rank/agreed_data.h"
#include "launch/rank/bench.h"
#include "launch/rank/caught.h"
#include "launch/rank/crash.h"
#include "launch/rank/file_progress.h"
#include "launch/rank/located.h"
#include "launch/rank/snapshots.h"
#include "launch/rank/whereabouts.h"
#include "strategies/registry.h"

namespace convoy {
namespace {

Timeout milliseconds(double seconds) { return Timeout(static_cast<int64_t>(seconds * 1000)); }

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

// What fits into a state file and can still be read: a message of any length is cut, not its JSON.
std::string short_json(Abort reason) {
  constexpr size_t room = 4095;
  std::string text = to_json(reason).dump();
  while (text.size() > room && !reason.message.empty()) {
    const size_t excess = std::min(reason.message.size(), text.size() - room);
    reason.message.resize(utf8_cut(reason.message.data(), reason.message.size(), reason.message.size() - excess));
    text = to_json(reason).dump();
  }
  return text;
}

// The launcher shows each process only its own GPUs, in the order of its ranks' devices.
at::Device device_of(const std::vector<std::string>& shown, const DevicePlan& plan) {
  if (plan.kind != DevicePlan::Kind::gpu) return at::Device(at::kCPU);
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(gpu_within(shown, plan)));
}

// What the ranks of a process share: read-only parts are made once.
struct Shared {
  const Assignment& assignment;
  const Registry& registry;
  std::shared_ptr<Channel> channel;
  TrainedParts trained;  // empty in a job that does not train
  std::shared_ptr<Whereabouts> whereabouts;
};

// Else it has no model and no data.
bool trains(const Assignment& assignment) { return assignment.bench.is_null(); }

// For all that this thread does from here on; what is on the common one would run in turn.
void take_own_stream(const at::Device& device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.exchangeStream(guard.getStreamFromGlobalPool(device));
}

CallChecks checks_named(const std::string& name) {
  return name == "none" ? CallChecks::none : name == "all" ? CallChecks::all : CallChecks::sampled;
}

class RankThread {
 public:
  RankThread(const Shared& shared, const RankPlan& plan) : shared_(shared), plan_(plan), host_(host_name()) {}
  ~RankThread() { note_crashes_of_this_thread(nullptr); }

  // From now on others can see where this rank is.
  FileProgress::Rank open() {
    state_ = std::make_shared<StateFile>(state_path());
    notes_ = std::make_shared<CallNotes>(state_path());
    shared_.whereabouts->add(plan_.rank, notes_);
    state_->phase(reading_phase);
    return {state_path(), notes_};
  }

  // Crashes of the calling thread are this rank's from now on.
  void note_crashes() const { note_crashes_of_this_thread(state_.get(), plan_.rank); }

  // 0 when training ended in order, else an exit code; the failure has been told.
  int run() {
    try {
      note_crashes();
      shared_.whereabouts->add(plan_.rank, notes_);
      train_rank();
      return stopped_ ? exit_code_of(Failure::stopped) : 0;
    } catch (...) {
      const Caught failure = caught(Failure::training);
      return fail(failure);
    }
  }

 private:
  std::string state_path() const { return str(shared_.assignment.folder, "/logs/rank", plan_.rank, ".state"); }

  void train_rank() {
    const Assignment& assignment = shared_.assignment;
    const RunConfig& config = assignment.config;
    state_->phase(starting_phase);
    // One-rank processes were bound before LibTorch was loaded; threads are bound here.
    if (assignment.job.processes[static_cast<size_t>(plan_.process)].ranks.size() > 1) bind_this_thread(plan_.cores);
    at::set_num_threads(plan_.threads);

    Context context;
    context.rank = plan_.rank;
    context.size = static_cast<int>(assignment.job.ranks.size());
    for (const RankPlan& other : assignment.job.ranks)
      if (other.host == plan_.host && other.rank < plan_.rank) ++context.local_rank;
    context.host = host_;
    context.devices.clear();
    const std::vector<std::string> shown = shown_gpus(assignment.job, plan_.process);
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
    context.tell = [this](const Json& more) { tell_more(more); };
    tell_info(context);
    if (shares_gpu()) take_own_stream(context.devices.front());

    const auto injector = std::make_shared<Injector>(
        InjectRequest{assignment.faults, context.rank, context.size, assignment.attempt, host_, shared_.channel});
    // A fault happens where the host comes by; a graph's launch passes none of these places.
    if (injector->idle()) context.make_graph = make_device_graph;
    state_->phase(rendezvous_phase);
    injector->reached(InjectPoint::join, 0);
    connect(context, injector);
    if (!trains(assignment)) return tell_end(context, run_bench(context, assignment.bench));
    state_->phase(building_phase);
    std::unique_ptr<Strategy> strategy =
        shared_.registry.strategies.make(config.strategy.name, config.strategy.options);
    TrainingParts parts{shared_.trained.data, shared_.trained.transforms, strategy.get()};
    parts.shares_device = shares_gpu();
    const std::optional<int64_t> ragged = ragged_rows_here(strategy->sampling(), context);
    if (ragged) parts.train_rows = *ragged;
    const int64_t rows = rows_read(strategy->sampling(), config, rows_to_train_on(parts));
    const TrainingLength length = training_length(config.train, rows, context.mesh.degree("data"));
    context.steps_per_epoch = length.steps_per_epoch;
    context.total_steps = length.total_steps;

    const std::string loss_fault = loss_fault_here(context, length);
    strategy->setup(context, injector->around(shared_.trained.model), shared_.trained.loss);
    if (!injector->idle()) {
      parts.reached = [&injector](InjectPoint point, int64_t number) { injector->reached(point, number); };
      parts.files = &injector->around(system_files());
    }
    std::optional<Snapshots> snapshots;
    if (!assignment.snapshots.is_null()) {
      snapshots.emplace(context, *strategy, assignment.snapshots);
      snapshots->note_loss_fault(loss_fault);
      if (!ragged) snapshots->note_no_ragged_batch();
      parts.after_update = [&](int64_t steps_done) { snapshots->take(steps_done); };
    }
    tell_end(context, train(context, parts));
  }

  // `convoy verify` limits the rows so that one global batch is ragged, where that is possible.
  std::optional<int64_t> ragged_rows_here(const Sampling& sampling, const Context& context) const {
    if (shared_.assignment.snapshots.is_null()) return std::nullopt;
    const RunConfig& config = shared_.assignment.config;
    const int64_t rows = shared_.trained.data->size(Split::train);
    const MemberDraw draw =
        sampling.draws.empty() ? data_draw(config.data.options, config.seed) : sampling.draws.front();
    const int64_t global_rows = training_length(config.train, rows, context.mesh.degree("data")).global_rows;
    return ragged_rows(draw, rows, global_rows, config.train.max_steps, shared_.assignment.snapshots.at("shares"));
  }

  // "", or why the configured run of `convoy verify` may not cut this loss; found by the reference.
  std::string loss_fault_here(const Context& context, const TrainingLength& length) const {
    const Json& request = shared_.assignment.snapshots;
    if (request.is_null() || request.at("reference") != "" || !request.at("splits").get<bool>()) return "";
    const TrainedParts& trained = shared_.trained;
    const RunConfig& config = context.config;
    const Sampler sampler(trained.data->size(Split::train), length.global_rows,
                          data_draw(config.data.options, config.seed));
    LoaderOptions options = LoaderOptions::from(config.data.options, config.seed);
    options.device = context.devices.front();
    Loader loader(trained.data, trained.transforms, sampler, 0, 1, options);
    return loss_fault(context, trained.model, trained.loss, *loader.next());
  }

  // With another rank of this process.
  bool shares_gpu() const {
    const DevicePlan& mine = plan_.devices.front();
    const Job& job = shared_.assignment.job;
    const std::vector<int>& ranks = job.processes[static_cast<size_t>(plan_.process)].ranks;
    return mine.kind == DevicePlan::Kind::gpu && std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
             const DevicePlan& other = job.ranks[static_cast<size_t>(rank)].devices.front();
             return rank != plan_.rank && other.kind == mine.kind && other.gpu == mine.gpu;
           });
  }

  void tell_end(const Context& context, const TrainingResult& result) {
    stopped_ = result.stopped;
    // Nobody may leave while another still needs it for its last collective.
    context.world->barrier({"end of training", {}})->wait();
    Json summary = result.summary;
    if (stopped_) summary[protocol::stopped_early] = true;
    if (plan_.rank == 0) shared_.channel->set(protocol::result, summary.dump());
    shared_.channel->set(str(protocol::rank_result, plan_.rank), result.rank.dump());
  }

  void tell_info(const Context& context) {
    info_ = {{"host", host_},
             {"pid", getpid()},
             {"device", context.devices.front().str()},
             {"cores", bound_cores()},
             {"threads", at::get_num_threads()}};
    tell_more(Json::object());
  }

  // Whoever looks sees the newest.
  void tell_more(const Json& more) {
    info_.update(more);
    shared_.channel->set(str(protocol::rank_info, plan_.rank), info_.dump());
  }

  void connect(Context& context, const std::shared_ptr<Injector>& injector) {
    const Assignment& assignment = shared_.assignment;
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
    request.notes = notes_;
    // A benchmark measures the collective alone.
    request.checks = trains(assignment)
                         ? checks_named(assignment.config.resolved.at("launch").value("check_collectives", "sampled"))
                         : CallChecks::none;
    request.late = [whereabouts = shared_.whereabouts, rank = plan_.rank](const LateCall& call) {
      whereabouts->late(rank, call);
    };
    context.world = injector->around(shared_.registry.backends.make(assignment.job.backend, request));
    shared_.channel->on_abort([world = std::weak_ptr<Communicator>(context.world)](const Abort& reason) {
      if (auto alive = world.lock()) alive->abort(reason.message);
    });
    shared_.channel->on_lost([world = std::weak_ptr<Communicator>(context.world)] {
      if (auto alive = world.lock())
        alive->abort("the control channel is gone: the launcher of rank 0's host has ended");
    });
    for (const Axis& axis : context.mesh.axes()) {
      const std::vector<int> group = context.mesh.group(context.rank, axis.name);
      // An axis over all ranks is the world itself.
      context.axes[axis.name] = static_cast<int>(group.size()) == context.size
                                    ? context.world
                                    : context.world->split(group.front(), context.rank, {"axis " + axis.name, {}});
    }
  }

  int fail(const Caught& failure) {
    const Failure kind = failure.kind;
    const std::string& message = failure.message;
    Abort reason;
    reason.kind = kind;
    reason.rank = failure.rank.value_or(plan_.rank);
    if (reason.rank == plan_.rank) reason.host = host_;
    reason.message = message;
    if (state_) {
      const auto position = read_state_file(state_path());
      if (position) reason.step = position->step;
      state_->failure(short_json(reason).c_str());
    }
    // A lost peer is a symptom: only the one that failed by itself writes an error into the log.
    if (kind == Failure::peer_lost)
      log::info(str("rank ", plan_.rank, " on ", host_, ": ", message));
    else
      log::error(
          str("rank ", plan_.rank, " on ", host_, reason.step >= 0 ? str(", step ", reason.step) : "", ": ", message));
    shared_.channel->abort(reason);
    return kind == Failure::peer_lost ? protocol::peer_lost_exit : exit_code_of(kind);
  }

  const Shared& shared_;
  const RankPlan& plan_;
  const std::string host_;
  std::shared_ptr<StateFile> state_;
  std::shared_ptr<CallNotes> notes_;  // in the same file
  Json info_;
  bool stopped_ = false;
};

// A trial's steps are thrown away: it may have any data.
TrainedParts trained_parts(const Assignment& assignment, const Registry& registry, Channel& channel) {
  const RunConfig& config = assignment.config;
  if (!assignment.bench.is_null()) return located_parts(config, registry);
  const bool first = assignment.job.processes[static_cast<size_t>(assignment.process)].ranks.front() == 0;
  const DataAgreement agreement{
      config,      assignment.folder, assignment.process, static_cast<int>(assignment.job.processes.size()), first,
      host_name(), &channel};
  return located_parts(config, registry, [&](const DatasetPtr& data) { return agreed_data(data, agreement); });
}

// The earliest failure of this process that is not a lost peer, else the first code that is not 0.
int worst_of(const std::vector<int>& codes) {
  int worst = 0;
  for (int code : codes)
    if (code != 0 && (worst == 0 || worst == protocol::peer_lost_exit)) worst = code;
  return worst;
}

}  // namespace

Assignment read_assignment(Channel& channel, int process, Timeout timeout) {
  const Json json = Json::parse(channel.get(protocol::job, timeout));
  Assignment assignment;
  assignment.job = job_from_json(json.at("job"));
  assignment.folder = json.at("folder").get<std::string>();
  assignment.attempt = json.value("attempt", 0);
  assignment.snapshots = json.value("snapshots", Json());
  assignment.faults = json.value("inject", std::vector<std::string>());
  assignment.bench = json.value("bench", Json());
  assignment.process = process;
  assignment.config = RunConfig::from_resolved(assignment.job.config);
  CONVOY_CHECK(process >= 0 && process < static_cast<int>(assignment.job.processes.size()), "process ", process, " of ",
               assignment.job.processes.size());
  return assignment;
}

namespace {

// A model up to this size runs for real if it does not run by shapes alone.
constexpr int64_t most_real_parameters = 1 << 26;

void measure(const TrainedParts& parts, const RunConfig& config, MeasuredTensors tensors, Description& description) {
  constexpr int64_t rows = 2;
  Batch batch = parts.data->gather_once(Split::train, at::arange(rows), 0);
  batch.global_rows = batch.nominal_rows = rows;
  measure_activations(config, parts.model, parts.loss, batch, description, tensors);
  const bool tables = std::any_of(description.blocks.begin(), description.blocks.end(),
                                  [](const BlockDescription& block) { return !block.tables.empty(); });
  if (tables) measure_lookups(config, parts.model, parts.loss, *parts.data, description, tensors);
}

}  // namespace

DescribedBlocks describe_blocks(const RunConfig& config, const Registry& registry, bool activations) {
  const TrainedParts parts = located_parts(config, registry);
  const Description counted = describe_model(*parts.model, config.precision);
  if (!activations) return {counted, ""};
  at::set_num_threads(1);
  DescribedBlocks described{counted, ""};
  try {
    measure(parts, config, MeasuredTensors::fake, described.model);
    return described;
  } catch (const std::exception& error) {
    described = {counted, error.what()};
  }
  int64_t parameters = 0;
  for (const BlockDescription& block : counted.blocks) parameters += block.parameters;
  if (parameters > most_real_parameters) return described;
  measure(parts, config, MeasuredTensors::real, described.model);
  return {described.model, ""};
}

int run_ranks(const Assignment& assignment, const Registry& registry, std::shared_ptr<Channel> channel) {
  Shared shared{assignment, registry, channel, {}, {}};
  shared.whereabouts =
      Whereabouts::create(channel, assignment.job.processes[static_cast<size_t>(assignment.process)].ranks.front());
  const std::vector<int>& ranks = assignment.job.processes[static_cast<size_t>(assignment.process)].ranks;
  std::vector<std::unique_ptr<RankThread>> own;
  std::vector<FileProgress::Rank> seen;
  for (int rank : ranks) {
    own.push_back(std::make_unique<RankThread>(shared, assignment.job.ranks[static_cast<size_t>(rank)]));
    seen.push_back(own.back()->open());
  }
  const FileProgress progress(std::move(seen));
  own.front()->note_crashes();  // of what all ranks of the process share, too
  const CacheLockLimit limit(assignment.config.launch.rendezvous / 2);
  if (trains(assignment)) shared.trained = trained_parts(assignment, registry, *channel);

  std::vector<int> codes(ranks.size(), 0);
  auto run = [&](size_t i) { codes[i] = own[i]->run(); };
  // The first rank runs in the main thread: MPI and debuggers like it there.
  std::vector<std::thread> threads;
  for (size_t i = 1; i < ranks.size(); ++i) threads.emplace_back(run, i);
  run(0);
  for (std::thread& thread : threads) thread.join();
  return worst_of(codes);
}

}  // namespace convoy
