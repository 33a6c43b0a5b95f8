// Common code of the commands that use a trained run: evaluate, predict, recommend, generate.
//
// It finds the checkpoint, changes its configuration by --set, chooses the ranks, starts them like `convoy run`, and
// returns the result of rank 0. The rank side is launch/rank/use/use.h. The run folder is temporary; only the result
// stays.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "launch/prepare/used_run.h"

namespace CLI {
class App;
}

namespace convoy {

struct UseArguments {
  std::string command;                 // "evaluate"
  std::string run;                     // RUN, RUN@best, RUN@step-N, RUN@memberN
  std::vector<std::string> overrides;  // --set: changes to the configuration of the run
  int ranks = 0;                       // --ranks; 0: see `by_strategy`
  bool json = false;                   // print JSON
  // True: the strategy of the run distributes the model, on the ranks of the training but at most one per core. False:
  // each rank has the whole model (UseContext::models), on one rank by default.
  bool by_strategy = false;
  bool reads_data = false;        // the ranks make the data set of the configuration
  std::string to;                 // --to: file to write; "": none
  bool force = false;             // --force: may replace it
  Json options = Json::object();  // options of the command, for UseContext::options
  // Adds options that depend on the run. May throw an Error for an unsuitable run. May be null.
  std::function<void(const UsedRun&, Json& options)> complete = nullptr;
};

struct UseResult {
  int code = 0;         // exit code; of rank 0's process under a launcher, of this process otherwise
  bool reports = true;  // false in a process that only follows rank 0
  UsedRun run;
  Json answer;   // answer of rank 0; null if the ranks failed
  Json summary;  // summary of the temporary run: strategy, backend, world_size, …
};

// Checks the arguments and runs. Before ranks start, throws the Error and ConfigError of used_run, `convoy run` and
// check_output_path.
UseResult use_run(const UseArguments& arguments);

// Throws Error(command_line) if a launcher started several processes of a command that needs one: each process would
// write the output.
void check_alone(const std::string& command);

// Ends a command: prints the answer, and returns the exit code. With `json` the answer also has the run, its
// checkpoint, its step and `more`; else `print` prints it. Notes of the run go to standard error, so that --json stays
// clean.
int print_answer(const UseResult& result, bool json, const std::function<void()>& print, const Json& more = {});

// --- `convoy evaluate RUN [--split S] [--set k=v]… [--ranks N] [--json]` ---

// Prints loss and metrics. Returns the exit code.
int evaluate_command(UseArguments arguments, const std::string& split);

// --- `convoy recommend RUN --to OUT [--users FILE] [--k 10] [--include-seen] [--force] [--set k=v]… [--json]` ---

struct RecommendArguments {
  std::string users;  // file of users; "": all
  int64_t k = 10;
  bool include_seen = false;
};

// Writes a list for each user to `arguments.to`. Returns the exit code.
int recommend_command(UseArguments arguments, const RecommendArguments& wanted);

// --- `convoy predict RUN --data FILE --to OUT [--unknown error|skip] [--probabilities all|best|none] …` ---

struct PredictArguments {
  std::string data;               // file with the rows
  std::string unknown = "error";  // a row with an id or a category that training did not have: error, or skip
  std::string probabilities = "all";
};

// Writes the predictions, and prints their number and notes on the columns. Returns the exit code.
int predict_command(UseArguments arguments, const PredictArguments& prediction);

// --- `convoy generate RUN --prompt TEXT [--max-tokens N] [--temperature T] [--top-k K] [--top-p P] [--seed S] …` ---

struct GenerateArguments {
  std::string prompt;
  std::string prompt_tokens;  // "464,3290": numbers instead of a text
  int64_t max_tokens = 200;
  double temperature = 0.8;
  int64_t top_k = 0;  // 0: all
  double top_p = 1;
  uint64_t seed = 1;
  int64_t samples = 1;  // texts, with the seeds seed, seed + 1, …
  std::string stop;     // a token that ends the text
};

// Prints the prompt with the text that continues it. Returns the exit code.
int generate_command(UseArguments arguments, const GenerateArguments& generation);

// --- For tests ---

// The configuration with which ranks use the run: without keys of training. If the run names a member, that member is a
// single model.
Json configuration_to_use(const UsedRun& run, bool by_strategy);

// --- Command lines of the commands that use trained runs: evaluate, runs, compare, … (use_commands.cpp) ---

struct ParsedCommand {
  CLI::App* line = nullptr;  // converts to true if the user typed this command
  std::function<int()> run;  // after parsing; returns the exit code
};

// Checks that the text of an option is a number in this range. CLI::Range accepts NaN.
std::function<std::string(const std::string&)> real_range(double least, double most);

// Adds the commands. The values that they parse live as long as the results.
std::vector<ParsedCommand> add_use_commands(CLI::App& app);

}  // namespace convoy
