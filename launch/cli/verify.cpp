#include <signal.h>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <set>
#include <sstream>
#include <utility>

#include "core/base/text.h"
#include "core/config/reader.h"
#include "core/config/run_config.h"
#include "core/control/exit_codes.h"
#include "core/files/files.h"
#include "core/files/weight_files.h"
#include "core/optim/catalogue/catalogue.h"
#include "core/rank_state/summary.h"
#include "launch/cli/commands.h"
#include "launch/diagnose/reports.h"
#include "launch/explain/candidate.h"
#include "launch/farm/config/farm.h"
#include "launch/job/console.h"
#include "launch/job/run_modes.h"
#include "launch/machine/environment.h"
#include "launch/prepare/describe.h"
#include "launch/prepare/run_folder.h"
#include "launch/process/process.h"
#include "strategies/plans/catalogue.h"

namespace convoy {
namespace {

// Smallest eps of Adam: dividing by the root of a square that is only rounding error would amplify noise.
constexpr double least_eps = 1e-5;

// Removes folders of killed `verify` processes, because states need much space.
void remove_leftover_folders(const std::filesystem::path& where) {
  const std::string prefix = "convoy-verify-";
  std::error_code none;
  for (const std::string& name : names_in(where.string())) {
    if (name.rfind(prefix, 0) != 0) continue;
    const pid_t owner = std::atoi(name.c_str() + prefix.size());
    if (owner > 0 && kill(owner, 0) != 0 && errno == ESRCH) std::filesystem::remove_all(where / name, none);
  }
}

struct Prepared {
  PreparedRun run;
  PlacedJob placed;
};

// `tree`: the configuration with the overrides of `arguments`; gets `overrides` too.
Prepared prepared(Node tree, const RunArguments& arguments, const std::vector<std::string>& overrides,
                  const Variables& variables, const LaunchedAs& as) {
  for (const std::string& assignment : overrides) apply_override(tree, assignment);
  RunArguments complete = arguments;
  complete.overrides.insert(complete.overrides.end(), overrides.begin(), overrides.end());
  Prepared result{prepare(std::move(tree), complete, variables, as), {}};
  result.placed = placed_here(result.run);
  result.run.quiet = true;
  return result;
}

std::string layout_text(const Prepared& prepared) {
  const JobPlan& job = prepared.placed.job;
  std::vector<std::string> axes;
  for (const Axis& axis : job.mesh.axes())
    if (axis.degree > 1) axes.push_back(str(axis.name, " ", axis.degree));
  return str(prepared.run.config.strategy.name, " on ", counted(job.ranks.size(), "rank"),
             axes.empty() ? "" : " (" + join(axes, " × ") + ")", ", ", job.backend);
}

// Division of an update's rows in the configured run; the loss must be additive over it.
struct Division {
  int64_t shares = 1;  // shares of a global batch: data-parallel ranks × micro-batches
  int64_t steps = 1;   // global batches of an update
};

Division division_of(const RunConfig& config, int data_degree) {
  const StepOptions step = step_options(config.strategy.options);
  return {data_degree * step.micro_batches, step.sync.every};
}

// Runs one of the two trainings into folder `into`. Returns 0, or the run's exit code after printing the failure cause.
int train(EventLoop& loop, Prepared& prepared, const std::string& into, const Json& reference, const Division& division,
          const char* what) {
  prepared.run.arguments.output = into;
  prepared.run.snapshots = {{"folder", into + "/states"},
                            {"reference", reference},
                            {"shares", division.shares},
                            {"splits", division.shares * division.steps > 1}};
  const int code = start_alone(loop, prepared.run, prepared.placed);
  if (code == exit_code::done) return code;
  if (code == 128 + SIGINT || code == 128 + SIGTERM) {
    std::cerr << "convoy: asked to stop during " << what << " (" << layout_text(prepared)
              << "): nothing was compared\n";
    return code;
  }
  const Json failure = read_summary(into).value("failure", Json());
  std::string cause = "no cause was reported";
  if (failure.is_object()) cause = failure.value("message", cause);
  std::cerr << "convoy: " << what << " (" << layout_text(prepared) << ") did not end: exit " << code << ": " << cause
            << '\n';
  return code;
}

// Returns why the reference's loss cannot be divided into shares, or "".
std::string read_loss_fault(const std::string& states) { return read_file_if_any(states + "/loss_fault.txt"); }

// A note if no step compared shares of unequal sizes, else "".
std::string uneven_text(const std::string& states, const Division& division) {
  if (!std::filesystem::exists(states + "/no_uneven_batch.txt")) return "";
  return str(
      "no step had uneven shares: mistakes that only uneven shares show stay hidden; they need --steps 2 or more, a "
      "global batch of at least ",
      division.shares + 2, " rows, and a data set with at least ", division.shares + 1, " rows more\n");
}

// The differences that the configured run found, and one for each step at which only the reference made an update.
std::vector<StepDifferences> differences_in(const std::string& path, const std::vector<std::string>& references) {
  const Json json = Json::parse(read_file_if_any(path), nullptr, false);
  CONVOY_CHECK(json.is_array(), path, " was not written, though the run is done");
  std::vector<StepDifferences> steps;
  for (const Json& step : json) steps.push_back(step_differences_from_json(step));
  const std::string prefix = "step-";
  std::set<int64_t> left;  // steps of snapshots that the configured run did not remove
  for (const std::string& reference : references)
    for (const std::string& name : names_in(reference))
      if (name.rfind(prefix, 0) == 0) left.insert(std::stoll(name.substr(prefix.size())));
  for (int64_t step : left) steps.push_back(update_in_one_run(step, "is as before: only the reference made an update"));
  std::stable_sort(steps.begin(), steps.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return steps;
}

}  // namespace

void check_comparable(const RunConfig& config) {
  const Options& optimizer = config.optimizer.options;
  const Json& model = config.model.options.json();
  const bool rows = model.contains("rows") && model["rows"] != false;
  if (rows && optimizer_options(config.optimizer).lazy)
    optimizer.fail("lazy", "is true: rows without a gradient are not updated, so results differ from those of ",
                   reference_strategy().name, " with dense tables; verify with false");
  refuse_local_updates(config.strategy.options, [](const std::string& what) {
    return str("is ", what, ": ranks make local updates, so the results differ from those of ",
               reference_strategy().name, "; verify with gradients");
  });
}

std::vector<std::string> common_overrides(const RunConfig& config, const VerifyArguments& arguments,
                                          std::vector<std::string>& notes) {
  std::vector<std::string> overrides = {
      str("precision=", arguments.precision),
      "randomness=exact",  // else ranks draw different dropout
      str("train.max_steps=", arguments.steps),
      "train.epochs=~",
      "train.evaluate_every=never",
      "train.checkpoint_every=never",
      "train.keep_best.metric=~",
      "train.early_stop.metric=~",
      "train.pause_after=never",
      "train.resume=never",
  };
  notes.push_back(str("precision ", arguments.precision,
                      config.precision == arguments.precision ? "" : " instead of " + config.precision));
  if (config.randomness == "fast") notes.push_back("randomness exact instead of fast");
  if (config.strategy.options.has("early_stop")) overrides.push_back("strategy.early_stop.patience=0");
  if (const double eps = optimizer_options(config.optimizer).eps; eps > 0 && eps < least_eps) {
    overrides.push_back(str("optimizer.eps=", Json(least_eps).dump()));
    notes.push_back(str("optimizer.eps raised from ", eps, " to ", least_eps));
  }
  return overrides;
}

std::vector<std::string> reference_overrides(const RunConfig& config, int data_degree) {
  const StrategyEntry& reference = reference_strategy();
  Json section = {{"name", reference.name}};
  section.update(shared_keys(config.strategy.options, reference.options, false));
  section.erase("loss_scale");  // both runs are in full precision
  section.erase("recompute");  // a block with different results in a second forward pass would change both runs equally
  const BatchSize& batch = config.train.batch;
  const int64_t rows = batch.per_rank ? batch.rows * data_degree : batch.rows;
  std::vector<std::string> overrides{str("strategy=", section.dump()), "launch.ranks=auto", "backend=auto",
                                     str("train.batch=", Json{{"global", rows}}.dump())};
  // The reference has dense tables in place of sparse embeddings.
  const Json& model = config.model.options.json();
  if (model.contains("rows") && model["rows"] != false) overrides.push_back("model.rows=false");
  return overrides;
}

// Explains a difference: statistics over fewer rows differ.
std::string batch_norm_text(const Options& strategy, int data_degree, const std::vector<StepDifferences>& steps) {
  if (data_degree == 1 || !strategy.has("batch_norm") || step_options(strategy).synchronises_norms) return "";
  const std::string statistics = "running_mean";
  for (const StepDifferences& step : steps)
    for (const TensorDifference& tensor : step.tensors)
      if (tensor.name.size() >= statistics.size() &&
          tensor.name.compare(tensor.name.size() - statistics.size(), statistics.size(), statistics) == 0)
        return str(
            "batch norm uses each rank's share here (strategy.batch_norm: local), so results differ from those of ",
            reference_strategy().name,
            "; --set strategy.batch_norm=sync compares, for layers that come from Layers::batch_norm\n");
  return "";
}

int verify_command(const VerifyArguments& arguments) {
  if (!arguments.against.empty()) return verify_against(arguments);
  const Variables variables = current_variables();
  const LaunchedAs as = launched_as(variables);
  if (as.launcher != Launcher::none)
    throw Error(Failure::command_line, "convoy verify starts its ranks itself, so it does not run under ",
                name_of(as.launcher),
                "; type `convoy verify` without it, with --ranks N, and with --set backend=mpi for MPI");
  const Node tree = read_yaml_file(arguments.run.config, arguments.run.overrides);
  refuse_several(tree, arguments.run.config);
  const RunConfig written = read_run_tree(tree, all_catalogues());
  refuse_program(written, "verify");
  check_comparable(written);
  std::vector<std::string> notes;
  const std::vector<std::string> common = common_overrides(written, arguments, notes);
  Prepared configured = prepared(tree, arguments.run, common, variables, as);

  RunArguments alone = arguments.run;
  alone.ranks = 0;
  alone.faults.clear();
  std::vector<std::string> overrides = common;
  for (std::string& override : reference_overrides(written, configured.placed.job.mesh.degree("data")))
    overrides.push_back(std::move(override));
  std::vector<std::vector<std::string>> members = member_overrides(written);
  const bool several = !members.empty();
  if (!several) members.emplace_back();
  std::vector<Prepared> references;
  for (std::vector<std::string>& more : members) {
    more.insert(more.begin(), overrides.begin(), overrides.end());
    references.push_back(prepared(tree, alone, more, variables, as));
  }
  Prepared& reference = references.front();

  const double tolerance = arguments.tolerance.value_or(
      std::max(arguments.precision == "fp64" ? 1e-9 : 1e-3, compression_error(written.strategy.options)));
  std::cout << layout_text(configured) << ", against " << layout_text(reference)
            << (references.size() > 1 ? str(", one run for each of ", references.size(), " members") : "") << ": "
            << counted(arguments.steps, "step") << " of " << counted(reference.run.config.train.batch.rows, "row")
            << "; " << join(notes, "; ") << std::endl;

  remove_leftover_folders(temporary_folder());
  const ScratchFolder folder("convoy-verify");
  const Division division = division_of(written, configured.placed.job.mesh.degree("data"));
  EventLoop loop;  // one loop for both runs: a signal between them must not leave the folder on disk
  const auto printed = std::make_shared<std::set<std::string>>();  // both runs read the same data
  for (Prepared& one : references) one.run.printed_before = printed;
  configured.run.printed_before = printed;
  std::vector<std::string> states;
  Console console(loop, 1, false, true);  // plain lines: the runs print too
  for (Prepared& one : references) {
    console.progress({{"text", str("verify: ", states.size(), " of ", references.size(), " reference runs")}});
    const std::string into = str(folder.path(), "/reference-", states.size());
    states.push_back(into + "/states");
    if (int code = train(loop, one, into, "", division, "the reference")) return code;
  }
  const Json against = several ? Json(states) : Json(states.front());
  if (int code = train(loop, configured, folder.path() + "/configured", against, division, "the configured run"))
    return code;
  const std::vector<StepDifferences> steps =
      differences_in(folder.path() + "/configured/states/differences.json", states);
  const VerifyResult result = verify_result(steps, tolerance, reference.run.config.strategy.name);
  const std::string loss_fault = read_loss_fault(states.front());
  std::cout << '\n' << result.table << '\n' << uneven_text(states.front(), division);
  if (!result.agree || loss_fault.empty()) std::cout << result.text;
  // Equal shares can hide a wrong loss.
  if (!loss_fault.empty()) std::cout << (result.agree ? "differ: " : "") << loss_fault << '\n';
  if (!result.agree)
    std::cout << batch_norm_text(written.strategy.options, configured.placed.job.mesh.degree("data"), steps);
  std::cout << std::flush;
  return result.agree && loss_fault.empty() ? exit_code::done : exit_code::differs;
}

// `convoy verify CONFIG --against DIR`: the comparison with a model of Python.

namespace {

constexpr std::chrono::hours comparison_limit{6};  // a large model on a slow machine

double relative_of(const Json& tensor) {
  return tensor.at("relative").is_null() ? std::numeric_limits<double>::infinity()
                                         : tensor.at("relative").get<double>();
}

std::string tensor_text(const Json& tensor) {
  const std::string name = tensor.at("name"), theirs = tensor.at("theirs"), what = tensor.at("what");
  if (what == "loss") return "the loss";
  return str(what, " of ", name, name == theirs ? "" : " (" + theirs + ")");
}

// Where to look, from the kind of the first tensor that differs.
std::string advice(const Json& tensors, size_t first) {
  const std::string what = tensors[first].at("what"), name = tensors[first].at("name");
  const std::string before = first == 0 ? "" : tensor_text(tensors[first - 1]);
  if (what == "input")
    return before.empty()
               ? "nothing is computed before it: is the batch the same?"
               : str(before, " still agrees: look at what is computed between the two, such as masks, scales, ",
                     "positions, gates and activation functions");
  if (what == "output")
    return str(
        "its input agrees: look at its weights (transposed, or in another order?) and at its options, such as an ",
        "epsilon");
  if (what == "loss") return "all layers agree: look at the loss, and at which rows or tokens it counts";
  return "the forward pass agrees, and so do the gradients of later layers: look at the backward pass of this layer";
}

}  // namespace

AgainstResult against_result(const Json& compared, double tolerance) {
  const Json& tensors = compared.at("tensors");
  std::ostringstream text;
  if (tensors.empty())
    return {false,
            "differ: the reference has no layer, loss or gradient of this model; write it with "
            "tools/dump_reference.py\n"};
  size_t worst = 0, first = tensors.size();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (relative_of(tensors[i]) > relative_of(tensors[worst])) worst = i;
    if (first == tensors.size() && !(relative_of(tensors[i]) <= tolerance)) first = i;
  }
  if (const Json& skipped = compared.at("skipped"); !skipped.empty())
    text << "not compared, since Python called no such module: " << join(skipped.get<std::vector<std::string>>(), ", ")
         << '\n';
  const bool agree = first == tensors.size();
  if (agree) {
    text << "agree: " << counted(tensors.size(), "tensor") << ", the largest relative difference is "
         << relative_of(tensors[worst]) << " (" << tensor_text(tensors[worst]) << "), the tolerance " << tolerance
         << '\n';
  } else {
    const std::string fault = tensors[first].at("fault");
    text << "differ: first the " << tensor_text(tensors[first]) << ", "
         << (fault.empty() ? str("relative difference ", relative_of(tensors[first])) : fault) << "; the tolerance is "
         << tolerance << "\n  " << advice(tensors, first) << '\n';
    if (compared.contains("config"))
      for (const Json& line : compared["config"]) text << "  config.json: " << line.get<std::string>() << '\n';
  }
  return {agree, text.str()};
}

int verify_against(const VerifyArguments& arguments) {
  if (std::error_code none; !std::filesystem::is_directory(arguments.against, none))
    throw Error(Failure::command_line, "--against ", arguments.against,
                ": no such folder; make one with tools/dump_reference.py");
  weight_files(arguments.against);
  const Variables variables = current_variables();
  const PreparedRun run = prepare(arguments.run, variables, launched_as(variables));
  const Json compared =
      ask_rank_program(run.rank_program, {"--against"},
                       {{"config", run.config.resolved}, {"folder", arguments.against}}, comparison_limit);
  const double tolerance =
      arguments.tolerance.value_or(compared.at("precision").get<std::string>() == "fp64" ? 1e-10 : 1e-5);
  const AgainstResult result = against_result(compared, tolerance);
  std::cout << run.config.model.name << " against " << arguments.against << ", "
            << compared.at("precision").get<std::string>() << '\n'
            << result.text << std::flush;
  return result.agree ? exit_code::done : exit_code::differs;
}

}  // namespace convoy
