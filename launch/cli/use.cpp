#include "launch/cli/use.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <iostream>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "core/base/text.h"
#include "core/config/node.h"
#include "core/config/reader.h"
#include "core/control/exit_codes.h"
#include "core/data/catalogue/declared_schema.h"
#include "core/data/formats/input_files.h"
#include "core/files/output_file.h"
#include "core/files/run_files.h"
#include "core/rank_state/summary.h"
#include "launch/cli/commands.h"
#include "launch/machine/topology.h"
#include "launch/prepare/describe.h"
#include "launch/prepare/run_folder.h"
#include "launch/text/text_table.h"
#include "strategies/plans/catalogue.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

// Temporary run folder, removed at the end. Under a launcher the job gives its name, because the ranks join through it.
class UseFolder {
 public:
  UseFolder(const LaunchedAs& as, const std::string& command) : owner_(as.channel.empty() && as.rank == 0) {
    if (as.launcher == Launcher::none) {
      scratch_.emplace("convoy-" + command);
      path_ = scratch_->path() + "/run";  // the run makes it, with the usual checks
      return;
    }
    path_ = str("runs/.", command, "-", as.job);
    std::error_code none;
    makes_runs_ = !fs::exists(fs::symlink_status("runs", none));
  }
  ~UseFolder() {
    if (!owner_ || scratch_) return;
    std::error_code none;
    fs::remove_all(path_, none);
    if (makes_runs_) fs::remove("runs", none);  // unless it is in use now
  }
  UseFolder(const UseFolder&) = delete;
  UseFolder& operator=(const UseFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  const bool owner_;
  bool makes_runs_ = false;  // the folder `runs` did not exist
  std::optional<ScratchFolder> scratch_;
  std::string path_;
};

// True if KEY=VALUE sets this key, or one below it.
bool is_for_key(const std::string& text, const std::string& key) {
  return begins_with(text, key) && (text[key.size()] == '=' || text[key.size()] == '.');
}

bool sets_key(const std::vector<std::string>& overrides, const std::string& key) {
  return std::any_of(overrides.begin(), overrides.end(),
                     [&](const std::string& text) { return is_for_key(text, key); });
}

// Overrides that make one member a single model, as `convoy verify` does.
std::vector<std::string> overrides_of_member(const UsedRun& run) {
  if (run.member < 0) return {};
  return member_overrides(RunConfig::from_resolved(run.config)).at(static_cast<size_t>(run.member));
}

// Advises --set for a path in the manifest that is wrong now. The manifest has a hash, so it cannot be edited.
[[noreturn]] void add_path_advice(const ConfigError& error) {
  const std::string& key = error.key();
  if (is_typed(error.location())) throw error;
  if (key == "model.plugin" || begins_with(key, "plugins."))
    throw ConfigError(error.location(), key,
                      str(error.reason(), "; if it has moved, add --set ", key, "=/new/path/libmine.so"), error.kind());
  const bool of_data =
      begins_with(key, "data.") && (ends_in(key, "path") || ends_in(key, "tokenizer") || ends_in(key, "vocabulary"));
  if (!of_data) throw error;
  throw ConfigError(SourceLocation{}, key,
                    str(error.reason(), "; if it has moved, add --set ", key,
                        "=/new/path, or type the command in the folder of the training"),
                    error.kind());
}

// Error(command_line) for a --set of a key that has no effect on a trained run.
void check_overrides(const UseArguments& arguments) {
  for (const std::string& text : arguments.overrides) {
    const auto sets = [&](const char* key) { return is_for_key(text, key); };
    const bool of_strategy = !arguments.by_strategy && sets("strategy");
    // Evaluation reads batches of train.batch, which `train={…}` may set too.
    const bool of_batch = arguments.by_strategy && (sets("train.batch") || begins_with(text, "train="));
    const std::initializer_list<const char*> keys{"name", "optimizer", "profile", "log.histograms", "model.init_from"};
    if (!of_strategy && !(sets("train") && !of_batch) && std::none_of(keys.begin(), keys.end(), sets)) continue;
    throw Error(Failure::command_line, "--set ", text, ": has no effect: convoy ", arguments.command,
                of_strategy ? " uses the whole model on one rank" : " does not train", "; leave it out");
  }
}

// Keys of `data` that a command reads which makes no data set; null: it makes one.
const std::vector<std::string>* data_keys_of(const std::string& command) {
  static const std::map<std::string, std::vector<std::string>> keys{
      {"predict", {"columns.item", "columns.user", "delimiter", "features", "format", "header", "transforms"}},
      {"generate", {"unknown"}}};
  const auto found = keys.find(command);
  return found == keys.end() ? nullptr : &found->second;
}

// Error(command_line) for a --set of a key of `data` that the command does not read.
void check_data_overrides(const UseArguments& arguments, const UsedRun& run) {
  const std::vector<std::string>* read = data_keys_of(arguments.command);
  if (read == nullptr || !run.has_schema) return;
  for (const std::string& text : arguments.overrides) {
    if (!is_for_key(text, "data")) continue;
    if (std::any_of(read->begin(), read->end(), [&](const auto& key) { return is_for_key(text, "data." + key); }))
      continue;
    throw Error(Failure::command_line, "--set ", text, ": has no effect: convoy ", arguments.command,
                " does not read the training data, and of the section data only ", join(*read, ", "), "; leave it out");
  }
}

// `config`: with --set. The configuration of the run has no launch.ranks any more (configuration_to_use).
void check_rank_override(const UseArguments& arguments, const RunConfig& config) {
  const int64_t ranks = config.launch.ranks;
  if (ranks == 0) return;
  throw Error(Failure::command_line, "--set launch.ranks=", ranks, ": has no effect on convoy ", arguments.command,
              arguments.by_strategy ? str("; type --ranks ", ranks) : ", which uses one rank; leave it out");
}

// Values that choose the held-out rows, by key; none if no row of the training data is held out.
std::map<std::string, Json> split_of(const RunConfig& config) {
  const EvaluationSplit split = evaluation_split(config.data.options.json(), config.seed);
  std::map<std::string, Json> values;
  if (split.holds_out) values = split.options;
  for (const char* key : {"data.samples", "strategy.samples"}) {
    const Json samples = value_of_key(config.resolved, key);
    if (!samples.is_object() || samples.value("how", Json("folds")) != "folds" || !samples.contains("folds")) continue;
    values[key] = samples;
    values["seed"] = config.seed;
  }
  return values;
}

// The last --set of this key, or of a map with it; "": none.
std::string override_of(const std::vector<std::string>& overrides, const std::string& key) {
  const auto found = std::find_if(overrides.rbegin(), overrides.rend(), [&](const std::string& text) {
    return is_for_key(text, key) || is_for_key(key + "=", text.substr(0, text.find('=')));
  });
  return found == overrides.rend() ? "" : *found;
}

// Error(command_line) if --set holds out rows that the run may have trained on. `job`: with --set, as is `config`.
void check_split(const UseArguments& arguments, const UsedRun& run, RunArguments job, const RunConfig& config) {
  const bool other_file = sets_key(arguments.overrides, "data.path");
  if (other_file || job.use.value("split", "all") == "all") return;
  job.overrides = overrides_of_member(run);
  std::vector<std::string> choosing;  // --set of keys that may choose rows
  for (const std::string& text : arguments.overrides) {
    const auto sets = [&](const char* key) { return is_for_key(text, key); };
    const std::initializer_list<const char*> keys{"seed",          "data.seed",    "data.holdout",
                                                  "data.evaluate", "data.samples", "strategy.samples"};
    (std::any_of(keys.begin(), keys.end(), sets) ? choosing : job.overrides).push_back(text);
  }
  if (choosing.empty()) return;
  const std::map<std::string, Json> before = split_of(read_run_tree(configuration_tree(job), all_catalogues()));
  const std::map<std::string, Json> now = split_of(config);
  bool other_rows = false;
  std::string chooses;  // --set of a key that differs
  for (const auto& [key, value] : now) {
    const auto old = before.find(key);
    if (old != before.end() && old->second == value) continue;
    // A smaller fraction keeps some of the rows, unless folds divide the others.
    if (old != before.end() && key == "data.evaluate.fraction" && now.count("seed") == 0 && value < old->second)
      continue;
    other_rows = true;
    if (chooses.empty()) chooses = override_of(choosing, key);
    if (chooses.empty() && key == "data.seed") chooses = override_of(choosing, "seed");  // its default
  }
  if (other_rows)
    throw Error(Failure::command_line, "--set ", chooses.empty() ? choosing.front() : chooses,
                ": holds out other rows than the training did, so the run may have trained on them; leave it out");
}

// Files that a value of the section `data` names, alone or by a pattern.
void add_files_in(const Json& value, std::vector<std::string>& files) {
  if (value.is_structured())
    for (const Json& item : value) add_files_in(item, files);
  if (!value.is_string()) return;
  try {
    for (const std::string& file : files_of(value.get<std::string>())) files.push_back(file);
  } catch (const Error&) {  // no file matches: the ranks report it if they read it
  }
}

// Folders with files of the run: the checkpoint, and the run folder or checkpoint directory in which it is, if any.
// `run.checkpoint` may be a link or contain links, so the path is tried as it is and resolved.
std::vector<fs::path> folders_of(const UsedRun& run) {
  std::error_code none;
  std::vector<fs::path> folders{run.checkpoint};
  for (fs::path step : {fs::absolute(run.checkpoint, none).lexically_normal(), fs::canonical(run.checkpoint, none)}) {
    if (step.filename().empty()) step = step.parent_path();  // "." and "step-40/"
    const fs::path checkpoints = step.parent_path();
    if (checkpoints.filename() == "checkpoints")
      folders.push_back(checkpoints.parent_path());
    else if (fs::exists(checkpoints / latest_file, none))
      folders.push_back(checkpoints);
  }
  return folders;
}

// True if `file` is in the folder; follows links.
bool holds(const fs::path& folder, const fs::path& file) {
  constexpr int deepest = 8;  // a link may lead back
  constexpr auto options =
      fs::directory_options::follow_directory_symlink | fs::directory_options::skip_permission_denied;
  std::error_code none;
  for (fs::recursive_directory_iterator at(folder, options, none), end; !none && at != end; at.increment(none)) {
    if (fs::equivalent(at->path(), file, none)) return true;
    none.clear();  // a dangling link is no file
    if (at.depth() >= deepest) at.disable_recursion_pending();
  }
  return false;
}

// --force replaces an earlier result, and never a file that the command reads or that the run consists of. Files are
// compared, not paths: a path may lead through links.
void keep_inputs(const UseArguments& arguments, const UsedRun& run, const RunConfig& config) {
  std::error_code none;
  if (arguments.to.empty() || !fs::exists(arguments.to, none)) return;
  const auto refuse_if = [&](bool is, const std::string& what) {
    if (is) throw Error(Failure::command_line, "--to: ", arguments.to, " is ", what, "; choose another one");
  };
  for (const char* option : {"data", "users"})
    if (const std::string file = arguments.options.value(option, ""); !file.empty())
      refuse_if(fs::equivalent(file, arguments.to, none), str("the file of --", option));
  std::vector<std::string> files;
  for (const Json& used : {without_locations(config.resolved), run.config})
    add_files_in(used.value("data", Json::object()), files);
  for (const std::string& file : files)
    refuse_if(fs::equivalent(file, arguments.to, none), str("data of the run (", file, ")"));
  for (const fs::path& folder : folders_of(run)) refuse_if(holds(folder, arguments.to), "a file of the run");
}

// With data.evaluate.path the held-out rows are those of another file, so another data.path would change nothing.
void check_evaluated_path(const UseArguments& arguments, const RunArguments& job, const RunConfig& config) {
  if (job.use.value("split", "") != "held-out") return;
  if (!sets_key(arguments.overrides, "data.path") || sets_key(arguments.overrides, "data.evaluate")) return;
  const Json path = value_of_key(config.resolved, "data.evaluate.path");
  if (!path.is_string() || path == "" || path == value_of_key(config.resolved, "data.path")) return;
  throw ConfigError(location_of(config.resolved, "data.path"), "data.path",
                    str("does not choose the held-out rows: data.evaluate.path = ", path.get<std::string>(),
                        " does; type --set data.evaluate.path=FILE, or --split all"));
}

// Error(command_line) if --set makes an ensemble a single model or the reverse, or changes the number of members.
void check_members(const UseArguments& arguments, const UsedRun& run, const RunConfig& config) {
  if (!arguments.by_strategy) return;
  const size_t trained = run.member < 0 ? member_overrides(RunConfig::from_resolved(run.config)).size() : 0;
  const size_t used = member_overrides(config).size();
  if (used == trained) return;
  const bool renamed = used == 0 || trained == 0;
  const std::string text = override_of(arguments.overrides, renamed ? "strategy.name" : "strategy");
  if (text.empty()) return;
  throw Error(Failure::command_line, "--set ", text, ": the run has ",
              trained == 0 ? "one model" : counted(trained, "member"), ", not ",
              used == 0 ? "one model" : counted(used, "member"), "; leave it out",
              used == 0 ? str(", or name a member, as in ", run.name, "@member0") : "");
}

// The rank count and the strategy of a run on this host. `config` has the typed overrides.
struct RankChoice {
  int ranks = 0;
  std::vector<std::string> overrides;
  std::string note;
};

// Throws ConfigError if the strategy cannot have this number of ranks.
void check_ranks(const RunConfig& config, const Host& host, int ranks, bool as_trained) {
  RunConfig on_cores = config;
  on_cores.device = "cpu";
  const StrategyEntry& strategy = strategy_of(config);
  const Plan plan = strategy.plan(on_cores, Topology{{host}}, {ranks, {}});
  // The training has checked this number of ranks.
  if (as_trained || !wants_blocks(strategy, plan.jobs.front())) return;
  const Json described = describe_run(rank_program(), config, "blocks");
  check_blocks(strategy, plan.jobs.front(), described.at("model").get<ModelDescription>());
}

RankChoice choose_ranks(const UseArguments& arguments, const UsedRun& run, const RunConfig& config,
                        const LaunchedAs& as) {
  RankChoice choice;
  const bool launched = as.launcher != Launcher::none;
  if (!arguments.by_strategy) {
    choice.ranks = launched ? arguments.ranks : std::max(arguments.ranks, 1);
    return choice;
  }
  const Host host = this_host({false, false});
  const int64_t cores = std::max<int64_t>(static_cast<int64_t>(host.cores.size()), 1);
  const int64_t usual = launched ? as.size : std::clamp<int64_t>(run.world_size, 1, cores);
  const int ranks = arguments.ranks > 0 ? arguments.ranks : static_cast<int>(usual);
  choice.ranks = launched ? arguments.ranks : ranks;
  if (sets_key(arguments.overrides, "strategy")) return choice;
  const std::string& equal = equal_ranks_strategy().name;
  if (const auto members = static_cast<int>(member_overrides(config).size()); members > 0) {
    // An ensemble chooses its ranks itself. A rank without a member would have nothing to do.
    choice.ranks = launched ? arguments.ranks : std::min(arguments.ranks, members);
    if (choice.ranks < arguments.ranks)
      choice.note = str("evaluated on ", counted(members, "rank"), " instead of ", arguments.ranks,
                        ", because the ensemble has ", counted(members, "member"));
    return choice;
  }
  if (config.strategy.name == equal) return choice;
  try {
    check_ranks(config, host, ranks, ranks == run.world_size);
  } catch (const ConfigError& error) {
    choice.overrides.push_back(str("strategy={name: ", equal, "}"));
    choice.note = str("evaluated with ", equal, " on ", counted(ranks, "rank"), ", each with the whole model, because ",
                      config.strategy.name, " cannot use them: ", error.what());
  }
  return choice;
}

// Prints the failure from the summary, because the run's console is off.
void print_failure(const std::string& command, const std::string& folder) {
  const Json failure = read_summary(folder).value("failure", Json());
  const std::string message = failure.is_object() ? failure.value("message", "") : "";
  if (message.empty()) return;
  const std::string prefix = str("convoy ", command, ": ");
  std::cerr << (begins_with(message, prefix) ? "" : prefix) << message << '\n';
}

RunArguments run_arguments(const UseArguments& arguments, const UsedRun& run, const Json& options,
                           const std::string& folder) {
  RunArguments job;
  job.words = {arguments.command};
  job.config = run.checkpoint + "/manifest.json";
  job.stored = configuration_to_use(run, arguments.by_strategy);
  // The keys that another strategy lacks are dropped; this one many have, and without fp16 they refuse it.
  if (sets_key(arguments.overrides, "strategy.name") && job.stored["strategy"].is_object())
    job.stored["strategy"].erase("loss_scale");
  if (arguments.by_strategy) job.overrides = overrides_of_member(run);
  job.overrides.insert(job.overrides.end(), arguments.overrides.begin(), arguments.overrides.end());
  job.fixed = {str("train.resume=", Json(absolute_path(run.path())).dump()), "train.checkpoint_every=never"};
  job.output = folder;
  job.quiet = true;
  job.use = options;
  job.use["command"] = arguments.command;
  job.use["reads_data"] = arguments.reads_data;
  if (!arguments.to.empty()) job.use.update({{"to", absolute_path(arguments.to)}, {"force", arguments.force}});
  return job;
}

}  // namespace

