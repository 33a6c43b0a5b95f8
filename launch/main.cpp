// convoy: reads, checks, plans, starts and supervises. Without LibTorch.
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <new>
#include <system_error>

#include "core/limits.h"
#include "core/utf8.h"
#include "core/version.h"
#include "launch/bench_report.h"
#include "launch/catalogues.h"
#include "launch/commands/add.h"
#include "launch/commands/bench.h"
#include "launch/commands/explain.h"
#include "launch/commands/help.h"
#include "launch/commands/list.h"
#include "launch/commands/run.h"
#include "launch/commands/top.h"
#include "launch/commands/verify.h"
#include "launch/exit_codes.h"
#include "launch/process.h"
#include "launch/run_modes.h"
#include "launch/signals.h"
#include "launch/terminal_safe_stream.h"

namespace {

using namespace convoy;

constexpr const char* run_footer = R"(
Examples:
  convoy run configs/ncf_ddp.yaml
  convoy run configs/ncf_ddp.yaml --ranks 4 --set train.epochs=3 --set optimizer.lr=5e-4
  convoy run configs/ncf_ddp.yaml --inject kill:rank=1@step=200 --set launch.max_restarts=1
  mpirun -n 4 convoy run configs/ncf_ddp.yaml
  srun --mpi=pmix -n 4 convoy run configs/ncf_ddp.yaml
  convoy run configs/ncf_ddp.yaml --hosts node1:4,node2:4

Exit codes: 0 done, 64 command line, 65 corrupt data, 69 device missing, 70 failure in training, 71 out of memory,
73 output directory, 74 I/O, 75 rendezvous, 76 ranks disagree, 77 refused for security, 78 configuration, 110 hang,
126/127 cannot execute, 128+n ended by signal n.)";

constexpr const char* verify_footer = R"(
Trains what CONFIG describes and the same on one rank by the reference strategy, on the same global batches, and prints the worst
relative difference of each parameter, gradient and moment after every update. Nothing stays on disk. Works for plugins.

Examples:
  convoy verify configs/ncf_ddp.yaml
  convoy verify configs/ncf_ddp.yaml --ranks 4 --steps 10 --set backend=mpi
  convoy verify mine.yaml --set model.plugin=$PWD/build/libmine.so

Exit codes: 0 agree, 1 differ, else as of `convoy run`.)";

constexpr const char* explain_footer = R"(
Starts no run: where each rank would run and why, what it would send and hold, in which order it would work. With
--calibrate, and to --compare on this machine, it measures one rank's step for some seconds and predicts how long a step of
each candidate would take.

Examples:
  convoy explain configs/ncf_ddp.yaml
  convoy explain configs/gpt_ddp.yaml --ranks 8 --topology dgx.xml --set device=auto   (lstopo --of xml dgx.xml, on that machine)
  convoy explain configs/gpt_ddp.yaml --ranks 4 --hosts node1,node2
  convoy explain configs/gpt_ddp.yaml --ranks 2 --compare single,ddp,pipeline,fsdp
  convoy explain configs/gpt_ddp.yaml --ranks 2 --compare single,ddp --calibrate
  convoy explain configs/gpt_ddp.yaml --ranks 8 --hosts a,b --calibration calibration.json --link 20us,12GB/s)";

constexpr const char* bench_footer = R"(
Times one operation among the ranks of a job, size by size, and checks every element. Placement, binding and launchers are those
of `convoy run`; of CONFIG only device, backend, launch and log count. Sizes and bandwidths are those of nccl-tests; `send` gives
to the next rank and receives from the one before it.

Examples:
  convoy bench all_reduce --ranks 2 --set backend=mpi
  convoy bench all_gather --ranks 4 --sizes 4K,450000,48M --dtype bf16 --json rows.json
  mpirun -n 4 convoy bench all_reduce

Exit codes: 0 done, 1 an element was wrong, else as of `convoy run`.)";

constexpr const char* top_footer = R"(
Keys: q quits, up and down choose a row, l shows the end of its log. Where stdout is no terminal the table is printed as text,
again and again until the run is over.

Examples:
  convoy top runs/farm
  convoy top runs/farm --once

Exit codes: 0, 64 no run there, 128+n ended by signal n.)";

constexpr const char* add_footer = R"(
FILE is one pipeline: name, config (a file, or the keys of a whole run) and how it is queued (priority, preempt, retries, timeout,
memory, cores, …), checked as strictly as by `convoy run`. The farm in RUN takes it into its queue, or says why not.
--set adds the points of its grid that have a new value. A farm that has ended goes on with them, and leaves finished ones alone.

Examples:
  convoy add runs/farm configs/urgent.yaml
  convoy add runs/grid --set strategy.grid.seed=[3,4]

Exit codes: 0 it is in the queue, 64 no farm there, 73 nobody runs it any more, 78 configuration, 110 no answer.)";

