#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "core/base/text.h"
#include "core/config/node.h"
#include "core/control/exit_codes.h"
#include "core/files/files.h"
#include "core/files/output_file.h"
#include "launch/cli/commands.h"
#include "launch/cli/use.h"
#include "launch/init/init.h"
#include "launch/prepare/describe.h"
#include "launch/prepare/used_run.h"
#include "launch/process/process.h"
#include "launch/text/text_table.h"

namespace convoy {

// --- `convoy export` ---

namespace {

// Longer than any disk needs.
constexpr std::chrono::hours export_limit{24};

int64_t size_of(const std::string& text) {
  const auto parsed = parse_bytes(text);
  if (parsed.value && *parsed.value > 0) return *parsed.value;
  throw Error(Failure::command_line, "--max-file-size: is ", text, ", must be a size above 0, such as 5GB or 512 MiB");
}

}  // namespace

int export_command(const ExportArguments& arguments) {
  check_alone("export");
  const UsedRun used = used_run(arguments.run, "convoy export", /*of_programs=*/true);
  const Json request{{"run", arguments.run},
                     {"to", arguments.to},
                     {"with_config", arguments.format == "hf"},
                     {"replace", arguments.force},
                     {"file_bytes", size_of(arguments.max_file_size)}};
  const Json result = ask_rank_program(rank_program(), {"--export"}, request, export_limit);
  const auto files = result.at("files").get<std::vector<std::string>>();
  std::cout << "exported step " << result.at("step") << " of " << arguments.run << " to " << arguments.to << ": "
            << counted(result.at("tensors").get<int64_t>(), "tensor") << ", "
            << human_bytes(result.at("bytes").get<int64_t>()) << "\n  " << join(files, "\n  ") << '\n';
  std::vector<std::string> notes = result.at("notes").get<std::vector<std::string>>();
  notes.insert(notes.end(), used.notes.begin(), used.notes.end());
  for (const std::string& note : notes) std::cout << note << '\n';
  return exit_code::done;
}

// --- `convoy recommend` ---

namespace {

void check_recommend(const UseArguments& arguments, const RecommendArguments& wanted) {
  if (wanted.k < 1) throw Error(Failure::command_line, "--k: is ", wanted.k, ", must be at least 1");
  check_output_ending(arguments.to, {".csv", ".jsonl", ".npy"}, "--to");
  if (!wanted.users.empty())
    check_input_path(wanted.users, "--users",
                     "give a file with one id of a user a line, or leave it out for all users");
}

std::string recommended_text(const UsedRun& run, const Json& answer, const std::string& to) {
  const auto users = answer.at("users").get<int64_t>(), shorter = answer.at("shorter_lists").get<int64_t>();
  const auto k = answer.at("k").get<int64_t>();
  std::string text = str(to, ": the best ", counted(k, "item"), " of ", answer.at("items"), " for each of ",
                         counted(users, "user"), " (", run.name, " after step ", run.step, ", ",
                         formatted("%.2f", answer.at("seconds").get<double>()), " s)\n");
  if (shorter > 0)
    text += str(counted(shorter, "list is", "lists are"), " shorter than ", k,
                ": the user already has nearly all items; --include-seen lists these too\n");
  if (answer.at("contexts") != "none")
    text += str("contexts are those of ",
                answer.at("contexts") == "file" ? "the file of --users\n" : "each user's last interaction\n");
  if (const auto ignored = answer.at("ignored_columns").get<std::vector<std::string>>(); !ignored.empty())
    text += str("ignored columns of --users: ", join(ignored, ", "), "\n");
  return text;
}

}  // namespace

int recommend_command(UseArguments arguments, const RecommendArguments& wanted) {
  check_recommend(arguments, wanted);
  arguments.command = "recommend";
  arguments.reads_data = true;
  arguments.options = {{"k", wanted.k}, {"include_seen", wanted.include_seen}};
  if (!wanted.users.empty()) arguments.options["users"] = absolute_path(wanted.users);
  const UseResult result = use_run(arguments);
  return print_answer(result, arguments.json,
                      [&] { std::cout << recommended_text(result.run, result.answer, arguments.to); });
}

// --- `convoy generate` ---

namespace {

std::vector<int64_t> tokens_of(const std::string& list) {
  std::vector<int64_t> tokens;
  for (const std::string& word : split(list, ',')) {
    char* end = nullptr;
    const long long token = std::strtoll(word.c_str(), &end, 10);
    if (word.empty() || *end != '\0' || token < 0)
      throw Error(Failure::command_line, "--prompt-tokens: '", word,
                  "' is no number of a token; give a list such as "
                  "464,3290");
    tokens.push_back(token);
  }
  return tokens;
}

}  // namespace

int generate_command(UseArguments arguments, const GenerateArguments& generation) {
  arguments.command = "generate";
  const bool numbers = !generation.prompt_tokens.empty();
  if (numbers == !generation.prompt.empty())
    throw Error(Failure::command_line, "convoy generate: give --prompt TEXT, or --prompt-tokens with numbers",
                numbers ? ", and not both" : "");
  arguments.options = {{"prompt", generation.prompt},
                       {"prompt_tokens", numbers ? tokens_of(generation.prompt_tokens) : std::vector<int64_t>()},
                       {"max_tokens", generation.max_tokens},
                       {"temperature", generation.temperature},
                       {"top_k", generation.top_k},
                       {"top_p", generation.top_p},
                       {"seed", generation.seed},
                       {"samples", generation.samples},
                       {"stop", generation.stop}};
  const UseResult result = use_run(arguments);
  return print_answer(result, arguments.json, [&] {
    const Json& answer = result.answer;
    for (size_t sample = 0; sample < answer.at("texts").size(); ++sample) {
      if (answer["texts"].size() > 1) std::cout << (sample > 0 ? "\n" : "") << "--- " << sample + 1 << " ---\n";
      if (numbers)
        std::cout << answer["tokens"][sample].dump() << '\n';
      else
        std::cout << generation.prompt << answer["texts"][sample].get<std::string>() << '\n';
    }
    const double seconds = answer.at("seconds").get<double>();
    std::cerr << "convoy: " << result.run.path() << ", " << counted(answer.at("drawn").get<int64_t>(), "token")
              << " in " << formatted("%.2f", seconds) << " s, "
              << formatted("%.0f", answer.at("drawn").get<double>() / std::max(seconds, 1e-9)) << " tokens/s\n";
  });
}

// --- `convoy predict` ---

namespace {

bool is_array_path(const std::string& path) { return ends_in(path, ".npy") || ends_in(path, ".safetensors"); }

void check_prediction(const UseArguments& arguments, const PredictArguments& prediction) {
  check_input_path(prediction.data, "--data", "give the file with the rows to predict");
  check_output_ending(arguments.to, {".csv", ".tsv", ".txt", ".inter", ".npy", ".safetensors"}, "--to");
  if (!is_array_path(arguments.to)) return;
  if (prediction.unknown == "skip")
    throw Error(Failure::command_line, "--unknown skip leaves rows out, so row numbers of ", arguments.to,
                " would not be those of ", prediction.data, "; write a .csv, or leave --unknown out");
  if (prediction.probabilities != "all")
    throw Error(Failure::command_line, "--probabilities ", prediction.probabilities, ": ", arguments.to,
                " has the probabilities of all classes; write a .csv, or leave --probabilities out");
}

}  // namespace

int predict_command(UseArguments arguments, const PredictArguments& prediction) {
  arguments.command = "predict";
  check_prediction(arguments, prediction);
  arguments.options = {{"data", absolute_path(prediction.data)},
                       {"unknown", prediction.unknown},
                       {"probabilities", prediction.probabilities}};
  UseResult result = use_run(arguments);
  if (result.answer.is_object()) {
    const auto notes = result.answer.at("notes").get<std::vector<std::string>>();
    result.run.notes.insert(result.run.notes.begin(), notes.begin(), notes.end());
  }
  const auto print = [&] {
    const Json& answer = result.answer;
    std::cout << result.run.path() << ": predicted " << counted(answer.at("rows").get<int64_t>(), "row") << " of "
              << prediction.data << " in " << formatted("%.2f", answer.at("seconds").get<double>())
              << " s: " << arguments.to << '\n';
    if (const auto skipped = answer.at("skipped").get<int64_t>(); skipped > 0)
      std::cout << counted(skipped, "row is", "rows are")
                << " left out: an id or a category does not occur in the training data\n";
  };
  return print_answer(result, arguments.json, print, {{"to", arguments.to}});
}

// --- Arguments and help texts of the commands ---

std::function<std::string(const std::string&)> real_range(double least, double most) {
  return [least, most](const std::string& text) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    const bool inside = !text.empty() && *end == '\0' && value >= least && value <= most;
    return inside ? std::string() : str("is ", text, ", must be a number from ", least, " to ", most);
  };
}

