// `convoy`: reads, checks, plans, starts and supervises runs. Without LibTorch.
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <new>
#include <system_error>

#include "core/base/text.h"
#include "core/base/version.h"
#include "core/control/exit_codes.h"
#include "core/files/files.h"
#include "core/files/limits.h"
#include "launch/cli/commands.h"
#include "launch/cli/use.h"
#include "launch/diagnose/reports.h"
#include "launch/generate/generate.h"
#include "launch/job/run_modes.h"
#include "launch/prepare/describe.h"
#include "launch/process/event_loop.h"
#include "launch/process/process.h"
#include "launch/text/text_table.h"

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
  convoy run configs/ncf_ddp.yaml --nodes 2 --node-rank 1 --rendezvous node0:29500    (on node 1)
  convoy run --join runs/gpt    (adds a rank to a running job with launch.min_ranks)
  convoy run --ranks 2 -- ./mine --epochs 3    (a program of yours that uses the C++ library)

Exit codes: 0 done, 64 command line, 65 corrupt data, 69 device missing, 70 failure in training, 71 out of memory,
73 output directory, 74 I/O, 75 rendezvous, 76 ranks disagree, 77 refused for security, 78 configuration, 110 hang,
126/127 cannot execute, 128+n ended by signal n.)";

constexpr const char* verify_footer = R"(
Trains CONFIG, and the same model by the reference strategy on one rank, on the same global batches. Prints the largest
relative difference of each parameter, gradient and moment after every update. Keeps no files. Works for plugins.

Examples:
  convoy verify configs/ncf_ddp.yaml
  convoy verify configs/ncf_ddp.yaml --ranks 4 --steps 10 --set backend=mpi
  convoy verify mine.yaml --set model.plugin=$PWD/build/libmine.so
  convoy verify gpt2.yaml --against reference

Exit codes: 0 agree, 1 differ, else as of `convoy run`.)";

constexpr const char* explain_footer = R"(
Starts no run. Shows where each rank would run and why, what it would send and store, and the order of its work. With
--calibrate, and with --compare on this machine, it measures one rank's step for some seconds and predicts the step time
of each candidate.

Examples:
  convoy explain configs/ncf_ddp.yaml
  lstopo --of xml dgx.xml    (on the other machine)
  convoy explain configs/gpt_ddp.yaml --ranks 8 --topology dgx.xml --set device=auto
  convoy explain configs/gpt_ddp.yaml --ranks 4 --hosts node1,node2
  convoy explain configs/gpt_ddp.yaml --ranks 2 --compare single,ddp,pipeline,fsdp
  convoy explain configs/gpt_ddp.yaml --ranks 2 --compare single,ddp --calibrate
  convoy explain configs/gpt_ddp.yaml --ranks 8 --hosts a,b --calibration calibration.json --link 20us,12GB/s)";

constexpr const char* bench_footer = R"(
Times one operation between the ranks of a job, size by size, and checks every element. Placement, binding and launchers
are those of `convoy run`; CONFIG counts only for device, backend, launch and log. Sizes and bandwidths follow
nccl-tests; `send` sends to the next rank and receives from the previous one.

Examples:
  convoy bench all_reduce --ranks 2 --set backend=mpi
  convoy bench all_gather --ranks 4 --sizes 4K,450000,48M --dtype bf16 --json rows.json
  mpirun -n 4 convoy bench all_reduce

Exit codes: 0 done, 1 an element was wrong, else as of `convoy run`.)";

constexpr const char* top_footer = R"(
Keys: q quits, up and down choose a row, l shows the end of its log. If stdout is no terminal, the table is printed as
text repeatedly until the run is over.

Examples:
  convoy top runs/farm
  convoy top runs/farm --once

Exit codes: 0, 64 no run there, 128+n ended by signal n.)";

constexpr const char* add_footer = R"(
FILE is one pipeline: name, config (a file, or the keys of a whole run) and queue options (priority, preempt, retries,
timeout, memory, cores, …), checked as strictly as by `convoy run`. The farm in RUN queues it, or refuses with a reason.
--set adds the grid points with new values. A farm that has ended resumes with them; finished pipelines are kept.

Examples:
  convoy add runs/farm configs/urgent.yaml
  convoy add runs/grid --set strategy.grid.seed=[3,4]

Exit codes: 0 in the queue, 64 no farm there, 73 the farm does not run, 78 configuration, 110 no answer.)";

