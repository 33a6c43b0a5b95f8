#include "launch/init/init.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iostream>
#include <sstream>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/config/node.h"
#include "core/config/reader.h"
#include "core/control/exit_codes.h"
#include "core/files/output_file.h"
#include "launch/prepare/describe.h"
#include "launch/prepare/prepare.h"
#include "strategies/plans/catalogue.h"

namespace convoy {
namespace {

constexpr size_t comment_column = 32;
constexpr int most_ranks = 65536;

// --- Questions on a terminal ---

bool may_ask() { return isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1; }

std::string answer_to(const std::string& question, const std::string& fallback) {
  std::cout << question << (fallback.empty() ? ": " : str(" [", fallback, "]: ")) << std::flush;
  std::string line;
  if (!std::getline(std::cin, line))
    throw Error(Failure::command_line, "convoy init: no answer; give --data, --target, --model and --devices instead");
  const size_t begin = line.find_first_not_of(' ');
  return begin == std::string::npos ? fallback : line.substr(begin, line.find_last_not_of(' ') - begin + 1);
}

void check_word(const std::string& option, const std::string& word, const std::vector<std::string>& valid) {
  if (word.empty() || std::find(valid.begin(), valid.end(), word) != valid.end()) return;
  const std::string near = nearest(word, valid);
  throw Error(Failure::command_line, "convoy init: ", option, " ", word, ": is unknown; ",
              near.empty() ? "valid are " + join(valid, ", ") : "did you mean " + near + "?");
}

int ranks_from(const std::string& text) {
  const Parsed<int64_t> number = parse_integer(text);
  if (!number.value || *number.value < 1 || *number.value > most_ranks)
    throw Error(Failure::command_line, "convoy init: devices: is ", text, ", must be a number from 1 to ", most_ranks);
  return static_cast<int>(*number.value);
}

// --- The file ---

std::string name_of_run(const std::string& data) {
  std::filesystem::path path(data);
  if (path.filename().empty()) path = path.parent_path();  // "pictures/"
  std::string name;
  for (const char c : path.stem().string())
    name += std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.' ? c : '-';
  return name.empty() || name[0] == '.' || name[0] == '-' ? "run" + name : name;
}

void add_line(std::ostream& out, const std::string& text, const std::string& comment) {
  out << text;
  if (!comment.empty())
    out << std::string(text.size() + 1 < comment_column ? comment_column - text.size() : 2, ' ') << "# " << comment;
  out << '\n';
}

std::string file_text(const InitArguments& arguments, const DataDraft& draft, const std::string& name,
                      const std::string& path) {
  std::ostringstream out;
  const std::string model = arguments.model.empty() ? draft.model : arguments.model;
  const std::string options = model == draft.model && !draft.model_options.empty() ? ", " + draft.model_options : "";
  out << "# Written by `convoy init --data " << shell_word(arguments.data)
      << (arguments.target.empty() ? "" : " --target " + shell_word(arguments.target)) << "`: " << draft.found << ".\n"
      << "# Start it: convoy run " << shell_word(path) << "\n# `convoy list config` prints every key.\n";
  add_line(out, "name: " + yaml_word(name), "the run folder is runs/" + name);
  add_line(out, "seed: 1", "equal seeds give equal results");
  add_line(out, "device: auto", "GPUs if there is one for each rank, else cores");
  add_line(out, "model: {name: " + model + options + "}",
           (options.empty() ? "" : draft.model_comment) + "`convoy list model " + model + "` prints its options");
  out << "data:\n";
  for (const DataDraft::Line& line : draft.lines) add_line(out, "  " + line.text, line.comment);
  add_line(out, "optimizer: " + draft.optimizer, "lr: the learning rate");
  out << "train:\n";
  add_line(out, "  " + draft.length, "of the training");
  add_line(out, str("  batch: {global: ", draft.batch, "}"), "rows of a step, over all ranks");
  add_line(out, "  evaluate_every: " + draft.interval, "");
  add_line(out, "  checkpoint_every: " + (draft.checkpoints.empty() ? draft.interval : draft.checkpoints),
           "the same command resumes an interrupted run");
  const bool several = arguments.ranks > 1;
  const std::string strategy = !arguments.strategy.empty() ? arguments.strategy
                               : several                   ? equal_ranks_strategy().name
                                                           : reference_strategy().name;
  add_line(out, "strategy: " + strategy,
           several ? "how the ranks divide the work" : "one rank; see `convoy list strategy`");
  if (arguments.ranks > 0) add_line(out, str("launch: {ranks: ", arguments.ranks, "}"), "a core or a GPU each");
  return out.str();
}

void ask(InitArguments& arguments) {
  const bool terminal = may_ask();
  if (arguments.data.empty() && !terminal)
    throw Error(Failure::command_line, "convoy init: name the data, as in --data mine.csv --target y");
  const bool asks = arguments.data.empty();
  if (asks) arguments.data = answer_to("data file or folder", "");
  if (arguments.target.empty() && terminal && std::filesystem::is_regular_file(arguments.data)) {
    const std::vector<std::string> columns = target_choices(arguments.data);
    const bool tensors = ends_in(arguments.data, ".safetensors");
    if (!columns.empty()) {
      std::cout << (tensors ? "tensors: " : "columns: ") << join(columns, ", ") << '\n';
      arguments.target = answer_to(tensors ? "tensor to predict" : "column to predict", columns.back());
    }
    if (ends_in(arguments.data, ".npy")) arguments.target = answer_to("file of targets", "y.npy");
  }
  if (!asks) return;
  const DataDraft draft = inspect_data(arguments.data, arguments.target);
  if (arguments.model.empty()) arguments.model = answer_to("model", draft.model);
  if (arguments.ranks == 0) arguments.ranks = ranks_from(answer_to("devices (cores or GPUs)", "1"));
}

}  // namespace

int init_command(InitArguments arguments) {
  const Catalogues catalogues = all_catalogues();
  check_word("--model", arguments.model, catalogues.names("model"));
  std::vector<std::string> strategies;
  for (const StrategyEntry& entry : strategy_catalogue()) strategies.push_back(entry.name);
  check_word("--strategy", arguments.strategy, strategies);
  ask(arguments);
  check_word("model", arguments.model, catalogues.names("model"));
  const DataDraft draft = inspect_data(arguments.data, arguments.target);
  const bool named = !arguments.output.empty();
  if (named) check_output_ending(arguments.output, {".yaml", ".yml"}, "--output");
  const std::string name = name_of_run(named ? arguments.output : arguments.data);
  const std::string path = named ? arguments.output : name + ".yaml";
  check_output_path(path, arguments.force, "convoy init: --output");
  const std::string text = file_text(arguments, draft, name, path);
  // All checks of `convoy run`, before the file exists.
  RunArguments run;
  run.config = path;
  const Variables variables = current_variables();
  const PreparedRun prepared = prepare(read_yaml_text(text, path), run, variables, launched_as(variables));
  check_components(prepared.config);
  if (arguments.ranks > 0) placed_here(prepared);  // checks that the strategy can have this number of ranks
  OutputFile file(path, arguments.force);
  file.write(text);
  file.commit();
  std::cout << arguments.data << ": " << draft.found << "\nwrote " << path << "; start it by:\n  convoy run "
            << shell_word(path) << '\n';
  return exit_code::done;
}

}  // namespace convoy