namespace {

constexpr const char* exit_codes_of_use = R"(

Exit codes: 0 done, 64 no such run or file, 65 damaged checkpoint or data, 70 failure of the model, 73 output file,
74 I/O, 78 configuration or no checkpoint, 110 stall, 143 stopped.)";

constexpr const char* evaluate_footer = R"(
Computes loss and metrics of a checkpoint on the rows that its run holds out, by the strategy of the run. Each row
counts once, so the metrics do not depend on the number of ranks. Nothing is trained or written.
RUN is a run folder or a checkpoint; RUN@best, RUN@step-40 and RUN@member3 name one of its checkpoints, or a member.

Examples:
  convoy evaluate runs/ncf-ddp
  convoy evaluate runs/digits@best --ranks 2 --json
  convoy evaluate runs/digits --set data.path=new.csv)";

constexpr const char* recommend_footer = R"(
Writes a list of the best items for each user, best first. Items that the user already has are left out. Ids are
those of the training file. Equal scores are in the order of the items' first appearance in that file. The ending of
OUT chooses the format: .csv has a line for each item, .jsonl one for each user, .npy a record for each user
(numpy.load).
FILE has one id per line, or is CSV with a header that names the column of users. It may also have all columns of
contexts; otherwise contexts are those of each user's last interaction.