void add_run_options(CLI::App& command, RunArguments& arguments) {
  command.add_option("CONFIG", arguments.config, "YAML file of the run")->required();
  command
      .add_option("--set", arguments.overrides, "Override a key, as in train.epochs=3; may be repeated, later ones win")
      ->type_name("KEY=VALUE")
      ->take_all()
      ->allow_extra_args(false);
  command
      .add_option("--ranks", arguments.ranks, "Number of ranks; without it launch.ranks, or what the strategy chooses")
      ->type_name("N")
      ->check(CLI::Range(1, 1000000));
}

void add_inject_option(CLI::App& command, RunArguments& arguments) {
  command
      .add_option("--inject", arguments.faults,
                  "Make a fault happen, as in kill:rank=1@step=50, to try how the job recovers; may be repeated; "
                  "docs/debugging.md lists them")
      ->type_name("FAULT")
      ->take_all()
      ->allow_extra_args(false);
}

void add_hosts_option(CLI::App& command, RunArguments& arguments) {
  command.add_option("--hosts", arguments.hosts, "Start ranks on these hosts, over launch.remote_shell (ssh)")
      ->type_name("A,B or A:4,B:4")
      ->delimiter(',');
}

// Arguments go into messages and JSON, which hold UTF-8 alone.
void check_arguments(int argc, char** argv) {
  for (int i = 1; i < argc; ++i)
    if (const std::string text = valid_utf8(argv[i]); text != argv[i])
      throw Error(Failure::command_line, str("convoy: argument ", i, ", ", text,
                                             ": is not valid UTF-8; rename the file, or name it by another path"));
}

int run(int argc, char** argv) {
  check_arguments(argc, argv);
  CLI::App app{"convoy: distributed training on LibTorch, told by a YAML file"};
  app.set_version_flag("--version", std::string("convoy ") + version);
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Print the help of every command and exit");

  RunArguments arguments;
  CLI::App* run = app.add_subcommand("run", "Train what CONFIG describes");
  add_run_options(*run, arguments);
  run->add_option("--output", arguments.output, "Run folder; without it the next free runs/NAME")
      ->type_name("DIR")
      ->check([](const std::string& folder) { return folder.empty() ? "must name a folder" : std::string(); });
  add_inject_option(*run, arguments);
  add_hosts_option(*run, arguments);
  run->footer([] { return configuration_help(all_catalogues()) + run_footer; });

  VerifyArguments verification;
  CLI::App* verify = app.add_subcommand("verify", "Is a strategy's training, of your model too, that of one rank?");
  add_run_options(*verify, verification.run);
  add_inject_option(*verify, verification.run);
  verify->add_option("--steps", verification.steps, "Global batches to train")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 1000000));
  verify->add_option("--precision", verification.precision, "Of both runs: fp64 or fp32")
      ->capture_default_str()
      ->type_name("P")
      ->check(CLI::IsMember({"fp64", "fp32"}));
  verify
      ->add_option("--tolerance", verification.tolerance,
                   "Relative difference that is taken for rounding; without it 1e-9 in fp64, 1e-3 in fp32")
      ->type_name("T")
      ->check([](const std::string& text) {
        char* end = nullptr;
        const double value = std::strtod(text.c_str(), &end);
        const bool whole = !text.empty() && *end == '\0';
        return whole && std::isfinite(value) && value > 0
                   ? std::string()
                   : str("is ", text, ", must be a number above 0, such as 1e-9");
      });
  verify->footer(verify_footer);

  ExplainArguments question;
  CLI::App* explain = app.add_subcommand("explain", "What would `run` do: placement, bytes sent, memory, schedule");
  add_run_options(*explain, question.run);
  explain->add_option("--topology", question.topology, "Another machine, as `lstopo --of xml FILE` has saved it there")
      ->type_name("FILE");
  explain->add_option("--hosts", question.hosts, "Names of several such hosts")->type_name("A,B")->delimiter(',');
  explain->add_option("--compare", question.compare, "Strategies side by side, else as configured")
      ->type_name("S,S")
      ->delimiter(',');
  CLI::Option* calibrate = explain->add_flag(
      "--calibrate", question.calibrate,
      "Measure one rank's step and the backend for some seconds, write calibration.json, and predict step times");
  CLI::Option* calibration =
      explain->add_option("--calibration", question.calibration, "Predict from what --calibrate has written")
          ->type_name("FILE")
          ->excludes(calibrate);
  calibrate->excludes(calibration);
  explain->add_flag("--no-times", question.no_times, "Compare without measuring, by what is counted alone")
      ->excludes(calibrate)
      ->excludes(calibration);
  explain->add_option("--link", question.link, "Between hosts: latency and bandwidth, as 20us,12GB/s")
      ->type_name("LATENCY,BYTES/s");
  explain->footer(explain_footer);

  BenchArguments measurement;
  CLI::App* bench = app.add_subcommand("bench", "Time, bandwidth and correctness of a collective, by size");
  bench->add_option("OPERATION", measurement.operation, "all_reduce, all_gather, reduce_scatter, broadcast or send")
      ->required()
      ->check(CLI::IsMember(bench_operations()));
  add_run_options(*bench, measurement.run);
  bench->get_option("CONFIG")->required(false)->description("YAML file whose device, backend and launch are taken");
  add_hosts_option(*bench, measurement.run);
  bench->add_option("--output", measurement.run.output, "Keep the run's folder, as this one")->type_name("DIR");
  bench->add_option("--sizes", measurement.sizes, "Bytes: 1K-64M doubles from one to the other; or a list, 4K,450000")
      ->capture_default_str()
      ->type_name("SIZES");
  bench->add_option("--dtype", measurement.dtype, "Of the elements")
      ->capture_default_str()
      ->type_name("T")
      ->check(CLI::IsMember(bench_dtypes()));
  bench->add_option("--json", measurement.json, "Write the rows there too, for programs")->type_name("FILE");
  bench->footer(bench_footer);

  TopArguments watching;
  CLI::App* top = app.add_subcommand("top", "Watch a run: state, step, rate, loss, time left, CPU, memory, GPUs");
  top->add_option("RUN", watching.folder, "Folder of a run, also of one with several pipelines")->required();
  top->add_flag("--once", watching.once, "Print the table once and end");
  top->add_option("--every", watching.every, "Seconds between two looks; without it 1 on a screen, 10 as text")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.1, 86400.0));
  top->footer(top_footer);

  AddArguments addition;
  CLI::App* add = app.add_subcommand("add", "Put further pipelines into the queue of a farm");
  add->add_option("RUN", addition.folder, "Folder of the farm")->required();
  add->add_option("FILE", addition.file, "YAML file of the pipeline");
  add->add_option("--set", addition.overrides,
                  "Give a key of the farm's grid more values, as in strategy.grid.seed=[3,4]")
      ->type_name("KEY=VALUES")
      ->take_all()
      ->allow_extra_args(false);
  add->add_option("--wait", addition.wait, "Seconds for the farm's answer")
      ->capture_default_str()
      ->type_name("SECONDS")
      ->check(CLI::Range(1.0, 86400.0));
  add->footer(add_footer);

  ListRequest listing;
  CLI::App* list = app.add_subcommand("list", "What a configuration may hold: keys, models, data sets, strategies, …");
  list->add_option("KIND", listing.kind, "config, model, data, optimizer, strategy, backend, …; without it all names");
  list->add_option("NAME", listing.name, "One name of that kind, with its options");
  list->add_flag("--markdown", listing.markdown, "The whole reference page, docs/config.md");

  // What `run --hosts` starts on the other hosts; it reads all it needs from its standard input.
  if (argc == 2 && std::string(argv[1]) == "agent") {
    EventLoop loop;
    return run_for_another_host(loop);
  }
  // CLI11 would only ask for a command.
  const std::vector<std::string> commands{run->get_name(), verify->get_name(), explain->get_name(), bench->get_name(),
                                          top->get_name(), add->get_name(),    list->get_name()};
  if (argc > 1 && argv[1][0] != '-' && std::find(commands.begin(), commands.end(), argv[1]) == commands.end())
    unknown_command(argv[1], commands);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? exit_code::done : exit_code::command_line;
  }
  if (*list) {
    list_catalogues(all_catalogues(), listing, std::cout);
    return exit_code::done;
  }
  if (*explain) {
    convoy::explain(question, std::cout);
    return exit_code::done;
  }
  if (*add) return add_command(addition);
  if (*top) return top_command(watching);
  if (*bench) return bench_command(measurement);
  if (*verify) return verify_command(verification);
  return run_command(arguments);
}