void check_alone(const std::string& command) {
  const LaunchedAs as = launched_as(current_variables());
  if (as.launcher == Launcher::none || as.size < 2) return;
  throw Error(Failure::command_line, "convoy ", command, " works on one rank, and the launcher started ", as.size,
              "; start it alone, without mpirun or srun");
}

Json configuration_to_use(const UsedRun& run, bool by_strategy) {
  Json config = without_locations(run.config);
  for (const char* key : {"launch", "profile"}) config.erase(key);
  config["backend"] = "auto";
  config["log"] = {{"level", "warning"}, {"tensorboard", false}};
  if (config.contains("train"))
    for (const char* key : {"keep_best", "early_stop"}) config["train"].erase(key);
  if (config.contains("model") && config["model"].is_object()) config["model"].erase("init_from");
  if (config.contains("strategy") && config["strategy"].is_object()) config["strategy"].erase("early_stop");
  if (!by_strategy) config["strategy"] = {{"name", equal_ranks_strategy().name}};
  if (by_strategy && run.member >= 0) config["strategy"] = {{"name", reference_strategy().name}};
  // Accepts other data: ids and classes keep the numbers of the checkpoint.
  if (config.contains("data") && config["data"].is_object()) config["data"]["changed"] = "allow";
  return config;
}

