// The commands of `convoy`, one section each.
#pragma once
#include <iosfwd>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/difference.h"
#include "core/config/run_config.h"
#include "launch/prepare/prepare.h"
#include "launch/process/event_loop.h"

namespace convoy {

// --- `convoy add RUN FILE`, `convoy add RUN --set strategy.grid.KEY=[…]` ---

struct AddArguments {
  std::string folder;  // run folder of the farm
  std::string file;    // describes one pipeline: name, config, priority, preempt, …; "": see `overrides`
  std::vector<std::string> overrides;  // further values of grid keys; empty: see `file`
  double wait = 30;                    // time limit in seconds for the farm's answer
};

// Checks FILE like `convoy run`, submits it to the farm and prints the answer. Returns 0 once it is in the queue.
// Values of a grid restart an ended farm; the result is then its exit code. Throws ConfigError and Error(config) for
// mistakes and refusals, Error(command_line) if RUN is no farm, and Error(output) if no process runs the farm.
// Error(hang): no answer arrived in time; the pipeline is withdrawn.
int add_command(const AddArguments& arguments);

// Asks the `convoy` that runs the folder `run` on this host to add a rank, and waits until the rank takes part. Returns
// 0, or the code of the run's refusal. Errors:
// - command_line: `run` is not the folder of a run.
// - output: no process runs it, it ended, or it belongs to another user.
// - config: its ranks cannot change.
// - hang: no answer arrived within launch.rendezvous and 30 s.
int join_command(const std::string& run);

// --- `convoy cancel RUN PIPELINE`, `convoy priority RUN PIPELINE N` ---

struct RequestArguments {
  std::string folder;  // run folder of a running farm
  std::string pipeline;
  std::optional<int64_t> priority;  // nothing: cancel the pipeline
};

// Sends the request to the farm and waits for its answer. Returns 0. Errors:
// - command_line: RUN is no farm or has no such pipeline.
// - output: the farm or the pipeline has ended.
// - hang: the farm does not answer in 30 s.
int request_command(const RequestArguments& arguments);

// --- `convoy bench OPERATION [CONFIG]` ---
//
// Measures the bandwidth of one operation between the ranks of a job, and checks every element. Placement, binding,
// supervision, launchers and failures are those of `convoy run`; the ranks run launch/rank/measure/bench.h instead of
// training. CONFIG counts only for device, backend, launch and log.

struct BenchArguments {
  RunArguments run;  // `config` may be empty; without `output` the run folder is removed at the end
  std::string operation;
  std::string sizes = "1K-64M";
  std::string dtype = "fp32";
  std::string json;  // file for the rows; "": none
};

// Returns 0, exit_code::differs if an element was wrong, else the exit code of `convoy run`.
int bench_command(const BenchArguments& arguments);

// Overrides that supply the required keys of training to a configuration without them. Public for tests.
std::vector<std::string> bench_overrides(const std::string& operation);

// --- `convoy explain CONFIG [--topology FILE] [--ranks N] [--hosts A,B] [--compare a,b,c]
//     [--calibrate | --calibration FILE] [--no-times] [--link LATENCY,BANDWIDTH] [--set k=v]…` ---
//
// Plans, assigns devices and counts like `convoy run`, for this machine or another one, and predicts the time of a
// step. It runs `convoy-rank --describe` for the sizes of blocks. --calibrate, and --compare on this host, also run the
// measurements of launch/explain/explain.h for some seconds.

struct ExplainArguments {
  RunArguments run;                  // `output` stays empty
  std::string topology;              // file of `lstopo --of xml`; "": this machine
  std::vector<std::string> hosts;    // names of hosts with that topology; empty: one host
  std::vector<std::string> compare;  // strategies; empty: explain the configured one in detail
  bool calibrate = false;            // measure, and write calibration.json into the current folder
  bool no_times = false;             // compare without measuring on this host
  std::string calibration;           // file from an earlier --calibrate; "": none
  std::string link;                  // "20us,12GB/s", between hosts; "": not given
};

// Throws the errors of `convoy run`; in a comparison a refused candidate is listed as refused.
void explain(const ExplainArguments& arguments, std::ostream& out);

// The hosts to plan for. Error(command_line) for a repeated name. Public for tests.
Topology hosts_to_explain(const ExplainArguments& arguments, const Host& each);

// --- `convoy export RUN[@memberN] --to DIR [--format F] [--force] [--max-file-size SIZE]` ---
//
// Writes the weights of a run's newest checkpoint for Python. `convoy-rank --export` does the work
// (core/checkpoint/export.h), since it needs LibTorch.

struct ExportArguments {
  std::string run;
  std::string to;
  std::string format = "safetensors";
  bool force = false;
  std::string max_file_size = "5GB";
};

inline const std::vector<std::string> export_formats{"safetensors", "hf"};

// Prints the files and returns 0. Throws Error(command_line) if RUN is no run, and the errors of export_weights.
int export_command(const ExportArguments& arguments);

// --- `convoy vocabulary FILES --size N --to FILE [--special TOKEN]… [--force]` ---
//
// Makes a byte-level BPE tokenizer from texts (core/data/formats/bpe_trainer.h), for data.tokenizer.

struct VocabularyArguments {
  std::vector<std::string> files;  // or patterns
  int64_t size = 0;
  std::string to = "tokenizer.json";
  std::vector<std::string> special;
  bool force = false;
};

// Prints what was made and returns 0. Throws Error(command_line), Error(output) if the file exists, Error(corrupt_data)
// for a file that is no text.
int vocabulary_command(const VocabularyArguments& arguments);

// --- Texts of `convoy run --help` from the catalogues, and unknown commands ---

// Top-level keys with their help, all names of components, and a reference to `convoy list`.
std::string configuration_help(const Catalogues& catalogues);

// Throws Error(command_line) with `word` and the nearest of `commands`.
[[noreturn]] void unknown_command(const std::string& word, const std::vector<std::string>& commands);

// --- `convoy list [--markdown | --json-schema | --completion SHELL | --man] [KIND [NAME]]` ---

struct ListRequest {
  std::string kind;       // "": all kinds, names only; "config": keys of the file; else a kind of the catalogues
  std::string name;       // "": all names of the kind
  bool markdown = false;  // the whole reference page, docs/config.md; kind and name are then empty
  // Files of launch/generate/generate.h; `main` prints the last two, which need the command line.
  bool json_schema = false;
  std::string completion = {};  // shell; "": none
  bool man = false;
};

// Lists to `out`. Throws Error(command_line) with the nearest valid kind or name.
void list_catalogues(const Catalogues& catalogues, const ListRequest& request, std::ostream& out);

// --- docs/config.md, generated from the options ---

std::string reference_page(const Catalogues& catalogues);
// Examples for the page, by section: "data: table", …; "file": a whole configuration. A section may lack an example.
const std::map<std::string, std::string>& reference_examples();

std::string default_text(const Option& option);                  // as in a YAML file
const std::vector<Option>* inner_options(const Option& option);  // options below this one, or null
std::vector<Option> common_options(const std::string& kind);     // options that every component of a kind has

// --- `convoy run CONFIG [--set k=v]… [--output DIR] [--ranks N]` ---

// Runs CONFIG and returns the exit code. Throws errors that it finds before ranks start. `parsed`: the configuration
// with the typed overrides, if the caller has parsed it.
int run_command(const RunArguments& arguments, std::optional<Node> parsed = std::nullopt);

// --- `convoy report RUN… [-o FILE] [--force] [--serve [--port N]]` ---

struct ReportArguments {
  std::vector<std::string> runs;  // run folders, also of farms
  std::string output;             // "": report.html, or no file with `serve`
  bool force = false;
  bool serve = false;
  int port = -1;  // -1: the usual one; 0: a free one
};

// Writes one HTML file about the runs (launch/report/report.h), or serves it on the loopback interface until a signal.
// Returns 0. Error(command_line) if a folder holds no run, Error(corrupt_data) for a damaged summary, Error(output) for
// an existing file, Error(rendezvous) for a used port.
int report_command(const ReportArguments& arguments);

// --- `convoy top RUN [--once] [--every SECONDS]` ---

struct TopArguments {
  std::string folder;
  bool once = false;
  double every = 0;  // seconds; 0: 1 on a terminal, 10 as plain text
};

// Shows the run until its end or `q`: returns 0; 128 + n after signal n. Throws Error(command_line) if RUN is no run.
int top_command(const TopArguments& arguments);

// --- `convoy verify CONFIG [--steps N] [--precision P] [--tolerance T] [--set k=v]… [--ranks N]` ---
//
// Trains CONFIG twice on the same global batches: as configured, and by the reference strategy on one rank. Compares
// the states after every update. Both runs use a temporary folder, which is removed at the end.

struct VerifyArguments {
  RunArguments run;  // `output` stays empty
  int steps = 5;     // global batches
  std::string precision = "fp64";
  std::optional<double> tolerance;  // default: 1e-9 in fp64, 1e-3 in fp32, more with compressed gradients
  std::string against;              // folder of tools/dump_reference.py to compare with; "": compare two runs
};

// `--against DIR`: runs one step on the batch in DIR with the weights there, in the precision of the weights. Compares
// every layer, the loss and the gradients. `tolerance` is then 1e-10 in fp64 and 1e-5 in fp32 by default.
int verify_against(const VerifyArguments& arguments);
struct AgainstResult {
  bool agree = false;
  std::string text;
};
// From the answer of launch/rank/against.h. Public for tests.
AgainstResult against_result(const Json& compared, double tolerance);

// Returns 0 if the results agree, exit_code::differs if not, else the exit code of the failed run. Throws errors that
// it finds before ranks start.
int verify_command(const VerifyArguments& arguments);

// The following functions are public for tests.
// Throws ConfigError at a key under which results differ from the reference's by design.
void check_comparable(const RunConfig& config);
// Overrides of both runs in addition to the user's; `notes` gets a line about each one that changes results.
std::vector<std::string> common_overrides(const RunConfig& config, const VerifyArguments& arguments,
                                          std::vector<std::string>& notes);
// Overrides that make the reference of `config`, which has `data_degree` data-parallel ranks: the reference strategy on
// one rank, with those keys of the configured strategy that it has too (accumulation, micro-batches).
std::vector<std::string> reference_overrides(const RunConfig& config, int data_degree);
// One line on batch norm that is not synchronised, if it explains different states; else "".
std::string batch_norm_text(const Options& strategy, int data_degree, const std::vector<StepDifferences>& steps);

// --- `convoy runs [DIR] [--metric M] [--json]` ---

struct RunsArguments {
  std::string folder = "runs";
  std::string metric;  // the column; "": that of train.keep_best, else the first that is no loss, else the first
  bool json = false;
};

// Lists the runs in a folder, newest first, with status, step, best metric and age, and the runs of farms in it.
// Returns 0. Error(command_line) if there is no such folder.
int runs_command(const RunsArguments& arguments, std::ostream& out);

// --- `convoy compare RUN RUN… [--best] [--json]` ---

struct CompareArguments {
  std::vector<std::string> runs;  // run folders; a farm's folder means all its runs
  bool best = false;              // compares the best values, not the last
  bool json = false;
};

// Prints differing keys, metrics side by side, their differences, and whether these exceed the spread over seeds.
// Returns 0. Error(command_line) if a folder holds no run, or if fewer than two remain.
int compare_command(const CompareArguments& arguments, std::ostream& out);

}  // namespace convoy
