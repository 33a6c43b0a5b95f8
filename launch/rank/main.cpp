// convoy-rank: trains. A child of `convoy`, which sends it everything over the control channel.
//
//   convoy-rank              one process of a job; environment: CONVOY_CHANNEL, CONVOY_PROCESS, CONVOY_RANK
//   convoy-rank --describe   reads a resolved configuration from standard input, loads its plugins, checks options;
//                            `--describe blocks` also prints the model's blocks, `--describe activations` their saved
//                            activations, `--describe metrics` the metrics of its evaluations
//   convoy-rank --against    reads a request from standard input, compares with Python (launch/rank/against.h)
//   convoy-rank --export     reads a request from standard input, writes weights for Python (core/checkpoint/export.h)
//   convoy-rank --calibrate  one process of a calibration (launch/explain/calibration.h); environment as for a job
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "api/components.h"
#include "api/rank_process.h"
#include "api/thread_stacks.h"
#include "core/base/log.h"
#include "core/base/version.h"
#include "core/checkpoint/export.h"
#include "core/control/exit_codes.h"
#include "core/data/rows.h"
#include "launch/prepare/describe.h"
#include "launch/rank/against.h"
#include "launch/rank/measure/bench.h"
#include "launch/rank/measure/timed_step.h"
#include "launch/rank/rank.h"
#include "models/registry.h"

// Settings of jemalloc, which replaces malloc if the build has found it; MALLOC_CONF overrides them. Its defaults
// return freed memory to the system while a step still needs it: activations are faulted in again in each step, which
// doubles the time of a convolutional network. So freed memory is kept until return_free_memory().
extern "C" __attribute__((used)) const char* const malloc_conf =
    "dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0";

namespace {

using namespace convoy;

// Reads the request of the `convoy` that has started this process to get one answer.
Json read_request() {
  report_stacks_on(describe_stacks_signal(), describe_stack_line);
  log::set_level(log::Level::warning);  // `convoy` reports stderr as the reason of a failure
  return Json::parse(std::string((std::istreambuf_iterator<char>(std::cin)), std::istreambuf_iterator<char>()));
}

// A plugin may have printed text without the end of its line.
int answer(const Json& output) {
  std::cout << '\n' << output.dump() << '\n';
  return 0;
}

int run_export() {
  return answer(export_weights(read_request().get<ExportRequest>(),
                               [](const Component& model) { return weight_names(model.name, model.options); }));
}

int run_against() {
  const Json request = read_request();
  RunConfig config = RunConfig::from_resolved(request.at("config"));
  const Registry registry = make_registry(config);
  return answer(compare_with_reference(config, registry, request.at("folder").get<std::string>()));
}

int run_describe(const std::string& what) {
  RunConfig config = RunConfig::from_resolved(read_request());
  const Registry registry = make_registry(config, /*few_rows=*/true);
  Json output{{"version", version}, {"config", config.resolved}};
  if (what == "metrics") {
    const auto metrics = evaluation_metrics(config, registry);
    output["metrics"] = metrics ? Json(*metrics) : Json();
  } else if (!what.empty()) {
    const DescribedBlocks described = describe_blocks(config, registry, what == "activations");
    output["model"] = described.model;
    output["unmeasured"] = described.unmeasured;
    output["advice"] = described.advice;
  }
  return answer(output);
}

int run_calibrate() {
  const RankVariables variables = rank_variables();
  const std::shared_ptr<Channel> channel = connect_to_supervisor(variables.channel, variables.process);
  try {
    calibrate(channel, variables.process);
    return 0;
  } catch (...) {
    const TranslatedException failure = translate_exception(Failure::training);
    channel->abort({failure.kind, variables.process, -1, 0, "", failure.message});
    return exit_code_of(failure.kind);
  }
}

int run() {
  RankProcess process;
  try {
    process.assign();
    const Registry registry = make_registry(process.assignment().job.config);
    return run_ranks(process, registry);
  } catch (...) {
    return process.fail();
  }
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

void before_main(int, char**, char**) {
  // Checks for memory first: without it, jemalloc and the CUDA libraries crash at their first objects. `convoy` prints
  // the message for this exit code.
  constexpr size_t needed = 32 << 20;
  void* const memory = mmap(nullptr, needed, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) _exit(exit_code::out_of_memory);
  munmap(memory, needed);
  install_terminate_handler();
}

// LibTorch registers its operators before main() and may run out of memory there. Sanitizers use .preinit_array
// themselves.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
__attribute__((section(".preinit_array"), used)) void (*const before_libraries)(int, char**, char**) = before_main;
#endif

}  // namespace

int main(int argc, char** argv) {
  prepare_process();
  try {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    const std::string what = arguments.size() == 2 ? arguments[1] : "";
    if (!arguments.empty() && arguments.size() <= 2 && arguments[0] == "--describe" &&
        (what.empty() || what == "blocks" || what == "activations" || what == "metrics"))
      return exit_process(run_describe(what));
    if (arguments.size() == 1 && arguments[0] == "--calibrate") return exit_process(run_calibrate());
    if (arguments.size() == 1 && arguments[0] == "--against") return exit_process(run_against());
    if (arguments.size() == 1 && arguments[0] == "--export") return exit_process(run_export());
    if (!arguments.empty())
      throw Error(Failure::command_line, "convoy-rank: `convoy` starts this program; type `convoy --help`");
    return exit_process(run());
  } catch (...) {
    const TranslatedException failure = translate_exception(Failure::internal);
    std::cerr << (failure.kind == Failure::internal ? "convoy-rank: " : "") << failure.message << '\n';
    if (argc > 1) answer({{describe_failed_key, name_of(failure.kind)}});
    return exit_process(exit_code_of(failure.kind));
  }
}