namespace {

// Checks, starts the ranks, and reads the result of rank 0.
void run_ranks_of(const UseArguments& arguments, const LaunchedAs& as, UseResult& result) {
  if (!arguments.by_strategy) check_alone(arguments.command);
  if (!arguments.to.empty() && result.reports) check_output_path(arguments.to, arguments.force, "--to");
  check_overrides(arguments);
  result.run = used_run(arguments.run, "convoy " + arguments.command);
  check_data_overrides(arguments, result.run);
  Json options = arguments.options;
  if (arguments.complete) arguments.complete(result.run, options);
  const UseFolder folder(as, arguments.command);
  RunArguments job = run_arguments(arguments, result.run, options, folder.path());
  Node tree = configuration_tree(job);
  const RunConfig config = read_run_tree(tree, all_catalogues());
  check_rank_override(arguments, config);
  check_split(arguments, result.run, job, config);
  keep_inputs(arguments, result.run, config);
  check_evaluated_path(arguments, job, config);
  check_members(arguments, result.run, config);
  const RankChoice choice = choose_ranks(arguments, result.run, config, as);
  if (!choice.note.empty()) result.run.notes.push_back(choice.note);
  job.ranks = choice.ranks;
  for (const std::string& assignment : choice.overrides) {
    apply_override(tree, assignment);
    job.overrides.push_back(assignment);
  }
  result.code = run_command(job, std::move(tree));
  if (!result.reports) return;
  if (result.code != exit_code::done) return print_failure(arguments.command, folder.path());
  result.summary = read_summary(folder.path());
  CONVOY_CHECK(result.summary.contains("use"), folder.path(), "/summary.json has no result, though the ranks are done");
  result.answer = result.summary["use"];
}

}  // namespace

