#include "api/rank_process.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <thread>

#include "api/thread_stacks.h"
#include "backends/cuda/module/registry.h"
#include "backends/registry.h"
#include "core/base/log.h"
#include "core/control/assignment.h"
#include "core/control/exit_codes.h"
#include "core/control/signals.h"
#include "core/rank_state/position.h"
#include "core/tensors/tensor_memory.h"

namespace convoy {
namespace {

constexpr Timeout join_limit{30000};

const char* rank_variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr)
    throw Error(Failure::command_line, name, " is not set: rank processes are started by `convoy run`, not by hand");
  return value;
}

// Activations of some megabytes are allocated and freed in each step. By default glibc returns each to the system and
// faults it in again, which makes the time of a convolutional step bimodal. Allocations above 24 MiB (groups of
// parameters) stay outside the heap. In the heap, holes would waste memory of a third of the model. Explicit settings
// of the user take precedence.
void tune_allocator() {
  if (std::getenv("MALLOC_MMAP_THRESHOLD_") || std::getenv("MALLOC_TRIM_THRESHOLD_") || std::getenv("GLIBC_TUNABLES"))
    return;
  mallopt(M_MMAP_THRESHOLD, 24 << 20);
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
}

bool has_gpu(const JobPlan& job) {
  for (const RankPlan& rank : job.ranks)
    for (const DevicePlan& device : rank.devices)
      if (device.kind == DevicePlan::Kind::gpu) return true;
  return false;
}

int64_t memory_limit_of_gpu() {
  const char* limit = std::getenv(gpu_memory_variable);
  return limit == nullptr ? 0 : gpu_memory_limit({{gpu_memory_variable, limit}});
}

}  // namespace

bool started_by_convoy() {
  return std::getenv("CONVOY_CHANNEL") != nullptr && std::getenv("CONVOY_PROCESS") != nullptr &&
         std::getenv(protocol::joined_variable) == nullptr;
}

RankVariables rank_variables() {
  RankVariables variables;
  variables.channel = channel_address(rank_variable("CONVOY_CHANNEL"));
  variables.process = std::atoi(rank_variable("CONVOY_PROCESS"));
  const char* rank = std::getenv("CONVOY_RANK");
  variables.rank = rank != nullptr ? std::atoi(rank) : variables.process;
  return variables;
}

void prepare_process() {
  set_signal_actions();
  install_crash_handlers();
  install_stack_handler();
  // A peer of gloo's sockets or the reader of the log's pipe may be gone: report an error instead of ending this rank.
  signal(SIGPIPE, SIG_IGN);
  tune_allocator();
  count_tensor_memory();
}

std::shared_ptr<Channel> connect_to_supervisor(const ChannelAddress& address, int rank) {
  std::shared_ptr<Channel> channel = connect_channel(address, rank, str("rank ", rank), join_limit);
  // This process must never outlive the job's launcher.
  channel->on_lost([] {
    std::thread([] {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      _exit(protocol::peer_lost_exit);
    }).detach();
  });
  return channel;
}

// Threads: the channel's, and the one that waits.
class RankProcess::NextMembership {
 public:
  struct NewRank {
    ChannelAddress channel;
    int rank = 0;
    int staying = 0;  // number of ranks from the previous membership; they have the first numbers
  };

  static std::shared_ptr<NextMembership> watch(Channel& channel, int rank) {
    const auto next = std::make_shared<NextMembership>();
    channel.watch(protocol::next_membership, [next, rank](const std::string&, const std::string& text) {
      const Json json = Json::parse(text);
      const Json& ranks = json.at("ranks");
      const int there = ranks.at(static_cast<size_t>(rank)).get<int>();
      const std::lock_guard<std::mutex> lock(next->mutex_);
      const auto staying = std::count_if(ranks.begin(), ranks.end(), [](const Json& to) { return to.get<int>() >= 0; });
      if (there >= 0)
        next->new_rank_ =
            NewRank{channel_address(json.at("channel").get<std::string>()), there, static_cast<int>(staying)};
      next->decided_ = true;
      next->changed_.notify_all();
    });
    channel.on_abort([next](const Abort& reason) {
      if (reason.kind == Failure::peer_lost) return;  // the failure cause or the next membership follows
      const std::lock_guard<std::mutex> lock(next->mutex_);
      next->decided_ = true;
      next->changed_.notify_all();
    });
    return next;
  }

  std::optional<NewRank> wait(Timeout limit) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, limit, [this] { return decided_; });
    return new_rank_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool decided_ = false;
  std::optional<NewRank> new_rank_;
};

RankProcess::RankProcess() : variables_(rank_variables()) {
  catch_stop_signals();
  channel_ = connect_to_supervisor(variables_.channel, variables_.rank);
  next_ = NextMembership::watch(*channel_, variables_.rank);
  report_stop_signals(channel_);
}

bool RankProcess::join_next() {
  const LaunchConfig& launch = assignment_.job.config.launch;
  // A lost host is known after a heartbeat.
  const auto limit = timeout_of(launch.heartbeat + launch.failure_grace);
  const std::shared_ptr<Injector> injector = ranks_.front()->injector();
  std::exception_ptr failed;
  while (const std::optional<NextMembership::NewRank> new_rank = next_->wait(limit)) {
    ranks_.clear();
    opened_.clear();
    stall_reporter_.reset();
    variables_ = {new_rank->channel, new_rank->rank, new_rank->rank};
    try {
      channel_ = connect_to_supervisor(variables_.channel, variables_.rank);
      next_ = NextMembership::watch(*channel_, variables_.rank);
      report_stop_signals(channel_);
      assign();
      // State files are named by rank. A rank that is still in the previous membership could replace the file of
      // another rank, so all ranks leave it first.
      const auto rendezvous = timeout_of(launch.rendezvous);
      channel_->agree("left the membership before", new_rank->rank, new_rank->staying, "", rendezvous);
      open(starting_phase);
      if (injector) ranks_.front()->keep_injector(injector);
      return true;
    } catch (const Error& error) {
      // Another rank may have been lost meanwhile; then the supervisor has removed the files of this membership.
      if (error.kind() != Failure::peer_lost && error.kind() != Failure::io) throw;
      failed = error.kind() == Failure::io ? std::current_exception() : nullptr;
    }
  }
  if (failed) std::rethrow_exception(failed);
  return false;
}

void RankProcess::assign() {
  assignment_ = read_assignment(*channel_, variables_.process, variables_.channel.host, join_limit);
  log::set_level(log::level_named(assignment_.job.config.log.level));
  if (!has_gpu(assignment_.job)) return;
  load_cuda_half();
  limit_device_memory(limit_of_process(assignment_.job, variables_.process, memory_limit_of_gpu()));
}

void RankProcess::open(const char* phase) {
  const std::vector<int>& ranks = assignment_.job.processes[static_cast<size_t>(assignment_.process)].ranks;
  stall_reporter_ = StallReporter::create(channel_, ranks.front());
  for (const int rank : ranks) {
    ranks_.push_back(std::make_unique<Rank>(assignment_, rank, channel_, stall_reporter_));
    opened_.push_back(ranks_.back()->open(phase));
  }
  ranks_.front()->attribute_crashes();  // covers the work that all ranks of the process share
}

int RankProcess::fail() const {
  const TranslatedException failure = translate_exception(Failure::internal);
  log::error(failure.message);
  channel_->abort({failure.kind, failure.rank.value_or(variables_.rank), -1, 0, "", failure.message});
  return exit_code_of(failure.kind);
}

}  // namespace convoy