Examples:
  convoy recommend runs/ncf-ddp --k 10 --to top.csv
  convoy recommend runs/visits@best --users today.csv --to today.jsonl --force)";

constexpr const char* predict_footer = R"(
Writes the outputs of a trained model for rows without a target, with the preparation of the training data. Text keeps
its columns and their order, and gets new ones: `prediction`; for classes `probability_NAME`; for an ensemble the vote,
and each member in `member0`, …. An .npy or .safetensors has the probabilities, or the numbers. Columns are found by
name. The training data is not needed, and memory does not depend on the number of rows.

Examples:
  convoy predict runs/digits@best --data new.csv --to out.csv
  convoy predict runs/digits --data new.npy --to out.npy
  convoy predict runs/ncf-ddp --data pairs.csv --to scores.csv --unknown skip)";

constexpr const char* generate_footer = R"(
Continues a text with a model of text (gpt, llama), token by token, on the CPU. Keys and values of earlier tokens are
cached. If the context is full, the newer half of it is read again.

Examples:
  convoy generate runs/gpt-single --prompt "In the beginning"
  convoy generate runs/gpt-single@best --prompt "In the" --temperature 0.7 --top-k 40 --seed 3 --samples 3
  convoy generate runs/gpt-single --prompt "In the" --temperature 0 --stop "." --json)";

constexpr const char* vocabulary_footer = R"(
Trains a byte-level BPE tokenizer as that of GPT-2: every text can be encoded, and transformers reads the file. FILES
may be patterns. Use it by data: {name: text, path: FILE, tokenizer: tokenizer.json}.

Examples:
  convoy vocabulary book.txt --size 4000
  convoy vocabulary 'texts/*.txt' --size 32000 --special '<|endoftext|>' --to texts/tokenizer.json

Exit codes: 0, 64 command line or no such file, 65 a file is no text, 73 the file exists, 74 I/O.)";

constexpr const char* runs_footer = R"(
Lists run folders, newest first: status, steps, best value of a metric, and the time since the last change. A farm has
the best value of its runs. The status `ended` means that no process works on an unfinished run.

Examples:
  convoy runs
  convoy runs runs/sweep/pipelines --metric accuracy --json)";

constexpr const char* compare_footer = R"(
Prints the configuration keys that differ, and the metrics side by side. Runs that differ in their seeds only form a
group; finished runs of the same folder are added. A difference that exceeds the spread over seeds is marked (Student's
test, 95 %).

Examples:
  convoy compare runs/ncf-a runs/ncf-b
  convoy compare runs/sweep --best)";