UseResult use_run(const UseArguments& arguments) {
  const LaunchedAs as = launched_as(current_variables());
  UseResult result;
  result.reports = as.channel.empty() && as.rank == 0;
  if (!as.channel.empty()) {  // the job comes over the channel
    result.code = run_command({});
    return result;
  }
  // All ranks of a launcher find the same mistakes: rank 0 reports them.
  try {
    run_ranks_of(arguments, as, result);
  } catch (const ConfigError& error) {
    if (result.reports) add_path_advice(error);
    result.code = exit_code_of(error);
  } catch (const Error& error) {
    if (result.reports) throw;
    result.code = exit_code_of(error);
  }
  // A launcher kills all ranks once one has failed: the other ranks wait, so that rank 0 can report and clean up.
  if (!result.reports && result.code != exit_code::done) std::this_thread::sleep_for(std::chrono::milliseconds(500));
  return result;
}

int print_answer(const UseResult& result, bool json, const std::function<void()>& print, const Json& more) {
  if (!result.reports || result.code != exit_code::done) return result.code;
  if (json) {
    Json output = result.answer;
    output.update({{"run", result.run.name}, {"checkpoint", result.run.path()}, {"step", result.run.step}});
    if (!more.is_null()) output.update(more);
    std::cout << json_text(output) << '\n';
  } else {
    print();
  }
  for (const std::string& note : result.run.notes) std::cerr << "convoy: " << note << '\n';
  return exit_code::done;
}