constexpr const char* export_footer = R"(
Writes DIR/model.safetensors with the parameters and buffers of the newest checkpoint, under the names that Python has
for them: gpt as GPT-2 and llama as Llama of transformers, resnet as torchvision, mlp, convnet and ncf as in
docs/python.md. A run of any strategy becomes whole tensors. `hf` also writes config.json and the tokenizer, so that
AutoModelForCausalLM.from_pretrained(DIR) opens it. Names a member of an ensemble by RUN@member0.

Examples:
  convoy export runs/gpt --to gpt2 --format hf
  convoy export runs/fashion-mlp/checkpoints/step-200 --to mlp

Exit codes: 0, 64 no run there, 65 damaged checkpoint, 73 DIR has files, 74 I/O, 78 no such format for this model.)";

// An option that may be repeated, with one value each.
void add_repeated(CLI::App& command, const char* name, const char* type, std::vector<std::string>& values,
                  const char* help) {
  command.add_option(name, values, help)->type_name(type)->take_all()->allow_extra_args(false);
}

void add_run_options(CLI::App& command, RunArguments& arguments) {
  command.add_option("CONFIG", arguments.config, "YAML file of the run")->required();
  add_repeated(command, "--set", "KEY=VALUE", arguments.overrides,
               "Override a key, as in train.epochs=3; may be repeated, later ones win");
  command
      .add_option("--ranks", arguments.ranks, "Number of ranks; without it launch.ranks, or what the strategy chooses")
      ->type_name("N")
      ->check(CLI::Range(1, 1000000));
}

void add_inject_option(CLI::App& command, RunArguments& arguments) {
  add_repeated(command, "--inject", "FAULT", arguments.faults,
               "Make a fault happen, as in kill:rank=1@step=50, to try how the job recovers; may be repeated; "
               "docs/debugging.md lists them");
}

void add_hosts_option(CLI::App& command, RunArguments& arguments) {
  command.add_option("--hosts", arguments.hosts, "Start ranks on these hosts, over launch.remote_shell (ssh)")
      ->type_name("A,B or A:4,B:4")
      ->delimiter(',');
}

void add_node_options(CLI::App& command, NodeOptions& options) {
  command
      .add_option(
          "--nodes", options.nodes,
          "One convoy per node: number of nodes, on which this command is started; platforms' variables give it "
          "too (docs/howto/nodes.md)")
      ->type_name("N")
      ->check(CLI::Range(1, 100000));
  command.add_option("--node-rank", options.node, "Number of this node, from 0")
      ->type_name("R")
      ->check(CLI::Range(0, 99999));
  command.add_option("--rendezvous", options.rendezvous, "Where node 0 waits for the others; port 29500 if not given")
      ->type_name("HOST:PORT");
}

// Refuses arguments that are not UTF-8: they go into messages and JSON.
void check_arguments(int argc, char** argv) {
  for (int i = 1; i < argc; ++i)
    if (const std::string text = valid_utf8(argv[i]); text != argv[i])
      throw Error(Failure::command_line, "convoy: argument ", i, ", ", text,
                  ": is not valid UTF-8; rename the file, or use another path");
}

// Moves the words after `--` of `convoy run` into `program`; returns how many arguments precede `--`.
int take_program(int argc, char** argv, std::vector<std::string>& program) {
  const auto end = argv + argc;
  if (argc < 2 || std::string(argv[1]) != "run") return argc;
  const auto dashes = std::find(argv, end, std::string("--"));
  if (dashes == end) return argc;
  program.assign(dashes + 1, end);
  if (program.empty())
    throw Error(Failure::command_line, "convoy run: no program after --; type `convoy run --ranks 2 -- ./mine`");
  return static_cast<int>(dashes - argv);
}

// `--join` takes no other options: the run that the rank joins has its configuration already.
void check_join(const RunArguments& arguments) {
  const bool others = !arguments.config.empty() || !arguments.program.empty() || !arguments.overrides.empty() ||
                      arguments.ranks > 0 || !arguments.output.empty() || !arguments.faults.empty() ||
                      !arguments.hosts.empty() || arguments.nodes.any();
  if (others)
    throw Error(Failure::command_line, "convoy run: --join adds a rank to a run as it is; type only ",
                "`convoy run --join RUN`");
}