// Tells what was thrown, and gives its exit code.
int guarded(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const CannotExecute& error) {
    std::cerr << error.what() << '\n';
    return error.code();
  } catch (const Error& error) {
    std::cerr << error.what() << '\n';
    return exit_code_of(error.kind());
  } catch (const std::filesystem::filesystem_error& error) {
    std::cerr << "convoy: " << error.what() << '\n';
    return exit_code_of(Failure::io);
  } catch (const std::bad_alloc&) {
    std::cerr << "convoy: " << no_memory_text() << '\n';
    return exit_code::out_of_memory;
  } catch (const std::system_error& error) {
    const bool threads = error.code() == std::errc::resource_unavailable_try_again;
    std::cerr << "convoy: " << (threads ? no_thread_text() : error.what()) << '\n';
    return threads ? exit_code::out_of_memory : exit_code_of(Failure::internal);
  } catch (const std::exception& error) {
    std::cerr << "convoy: " << error.what() << '\n';
    return exit_code_of(Failure::internal);
  }
}

// The standard output is a pipe whose reader has ended, as `head` does.
bool nobody_reads_output() {
  pollfd output{STDOUT_FILENO, 0, 0};
  return poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0;
}

}  // namespace

int main(int argc, char** argv) {
  settle_signals();
  const TerminalSafeStream output(std::cout), errors(std::cerr);
  const int code = guarded(argc, argv);
  if (std::cout.flush() || code != exit_code::done || nobody_reads_output()) return code;
  std::cerr << "convoy: the standard output cannot be written; is the disk full, or `ulimit -f` reached?\n";
  return exit_code::io;
}