// --- convoy evaluate ---

namespace {

// Rows held out by a fraction are those of the training file. In another file all rows are new to the model.
std::string usual_split(const UseArguments& arguments, const UsedRun& run) {
  const Json data = run.config.value("data", Json::object());
  const EvaluationSplit split = evaluation_split(data, run.config.value("seed", Json(1)));
  const bool other_rows = sets_key(arguments.overrides, "data.path") && !sets_key(arguments.overrides, "data.evaluate");
  // Held-out interactions have other candidates than those of the training, so there are no metrics of both.
  const bool of_interactions = split.options.count("data.holdout") != 0;
  return split.drawn && split.holds_out && other_rows && !of_interactions ? "all" : "held-out";
}

std::string number_cell_of(const Json& value) {
  return value.is_number() ? formatted("%.6g", value.get<double>()) : value.get<std::string>();
}

std::string evaluation_table(const Json& metrics) {
  size_t members = 0;
  for (const auto& [name, metric] : metrics.items())
    members = std::max(members, metric.value("members", Json::array()).size());
  std::vector<std::vector<std::string>> lines{{"metric", "value"}};
  for (size_t member = 0; member < members; ++member) lines.front().push_back(str("member ", member));
  std::vector<size_t> right{1};
  for (size_t member = 0; member < members; ++member) right.push_back(member + 2);
  for (const auto& [name, metric] : metrics.items()) {
    std::vector<std::string> line{name, number_cell_of(metric.at("value"))};
    for (const Json& value : metric.value("members", Json::array())) line.push_back(number_cell_of(value));
    line.resize(members + 2);
    lines.push_back(line);
  }
  return text_table(lines, right);
}

}  // namespace