void check_subject(const RunArguments& arguments) {
  if (arguments.config.empty() && arguments.program.empty())
    throw Error(Failure::command_line,
                "convoy run: name a YAML file, or a program after --; type `convoy run --help` for examples");
  if (!arguments.config.empty() && !arguments.program.empty())
    throw Error(Failure::command_line, "convoy run: ", arguments.config, " conflicts with the program after --; ",
                "give one of them, or write program: […] in the file");
}

// An option of a folder.
void add_folder(CLI::App& command, const char* name, const char* type, std::string& folder, const char* help,
                bool required = false) {
  command.add_option(name, folder, help)->type_name(type)->required(required)->check([](const std::string& given) {
    return given.empty() ? "must name a folder" : std::string();
  });
}

ParsedCommand add_run(CLI::App& app, std::vector<std::string> program) {
  struct Given {
    RunArguments run;
    std::string joined;
  };
  auto given = std::make_shared<Given>();
  given->run.program = std::move(program);
  CLI::App* line = app.add_subcommand("run", "Train what CONFIG describes, or run a program: -- PROGRAM ARGUMENT…");
  add_run_options(*line, given->run);
  line->get_option("CONFIG")->required(false);
  add_folder(*line, "--output", "DIR", given->run.output, "Run folder; without it the next free runs/NAME");
  add_folder(*line, "--join", "RUN", given->joined,
             "Add a rank to this running job, whose configuration has launch.min_ranks");
  add_inject_option(*line, given->run);
  add_hosts_option(*line, given->run);
  add_node_options(*line, given->run.nodes);
  line->footer([] { return configuration_help(all_catalogues()) + run_footer; });
  return {line, [given] {
            if (given->joined.empty()) {
              check_subject(given->run);
              return run_command(given->run);
            }
            check_join(given->run);
            return join_command(given->joined);
          }};
}

ParsedCommand add_verify(CLI::App& app) {
  auto arguments = std::make_shared<VerifyArguments>();
  CLI::App* line = app.add_subcommand("verify", "Compare a strategy's training, also of your model, with one rank's");
  add_run_options(*line, arguments->run);
  add_inject_option(*line, arguments->run);
  line->add_option("--steps", arguments->steps, "Global batches to train")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 1000000));
  line->add_option("--precision", arguments->precision, "Precision of both runs: fp64 or fp32")
      ->capture_default_str()
      ->type_name("P")
      ->check(CLI::IsMember({"fp64", "fp32"}));
  line->add_option("--tolerance", arguments->tolerance,
                   "Largest relative difference that counts as rounding; default 1e-9 in fp64, 1e-3 in fp32")
      ->type_name("T")
      ->check([](const std::string& text) {
        char* end = nullptr;
        const double value = std::strtod(text.c_str(), &end);
        const bool whole = !text.empty() && *end == '\0';
        return whole && std::isfinite(value) && value > 0
                   ? std::string()
                   : str("is ", text, ", must be a number above 0, such as 1e-9");
      });
  line->add_option("--against", arguments->against,
                   "Compare one step with a model of Python, from a folder of tools/dump_reference.py; precision and "
                   "default tolerance (1e-5, fp64: 1e-10) follow its weights")
      ->type_name("DIR")
      ->excludes("--steps")
      ->excludes("--precision");
  line->footer(verify_footer);
  return {line, [arguments] { return verify_command(*arguments); }};
}

ParsedCommand add_explain(CLI::App& app) {
  auto arguments = std::make_shared<ExplainArguments>();
  CLI::App* line = app.add_subcommand("explain", "Predict a run: placement, bytes sent, memory, schedule");
  add_run_options(*line, arguments->run);
  line->add_option("--topology", arguments->topology, "Another machine, from a file of `lstopo --of xml FILE`")
      ->type_name("FILE");
  line->add_option("--hosts", arguments->hosts, "Names of several such hosts")->type_name("A,B")->delimiter(',');
  line->add_option("--compare", arguments->compare, "Compare these strategies, with the other keys as configured")
      ->type_name("S,S")
      ->delimiter(',');
  CLI::Option* calibrate = line->add_flag(
      "--calibrate", arguments->calibrate,
      "Measure one rank's step and the backend for some seconds, write calibration.json, and predict step times");
  CLI::Option* calibration =
      line->add_option("--calibration", arguments->calibration, "Predict step times from a file of --calibrate")
          ->type_name("FILE")
          ->excludes(calibrate);
  calibrate->excludes(calibration);
  line->add_flag("--no-times", arguments->no_times, "Compare without measuring step times")
      ->excludes(calibrate)
      ->excludes(calibration);
  line->add_option("--link", arguments->link, "Latency and bandwidth between hosts, as in 20us,12GB/s")
      ->type_name("LATENCY,BYTES/s");
  line->footer(explain_footer);
  return {line, [arguments] {
            convoy::explain(*arguments, std::cout);
            return exit_code::done;
          }};
}