constexpr const char* report_footer = R"(
Writes one HTML page about runs, farms and ensembles: three sentences, curves, times, placement, memory, attempts,
leaderboards and differences. The file needs no network and no other file. --serve shows it on this machine only
(127.0.0.1), and the page follows runs that are still training; over ssh: ssh -L 8360:127.0.0.1:8360 HOST.

Examples:
  convoy report runs/ncf-ddp runs/bagging-fashion runs/farm -o report.html
  convoy report runs/ncf-ddp --serve

Exit codes: 0, 64 no run there, 65 damaged summary, 73 the file exists, 74 I/O, 75 the port is in use.)";

// Options of every command that uses a run.
void add_use_options(CLI::App& command, UseArguments& arguments) {
  command.add_option("RUN", arguments.run, "Run folder or checkpoint, also RUN@best, RUN@step-N, RUN@memberN")
      ->required();
  command
      .add_option("--set", arguments.overrides,
                  "Override a key of the run, as in data.path=new.csv; may be repeated, later ones win")
      ->type_name("KEY=VALUE")
      ->take_all()
      ->allow_extra_args(false);
}

void add_ranks_option(CLI::App& command, UseArguments& arguments, const char* help) {
  command.add_option("--ranks", arguments.ranks, help)->type_name("N")->check(CLI::Range(1, 1000000));
}

ParsedCommand add_evaluate(CLI::App& app) {
  auto arguments = std::make_shared<UseArguments>();
  auto split = std::make_shared<std::string>();
  CLI::App* line = app.add_subcommand("evaluate", "Compute loss and metrics of a trained run, also on other data");
  add_use_options(*line, *arguments);
  add_ranks_option(*line, *arguments, "Number of ranks; default: as in training, at most the cores of this host");
  line->add_option("--split", *split,
                   "Rows: held-out, training or all; default held-out, and all for another data.path if the run held "
                   "out a fraction")
      ->type_name("S")
      ->check(CLI::IsMember({"held-out", "training", "all"}));
  line->add_flag("--json", arguments->json, "Print JSON");
  line->footer(std::string(evaluate_footer) + exit_codes_of_use);
  return {line, [arguments, split] { return evaluate_command(*arguments, *split); }};
}

void add_output_options(CLI::App& command, UseArguments& arguments, const char* help) {
  command.add_option("--to", arguments.to, help)->required()->type_name("OUT");
  command.add_flag("--force", arguments.force, "Replace an existing file");
}

ParsedCommand add_recommend(CLI::App& app) {
  auto arguments = std::make_shared<UseArguments>();
  auto wanted = std::make_shared<RecommendArguments>();
  CLI::App* line = app.add_subcommand("recommend", "Write the best new items for each user of a trained recommender");
  add_use_options(*line, *arguments);
  add_output_options(*line, *arguments, "File to write: .csv, .jsonl or .npy");
  line->add_option("--users", wanted->users, "File of users, optionally with contexts; default: all users of the data")
      ->type_name("FILE");
  line->add_option("--k", wanted->k, "Items of a list")->type_name("N")->capture_default_str();
  line->add_flag("--include-seen", wanted->include_seen, "Also list items that the user has");
  line->add_flag("--json", arguments->json, "Print JSON");
  line->footer(std::string(recommend_footer) + exit_codes_of_use);
  return {line, [arguments, wanted] { return recommend_command(*arguments, *wanted); }};
}

ParsedCommand add_predict(CLI::App& app) {
  auto arguments = std::make_shared<UseArguments>();
  auto prediction = std::make_shared<PredictArguments>();
  CLI::App* line = app.add_subcommand("predict", "Write the outputs of a trained run for new rows");
  add_use_options(*line, *arguments);
  line->add_option("--data", prediction->data, "Rows: .csv (or other text), .npy or .safetensors")
      ->required()
      ->type_name("FILE");
  add_output_options(*line, *arguments, "File to write: .npy, .safetensors, or text in the form of FILE");
  line->add_option("--unknown", prediction->unknown,
                   "A row with an id or a category that training did not have: error, or skip, which leaves it out")
      ->capture_default_str()
      ->type_name("U")
      ->check(CLI::IsMember({"error", "skip"}));
  line->add_option("--probabilities", prediction->probabilities,
                   "Columns of probabilities for classes: all, best or none")
      ->capture_default_str()
      ->type_name("P")
      ->check(CLI::IsMember({"all", "best", "none"}));
  line->add_flag("--json", arguments->json, "Print JSON");
  line->footer(std::string(predict_footer) + exit_codes_of_use);
  return {line, [arguments, prediction] { return predict_command(*arguments, *prediction); }};
}

