// convoy-rank: trains. A child of `convoy`, which sends it everything over the control channel.
//
//   convoy-rank              one process of a job; environment: CONVOY_CHANNEL, CONVOY_PROCESS, CONVOY_RANK
//   convoy-rank --describe   reads a resolved configuration from standard input, loads its plugins, checks options;
//                            `--describe blocks` also prints the model's blocks, `--describe activations` their saved
//                            activations, `--describe figures` the metrics of its evaluations
//   convoy-rank --calibrate  one process of a calibration (launch/explain/measurement.h); environment as for a job
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

#include "backends/cuda/module/registry.h"
#include "backends/registry.h"
#include "core/base/log.h"
#include "core/base/version.h"
#include "core/control/channel.h"
#include "core/data/rows.h"
#include "core/tensors/tensor_memory.h"
#include "launch/job/rendezvous.h"
#include "launch/machine/gpus.h"
#include "launch/prepare/describe.h"
#include "launch/process/event_loop.h"
#include "launch/process/exit_codes.h"
#include "launch/rank/crash.h"
#include "launch/rank/measure/bench.h"
#include "launch/rank/measure/timed_step.h"
#include "launch/rank/rank.h"
#include "launch/rank/thread_stacks.h"

namespace {

using namespace convoy;

const char* environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr)
    throw Error(Failure::command_line, name, " is not set: convoy-rank is started by `convoy run`, not by hand");
  return value;
}

// Activations of some megabytes are allocated and freed in each step. By default glibc returns each to the system and
// faults it in again, which makes the time of a convolutional step bimodal. Blocks beyond 24 MiB (groups of parameters)
// stay outside the heap, where holes would waste a third of a model. Explicit settings of the user take precedence.
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

int run_describe(const std::string& what) {
  report_stacks_on(describe_stacks_signal(), describe_stack_line);
  log::set_level(log::Level::warning);  // `convoy` reports stderr as the reason of a failure
  const std::string text((std::istreambuf_iterator<char>(std::cin)), std::istreambuf_iterator<char>());
  RunConfig config = RunConfig::from_resolved(Json::parse(text));
  const Registry registry = make_registry(config);
  Json output{{"version", version}, {"config", config.resolved}};
  config.data = with_few_rows(config.data);
  if (what == "figures") {
    const auto metrics = evaluation_metrics(config, registry);
    output["figures"] = metrics ? Json(*metrics) : Json();
  } else if (!what.empty()) {
    const DescribedBlocks described = describe_blocks(config, registry, what == "activations");
    output["model"] = described.model;
    output["unmeasured"] = described.unmeasured;
  }
  std::cout << '\n' << output.dump() << '\n';  // a plugin may have printed text without the end of its line
  return 0;
}

std::shared_ptr<Channel> connected(const ChannelAddress& address, int rank) {
  std::shared_ptr<Channel> channel = connect_channel(address, rank, str("rank ", rank), Timeout(30000));
  // This process must never outlive the job's launcher.
  channel->on_lost([] {
    std::thread([] {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      _exit(protocol::peer_lost_exit);
    }).detach();
  });
  return channel;
}

int run_calibrate() {
  const int process = std::atoi(environment("CONVOY_PROCESS"));
  const std::shared_ptr<Channel> channel = connected(channel_address(environment("CONVOY_CHANNEL")), process);
  try {
    calibrate(channel, process);
    return 0;
  } catch (...) {
    const TranslatedException failure = translate_exception(Failure::training);
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
  report_stop_signals(channel);
  int code = 0;
  try {
    ProcessAssignment assignment = read_assignment(*channel, process, Timeout(30000));
    assignment.data_address = data_address(assignment.config.launch.address, address.host);
    log::set_level(log::level_named(assignment.config.log_level));
    if (has_gpu(assignment.job)) {
      load_cuda_half();
      limit_device_memory(limit_of_process(assignment.job, process, gpu_memory_limit(current_variables())));
    }
    const Registry registry = make_registry(assignment.config);
    code = run_ranks(assignment, registry, channel);
  } catch (...) {
    const TranslatedException failure = translate_exception(Failure::internal);
    log::error(failure.message);
    channel->abort({failure.kind, rank, -1, 0, "", failure.message});
    code = exit_code_of(failure.kind);
  }
  return code;
}

// Exits without destructors: everything is reported, saved and closed by now. LibTorch's static objects take 0.1 s to
// be destroyed. Sanitizers need the normal exit to look for leaks.
int exit_process(int code) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  std::cout.flush();
  std::fflush(nullptr);
  _exit(code);
#endif
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  set_signal_actions();
  install_crash_handlers();
  install_stack_handler();
  // A peer of gloo's sockets or the reader of the log's pipe may be gone: report an error instead of ending this rank.
  signal(SIGPIPE, SIG_IGN);
  tune_allocator();
  count_tensor_memory();
  try {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    const std::string what = arguments.size() == 2 ? arguments[1] : "";
    if (!arguments.empty() && arguments.size() <= 2 && arguments[0] == "--describe" &&
        (what.empty() || what == "blocks" || what == "activations" || what == "figures"))
      return exit_process(run_describe(what));
    if (arguments.size() == 1 && arguments[0] == "--calibrate") return exit_process(run_calibrate());
    if (!arguments.empty())
      throw Error(Failure::command_line,
                  "convoy-rank takes no arguments but --describe and --calibrate; type `convoy --help`");
    return exit_process(run());
  } catch (...) {
    const TranslatedException failure = translate_exception(Failure::internal);
    std::cerr << (failure.kind == Failure::internal ? "convoy-rank: " : "") << failure.message << '\n';
    return exit_process(exit_code_of(failure.kind));
  }
}