ParsedCommand add_bench(CLI::App& app) {
  auto arguments = std::make_shared<BenchArguments>();
  CLI::App* line = app.add_subcommand("bench", "Measure time, bandwidth and correctness of a collective, by size");
  line->add_option("OPERATION", arguments->operation, "all_reduce, all_gather, reduce_scatter, broadcast or send")
      ->required()
      ->check(CLI::IsMember(bench_operations));
  add_run_options(*line, arguments->run);
  line->get_option("CONFIG")->required(false)->description("YAML file with device, backend and launch");
  add_hosts_option(*line, arguments->run);
  line->add_option("--output", arguments->run.output, "Keep the run folder under this name")->type_name("DIR");
  line->add_option("--sizes", arguments->sizes, "Sizes in bytes: 1K-64M doubles from 1K to 64M; or a list, 4K,450000")
      ->capture_default_str()
      ->type_name("SIZES");
  line->add_option("--dtype", arguments->dtype, "Type of the elements")
      ->capture_default_str()
      ->type_name("T")
      ->check(CLI::IsMember(bench_dtypes));
  line->add_option("--json", arguments->json, "Also write the rows to this file, for programs")->type_name("FILE");
  line->footer(bench_footer);
  return {line, [arguments] { return bench_command(*arguments); }};
}

ParsedCommand add_top(CLI::App& app) {
  auto arguments = std::make_shared<TopArguments>();
  CLI::App* line = app.add_subcommand("top", "Watch a run: state, step, rate, loss, time left, CPU, memory, GPUs");
  line->add_option("RUN", arguments->folder, "Run folder, also of a farm")->required();
  line->add_flag("--once", arguments->once, "Print the table once and end");
  line->add_option("--every", arguments->every, "Seconds between updates; default 1 on a terminal, 10 as text")
      ->type_name("SECONDS")
      ->check(real_range(0.1, 86400));
  line->footer(top_footer);
  return {line, [arguments] { return top_command(*arguments); }};
}

ParsedCommand add_add(CLI::App& app) {
  auto arguments = std::make_shared<AddArguments>();
  CLI::App* line = app.add_subcommand("add", "Put further pipelines into the queue of a farm");
  line->add_option("RUN", arguments->folder, "Folder of the farm")->required();
  line->add_option("FILE", arguments->file, "YAML file of the pipeline");
  add_repeated(*line, "--set", "KEY=VALUES", arguments->overrides,
               "Further values of a key of the farm's grid, as in strategy.grid.seed=[3,4]");
  line->add_option("--wait", arguments->wait, "Seconds to wait for the farm's answer")
      ->capture_default_str()
      ->type_name("SECONDS")
      ->check(real_range(1, 86400));
  line->footer(add_footer);
  return {line, [arguments] { return add_command(*arguments); }};
}

ParsedCommand add_export(CLI::App& app) {
  auto arguments = std::make_shared<ExportArguments>();
  CLI::App* line = app.add_subcommand("export", "Write the weights of a run for Python");
  line->add_option("RUN", arguments->run, "Run folder or checkpoint, also RUN@best, RUN@step-N, RUN@memberN")
      ->required();
  add_folder(*line, "--to", "DIR", arguments->to, "Folder to write", true);
  line->add_option("--format", arguments->format, "safetensors: weights only; hf: for transformers")
      ->capture_default_str()
      ->type_name("F")
      ->check(CLI::IsMember(export_formats));
  line->add_flag("--force", arguments->force, "Replace an earlier export in DIR");
  line->add_option("--max-file-size", arguments->max_file_size,
                   "Divide the weights into files of this size, with an index")
      ->capture_default_str()
      ->type_name("SIZE");
  line->footer(export_footer);
  return {line, [arguments] { return export_command(*arguments); }};
}