ParsedCommand add_generate(CLI::App& app) {
  auto arguments = std::make_shared<UseArguments>();
  auto generation = std::make_shared<GenerateArguments>();
  CLI::App* line = app.add_subcommand("generate", "Continue a text with a trained gpt or llama");
  add_use_options(*line, *arguments);
  line->add_option("--prompt", generation->prompt, "Text to continue")->type_name("TEXT");
  line->add_option("--prompt-tokens", generation->prompt_tokens, "Numbers of tokens instead, as in 464,3290")
      ->type_name("N,N");
  line->add_option("--max-tokens", generation->max_tokens, "Most tokens to draw")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 32));
  line->add_option("--temperature", generation->temperature, "Divides the logits; 0: always the likeliest token")
      ->capture_default_str()
      ->type_name("T")
      ->check(real_range(0, 100));
  line->add_option("--top-k", generation->top_k, "Draw among the K likeliest tokens; 0: all")
      ->capture_default_str()
      ->type_name("K")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 24));
  line->add_option("--top-p", generation->top_p, "Draw among the likeliest tokens that together reach this probability")
      ->capture_default_str()
      ->type_name("P")
      ->check(real_range(0.001, 1));
  line->add_option("--seed", generation->seed, "Equal seeds give equal texts")->capture_default_str()->type_name("S");
  line->add_option("--samples", generation->samples, "Number of texts; each further one has the next seed")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 1000000));
  line->add_option("--stop", generation->stop, "Token that ends the text, such as <|endoftext|> or a character")
      ->type_name("TOKEN");
  line->add_flag("--json", arguments->json, "Print JSON");
  line->footer(std::string(generate_footer) + exit_codes_of_use);
  return {line, [arguments, generation] { return generate_command(*arguments, *generation); }};
}

ParsedCommand add_vocabulary(CLI::App& app) {
  auto arguments = std::make_shared<VocabularyArguments>();
  CLI::App* line = app.add_subcommand("vocabulary", "Make a tokenizer from texts");
  line->add_option("FILES", arguments->files, "Text files, or patterns such as 'texts/*.txt'")->required();
  line->add_option("--size", arguments->size, "Number of tokens, with the 256 of the bytes")
      ->required()
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 24));
  line->add_option("--to", arguments->to, "File to write")->capture_default_str()->type_name("FILE");
  line->add_option("--special", arguments->special, "A special token, such as <|endoftext|>; may be repeated")
      ->type_name("TOKEN")
      ->take_all()
      ->allow_extra_args(false);
  line->add_flag("--force", arguments->force, "Replace the file");
  line->footer(vocabulary_footer);
  return {line, [arguments] { return vocabulary_command(*arguments); }};
}

ParsedCommand add_runs(CLI::App& app) {
  auto arguments = std::make_shared<RunsArguments>();
  CLI::App* line = app.add_subcommand("runs", "List runs with status, step, best metric and age");
  line->add_option("DIR", arguments->folder, "Folder that has the runs")->capture_default_str();
  line->add_option("--metric", arguments->metric, "Metric of the list; default: that of train.keep_best, or the first")
      ->type_name("M");
  line->add_flag("--json", arguments->json, "Print JSON");
  line->footer(runs_footer);
  return {line, [arguments] { return runs_command(*arguments, std::cout); }};
}

ParsedCommand add_compare(CLI::App& app) {
  auto arguments = std::make_shared<CompareArguments>();
  CLI::App* line = app.add_subcommand("compare", "Compare runs: configuration, metrics, and the spread over seeds");
  line->add_option("RUN", arguments->runs, "Run folders; a farm's folder means all its runs")->required();
  line->add_flag("--best", arguments->best, "Compare the best values of the metrics, not the last");
  line->add_flag("--json", arguments->json, "Print JSON");
  line->footer(compare_footer);
  return {line, [arguments] { return compare_command(*arguments, std::cout); }};
}

