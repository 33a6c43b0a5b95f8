#include "api/rank.h"

#include <ATen/Parallel.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <unistd.h>

#include <algorithm>

#include "backends/registry.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/control/exit_codes.h"
#include "core/files/limits.h"
#include "core/rank_state/position.h"

namespace convoy {
namespace {

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

// Maps a device of the plan to this process's GPU numbers: the launcher shows a process only its GPUs.
at::Device device_of(const std::vector<std::string>& shown, const DevicePlan& plan) {
  if (plan.kind != DevicePlan::Kind::gpu) return at::Device(at::kCPU);
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(gpu_index_in(shown, plan)));
}

// A process that joins a running job replaces a rank, as the next attempt would.
int attempt_of_process(const ProcessAssignment& assignment) {
  return assignment.attempt + (assignment.membership > 0 ? 1 : 0);
}

// Selects a new stream for this thread: on the default stream, ranks on one GPU would run one after another.
void take_own_stream(const at::Device& device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.exchangeStream(guard.getStreamFromGlobalPool(device));
}

}  // namespace

Rank::Rank(const ProcessAssignment& assignment, int rank, std::shared_ptr<Channel> channel,
           std::shared_ptr<StallReporter> stall_reporter)
    : assignment_(assignment),
      plan_(assignment.job.ranks.at(static_cast<size_t>(rank))),
      channel_(std::move(channel)),
      stall_reporter_(std::move(stall_reporter)),
      host_(host_name()) {}

Rank::~Rank() { set_crash_rank(nullptr); }

FileProgress::Rank Rank::open(const char* phase) {
  state_ = std::make_shared<StateFile>(state_path());
  records_ = std::make_shared<CollectiveRecords>(state_path());
  stall_reporter_->add(plan_.rank, records_);
  state_->phase(phase);
  return {state_path(), records_};
}

void Rank::attribute_crashes() const { set_crash_rank(state_.get(), plan_.rank); }

std::string Rank::state_path() const { return str(assignment_.folder, "/logs/rank", plan_.rank, ".state"); }

Context Rank::start(const Registry& backends) {
  Context context = prepare();
  join(context, backends);
  return context;
}

Context Rank::prepare() {
  attribute_crashes();
  stall_reporter_->add(plan_.rank, records_);
  state_->phase(starting_phase);
  // One-rank processes were bound before LibTorch was loaded; rank threads are bound here.
  if (assignment_.job.processes[static_cast<size_t>(plan_.process)].ranks.size() > 1) bind_this_thread(plan_.cores);
  at::set_num_threads(plan_.threads);
  Context context = make_context();
  if (shares_gpu()) take_own_stream(context.devices.front());
  if (injector_)
    injector_->joined(channel_, state_);
  else
    injector_ = std::make_shared<Injector>(InjectRequest{assignment_.faults, context.rank, context.size,
                                                         attempt_of_process(assignment_), host_, channel_, state_});
  // Faults are injected by host code, which the launch of a CUDA graph bypasses.
  if (injector_->idle()) context.make_graph = make_device_graph;
  return context;
}

void Rank::join(Context& context, const Registry& backends) {
  report_info(context);
  state_->phase(rendezvous_phase);
  injector_->reached(InjectPoint::join, 0);
  connect(context, backends);
}

Context Rank::make_context() {
  const JobPlan& job = assignment_.job;
  Context context;
  context.rank = plan_.rank;
  context.size = static_cast<int>(job.ranks.size());
  context.local_size = 0;
  for (const RankPlan& other : job.ranks) {
    if (other.host != plan_.host) continue;
    ++context.local_size;
    if (other.rank < plan_.rank) ++context.local_rank;
  }
  context.host = host_;
  context.devices.clear();
  const std::vector<std::string> shown = visible_gpus(job, plan_.process);
  for (const DevicePlan& device : plan_.devices) {
    context.devices.push_back(device_of(shown, device));
    context.device_cores.push_back(device.cores);
  }
  context.threads = plan_.threads;
  context.process_ranks = static_cast<int>(job.processes[static_cast<size_t>(plan_.process)].ranks.size());
  context.mesh = job.mesh;
  context.channel = channel_;
  context.folder = assignment_.folder;
  context.config = assignment_.job.config;
  context.state = state_;
  context.times = times_;
  context.add_to_summary = [this](const Json& more) { report_more(more); };
  return context;
}

bool Rank::shares_gpu() const {
  const DevicePlan& mine = plan_.devices.front();
  const JobPlan& job = assignment_.job;
  const std::vector<int>& ranks = job.processes[static_cast<size_t>(plan_.process)].ranks;
  return mine.kind == DevicePlan::Kind::gpu && std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
           const DevicePlan& other = job.ranks[static_cast<size_t>(rank)].devices.front();
           return rank != plan_.rank && other.kind == mine.kind && other.gpu == mine.gpu;
         });
}

void Rank::end(const Context& context, const TrainingResult& result) {
  // Other ranks may still need this rank for their last collective.
  context.world->barrier({"end of training", {}})->wait();
  Json summary = result.summary;
  if (result.stopped) summary[protocol::stopped_early] = true;
  if (plan_.rank == 0) channel_->set(protocol::result, summary.dump());
  channel_->set(str(protocol::rank_result, plan_.rank), result.rank.dump());
}

void Rank::report_info(const Context& context) {
  info_ = {{"host", host_},
           {"pid", getpid()},
           {"device", context.devices.front().str()},
           {"cores", bound_cores()},
           {"threads", at::get_num_threads()}};
  report_more(Json::object());
}

// Replaces this rank's entry in the control store.
void Rank::report_more(const Json& more) {
  info_.update(more);
  channel_->set(str(protocol::rank_info, plan_.rank), info_.dump());
}

void Rank::connect(Context& context, const Registry& backends) {
  BackendRequest request = backend_request(context);
  request.job = str(assignment_.job.name, "/", assignment_.attempt);
  request.address = assignment_.data_address;
  request.waiting = [state = state_, injector = injector_](const char* name) {
    state->collective(name);
    if (*name != '\0') injector->waiting();
  };
  request.abandons_rendezvous = continues_without_lost_ranks(assignment_);
  request.notes = records_;
  // A benchmark measures the collective without checks.
  if (!assignment_.bench.is_null()) request.checks = CollectiveChecks::none;
  request.slow_collective = [stall_reporter = stall_reporter_, rank = plan_.rank](const SlowCollective& call) {
    stall_reporter->report(rank, call);
  };
  // Some backends cannot limit this wait. From this position the supervisor finds the rank for which the others wait.
  state_->collective("rendezvous of all ranks");
  context.world = injector_->decorate(backends.backends.make(assignment_.job.backend, request));
  state_->collective("");
  for (const Axis& axis : context.mesh.axes()) {
    const std::vector<int> group = context.mesh.group(context.rank, axis.name);
    // An axis over all ranks is the world.
    context.axes[axis.name] = static_cast<int>(group.size()) == context.size
                                  ? context.world
                                  : context.world->split(group.front(), context.rank, {"axis " + axis.name, {}});
  }
}

int Rank::fail(const TranslatedException& failure) {
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
  channel_->abort(reason);
  return exit_code_of(failure.kind);
}

}  // namespace convoy