// `app`: the command line whose manual page or completion script it prints.
ParsedCommand add_list(CLI::App& app) {
  auto listing = std::make_shared<ListRequest>();
  CLI::App* line = app.add_subcommand("list", "List what a configuration may contain: keys, models, data sets, …");
  line->add_option("KIND", listing->kind, "config, model, data, optimizer, strategy, backend, …; default: all names");
  line->add_option("NAME", listing->name, "One name of that kind, with its options");
  line->add_flag("--markdown", listing->markdown, "Print the whole reference page, docs/config.md");
  line->add_flag("--json-schema", listing->json_schema, "Print the JSON schema of configurations, for editors");
  line->add_option("--completion", listing->completion, "Print the completion script of a shell")
      ->type_name("SHELL")
      ->check(CLI::IsMember(completion_shells));
  line->add_flag("--man", listing->man, "Print the manual page");
  return {line, [&app, listing] {
            if (listing->man)
              std::cout << man_page(app);
            else if (!listing->completion.empty())
              std::cout << completion_script(app, all_catalogues(), listing->completion);
            else
              list_catalogues(all_catalogues(), *listing, std::cout);
            return exit_code::done;
          }};
}

// In the order of `convoy --help`.
std::vector<ParsedCommand> add_commands(CLI::App& app, std::vector<std::string> program) {
  std::vector<ParsedCommand> commands{add_run(app, std::move(program)),
                                      add_verify(app),
                                      add_explain(app),
                                      add_bench(app),
                                      add_top(app),
                                      add_add(app),
                                      add_export(app)};
  for (ParsedCommand& use : add_use_commands(app)) commands.push_back(std::move(use));
  commands.push_back(add_list(app));
  return commands;
}

int run(int argc, char** argv) {
  check_arguments(argc, argv);
  CLI::App app{"convoy: distributed training on LibTorch, configured by a YAML file"};
  app.set_version_flag("--version", std::string("convoy ") + version);
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Print the help of every command and exit");
  std::vector<std::string> program;
  argc = take_program(argc, argv, program);
  const std::vector<ParsedCommand> commands = add_commands(app, std::move(program));

  // `run --hosts` starts this command on other hosts; it reads its request from standard input.
  if (argc == 2 && std::string(argv[1]) == "agent") {
    EventLoop loop;
    return run_agent_for_host(loop);
  }
  // CLI11's message for an unknown command names no alternatives.
  std::vector<std::string> names;
  for (const ParsedCommand& command : commands) names.push_back(command.line->get_name());
  if (argc > 1 && argv[1][0] != '-' && std::find(names.begin(), names.end(), argv[1]) == names.end())
    unknown_command(argv[1], names);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? exit_code::done : exit_code::command_line;
  }
  const auto given = std::find_if(commands.begin(), commands.end(), [](const auto& one) { return bool(*one.line); });
  // A process of LibTorch cannot start in a deleted folder. `list` starts none.
  if (given->line->get_name() != "list") working_folder();
  return given->run();
}

// Reports exceptions and returns their exit codes.
int guarded(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const Error& error) {
    std::cerr << error.what() << '\n';
    return exit_code_of(error);
  } catch (const std::filesystem::filesystem_error& error) {
    std::cerr << "convoy: " << error_text(error) << '\n';
    return exit_code_of(Failure::io);
  } catch (const std::bad_alloc&) {
    std::cerr << "convoy: " << no_memory_text() << '\n';
    return exit_code::out_of_memory;
  } catch (const std::system_error& error) {
    const Error described = limit_error(error, Failure::internal);
    std::cerr << "convoy: " << described.what() << '\n';
    return exit_code_of(described.kind());
  } catch (const std::exception& error) {
    std::cerr << "convoy: " << error.what() << '\n';
    return exit_code_of(Failure::internal);
  }
}

// True if stdout is a pipe whose reader has ended, such as `head`.
bool output_reader_gone() {
  pollfd output{STDOUT_FILENO, 0, 0};
  return poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0;
}

}  // namespace

int main(int argc, char** argv) {
  set_signal_actions();
  prefer_named_libtorch();
  const TerminalSafeStream output(std::cout), errors(std::cerr);
  const int code = guarded(argc, argv);
  if (std::cout.flush() || code != exit_code::done || output_reader_gone()) return code;
  std::cerr << "convoy: the standard output cannot be written; is the disk full, or `ulimit -f` reached?\n";
  return exit_code::io;
}