ParsedCommand add_report(CLI::App& app) {
  auto arguments = std::make_shared<ReportArguments>();
  CLI::App* line = app.add_subcommand("report", "Show runs as one HTML page: curves, times, placement, leaderboards");
  line->add_option("RUN", arguments->runs, "Run folders, also of farms and ensembles")->required();
  line->add_option("-o,--output", arguments->output, "File to write; default report.html")->type_name("FILE");
  line->add_flag("--force", arguments->force, "Replace an existing file");
  CLI::Option* serve =
      line->add_flag("--serve", arguments->serve, "Serve the page on 127.0.0.1 until Ctrl-C; it follows running jobs");
  line->add_option("--port", arguments->port, "Port of --serve; 0: a free one; default 8360")
      ->type_name("N")
      ->check(CLI::Range(0, 65535))
      ->needs(serve);
  line->footer(report_footer);
  return {line, [arguments] { return report_command(*arguments); }};
}

constexpr const char* init_footer = R"(
Looks at the data and writes a configuration with comments, named after the data: mine.csv gives mine.yaml. DATA is a
.csv or .tsv with a column to predict, a .inter of interactions, a .npy with a .npy of targets, a text, or a folder of
images. Task, loss, preparation and sizes follow from the data. On a terminal, convoy init asks for what is missing.

Examples:
  convoy init --data mine.csv --target price && convoy run mine.yaml
  convoy init --data clicks.inter --devices 2

Exit codes: 0, 64 command line or no such column, 65 malformed data, 73 the file exists or
cannot be written, 78 unsuitable data.)";

ParsedCommand add_init(CLI::App& app) {
  auto arguments = std::make_shared<InitArguments>();
  CLI::App* line = app.add_subcommand("init", "Write a configuration for your data");
  line->add_option("--data", arguments->data, "Data file, or folder of images")->type_name("FILE");
  line->add_option("--target", arguments->target, "Column to predict; for .npy the file of targets")
      ->type_name("COLUMN");
  line->add_option("--model", arguments->model, "Model; default: one that fits the data")->type_name("MODEL");
  line->add_option("--devices", arguments->ranks, "Number of ranks, with a core or a GPU each; default 1")
      ->type_name("N")
      ->check(CLI::Range(1, 65536));
  line->add_option("--strategy", arguments->strategy, "Strategy; default: that of one rank, or of equal ranks")
      ->type_name("STRATEGY");
  line->add_option("--output", arguments->output, "File to write; default: NAME.yaml for the data NAME.*")
      ->type_name("FILE");
  line->add_flag("--force", arguments->force, "Replace an existing file");
  line->footer(init_footer);
  return {line, [arguments] { return init_command(*arguments); }};
}

constexpr const char* request_footer = R"(
Exit codes: 0, 64 no farm there, or no such pipeline, 73 the farm or the pipeline has ended, 110 no answer.)";

void add_request_options(CLI::App& command, RequestArguments& arguments) {
  command.add_option("RUN", arguments.folder, "Folder of the running farm")->required();
  command.add_option("PIPELINE", arguments.pipeline, "Name of the pipeline")->required();
  command.footer(request_footer);
}

ParsedCommand add_cancel(CLI::App& app) {
  auto arguments = std::make_shared<RequestArguments>();
  CLI::App* line = app.add_subcommand("cancel", "Take a pipeline out of a running farm; a running one saves and ends");
  add_request_options(*line, *arguments);
  return {line, [arguments] { return request_command(*arguments); }};
}

ParsedCommand add_priority(CLI::App& app) {
  auto arguments = std::make_shared<RequestArguments>();
  CLI::App* line = app.add_subcommand("priority", "Change the priority of a pipeline of a running farm");
  add_request_options(*line, *arguments);
  line->add_option("N", arguments->priority, "New priority, larger first")
      ->required()
      ->check(CLI::Range(int64_t{-1000000}, int64_t{1000000}));
  return {line, [arguments] { return request_command(*arguments); }};
}

}  // namespace

std::vector<ParsedCommand> add_use_commands(CLI::App& app) {
  return {add_evaluate(app), add_predict(app), add_recommend(app),  add_generate(app),
          add_runs(app),     add_compare(app), add_vocabulary(app), add_report(app),
          add_init(app),     add_cancel(app),  add_priority(app)};
}

}  // namespace convoy