int evaluate_command(UseArguments arguments, const std::string& split) {
  arguments.command = "evaluate";
  arguments.by_strategy = arguments.reads_data = true;
  std::string chosen = split;
  arguments.complete = [&](const UsedRun& run, Json& options) {
    if (chosen.empty()) chosen = usual_split(arguments, run);
    options["split"] = chosen;
  };
  const UseResult result = use_run(arguments);
  const std::string strategy = result.summary.is_object() ? result.summary.value("strategy", "") : "";
  const int ranks = result.summary.is_object() ? result.summary.value("world_size", 1) : 1;
  Json values = Json::object(), members = Json::object();
  if (result.answer.is_object())
    for (const auto& [name, metric] : result.answer.at("metrics").items()) {
      values[name] = metric.at("value");
      if (metric.contains("members")) members[name] = metric["members"];
    }
  Json more{{"split", chosen}, {"metrics", std::move(values)}, {"strategy", strategy}, {"ranks", ranks}};
  if (!members.empty()) more["members"] = members;
  const auto print = [&] {
    const Json& answer = result.answer;
    std::cout << result.run.path() << ": " << counted(answer.at("rows").get<int64_t>(), "row") << " (" << chosen
              << ") in " << formatted("%.2f", answer.at("seconds").get<double>()) << " s, " << strategy << " on "
              << counted(ranks, "rank") << '\n'
              << evaluation_table(answer.at("metrics"));
  };
  return print_answer(result, arguments.json, print, more);
}

}  // namespace convoy
