// convoy-rank: trains. A child of `convoy`, which tells it everything over the control channel.
//
//   convoy-rank              one process of a job; environment: CONVOY_CHANNEL, CONVOY_PROCESS, CONVOY_RANK
//   convoy-rank --describe   reads a resolved configuration from standard input, loads its plugins, checks their options;
//                            `--describe blocks` also tells the model's blocks, `--describe activations` what they keep,
//                            `--describe figures` what its evaluations tell
//   convoy-rank --calibrate  one process of a calibration (launch/measurement.h); the same environment as a job's
#include <malloc.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "backends/cuda/registry.h"
#include "backends/registry.h"
#include "core/control/protocol.h"
#include "core/data/few_rows.h"
#include "core/log.h"
#include "core/tensor_memory.h"
#include "core/version.h"
#include "launch/describe.h"
#include "launch/exit_codes.h"
#include "launch/gpu_memory.h"
#include "launch/rank/calibrate.h"
#include "launch/rank/caught.h"
#include "launch/rank/crash.h"
#include "launch/rank/figures.h"
#include "launch/rank/own_stacks.h"
#include "launch/rank/rank.h"
#include "launch/rank/stop_signals.h"
#include "launch/rendezvous.h"
#include "launch/signals.h"

namespace {

using namespace convoy;

const char* environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr)
    throw Error(Failure::command_line, str(name, " is not set: convoy-rank is started by `convoy run`, not by hand"));
  return value;
}

// Activations come and go in megabytes: without this glibc gives each back to the system and faults it in again, which
// makes a convolutional step bimodal. Beyond 24 MiB, where blocks of parameters are that come and go, glibc's heaps would
// keep holes of a third of a model. An explicit setting of the user's stands.
void tune_allocator() {
  if (std::getenv("MALLOC_MMAP_THRESHOLD_") || std::getenv("MALLOC_TRIM_THRESHOLD_") || std::getenv("GLIBC_TUNABLES"))
    return;
  mallopt(M_MMAP_THRESHOLD, 24 << 20);
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
}

bool has_gpu(const Job& job) {
  for (const RankPlan& rank : job.ranks)
    for (const DevicePlan& device : rank.devices)
      if (device.kind == DevicePlan::Kind::gpu) return true;
  return false;
}

int describe(const std::string& what) {
  tell_stacks_at(describe_stacks_signal(), describe_stack_line);
  log::set_level(log::Level::warning);  // what it says on stderr is told as the reason why it failed
  const std::string text((std::istreambuf_iterator<char>(std::cin)), std::istreambuf_iterator<char>());
  RunConfig config = RunConfig::from_resolved(Json::parse(text));
  const Registry registry = make_registry(config);
  Json told{{"version", version}, {"config", config.resolved}};
  config.data = few_rows(config.data);
  if (what == "figures") {
    const auto figures = evaluation_figures(config, registry);
    told["figures"] = figures ? to_json(*figures) : Json();
  } else if (!what.empty()) {
    const DescribedBlocks described = describe_blocks(config, registry, what == "activations");
    told["model"] = to_json(described.model);
    told["unmeasured"] = described.unmeasured;
  }
  std::cout << told.dump() << '\n';
  return 0;
}

std::shared_ptr<Channel> connected(const ChannelAddress& address, int rank) {
  std::shared_ptr<Channel> channel = connect_channel(address, rank, str("rank ", rank), Timeout(30000));
  // Whatever this process is doing, it must not outlive the job's launcher.
  channel->on_lost([] {
    std::thread([] {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      _exit(protocol::peer_lost_exit);
    }).detach();
  });
  return channel;
}

int measure() {
  const int process = std::atoi(environment("CONVOY_PROCESS"));
  const std::shared_ptr<Channel> channel = connected(channel_address(environment("CONVOY_CHANNEL")), process);
  try {
    calibrate(channel, process);
    return 0;
  } catch (...) {
    const Caught failure = caught(Failure::training);
    channel->abort({failure.kind, process, -1, 0, "", failure.message});
    return exit_code_of(failure.kind);
  }
}

int run() {
  catch_stop_signals();
  const ChannelAddress address = channel_address(environment("CONVOY_CHANNEL"));
  const int process = std::atoi(environment("CONVOY_PROCESS"));
  const int rank = std::atoi(environment("CONVOY_RANK"));
  const std::shared_ptr<Channel> channel = connected(address, rank);
  tell_stop_signals(channel);
  int code = 0;
  try {
    Assignment assignment = read_assignment(*channel, process, Timeout(30000));
    assignment.data_address = data_address(assignment.config.launch.address, address.host);
    log::set_level(log::level_named(assignment.config.log_level));
    if (has_gpu(assignment.job)) {
      load_cuda_half();
      limit_device_memory(limit_of_process(assignment.job, process, gpu_memory_limit(current_variables())));
    }
    const Registry registry = make_registry(assignment.config);
    code = run_ranks(assignment, registry, channel);
  } catch (...) {
    const Caught failure = caught(Failure::internal);
    log::error(failure.message);
    channel->abort({failure.kind, rank, -1, 0, "", failure.message});
    code = exit_code_of(failure.kind);
  }
  return code;
}

// All has been told, saved and closed by now. LibTorch's static objects take a tenth of a second more to be destroyed, operator
// by operator, for nobody. Sanitizers look for leaks on the way out.
int leave(int code) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  std::cout.flush();
  std::fflush(nullptr);
  _exit(code);
#endif
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  settle_signals();
  install_crash_handlers();
  install_stack_handler();
  // gloo writes to sockets whose other end may have gone, and a log to a pipe that may have: errors, and no end of this rank.
  signal(SIGPIPE, SIG_IGN);
  tune_allocator();
  count_tensor_memory();
  try {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    const std::string what = arguments.size() == 2 ? arguments[1] : "";
    if (!arguments.empty() && arguments.size() <= 2 && arguments[0] == "--describe" &&
        (what.empty() || what == "blocks" || what == "activations" || what == "figures"))
      return leave(describe(what));
    if (arguments.size() == 1 && arguments[0] == "--calibrate") return leave(measure());
    if (!arguments.empty())
      throw Error(Failure::command_line,
                  "convoy-rank takes no arguments but --describe and --calibrate; type `convoy --help`");
    return leave(run());
  } catch (...) {
    const Caught failure = caught(Failure::internal);
    std::cerr << (failure.kind == Failure::internal ? "convoy-rank: " : "") << failure.message << '\n';
    return leave(exit_code_of(failure.kind));
  }
}
