#include "launch/commands/verify.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>

#include "core/files.h"
#include "core/temporary.h"
#include "launch/candidate.h"
#include "launch/catalogues.h"
#include "launch/commands/run.h"
#include "launch/exit_codes.h"
#include "launch/farm/read.h"
#include "launch/summary.h"
#include "launch/verify_report.h"
#include "strategies/catalogue.h"

namespace convoy {
namespace {

// Adam divides by the root of a square that may be rounding alone: eps is what keeps noise noise.
constexpr double least_eps = 1e-5;

// States take room, so those of a `verify` that was killed are removed by the next one.
void sweep_left_behind(const std::filesystem::path& where) {
  const std::string prefix = "convoy-verify-";
  std::error_code none;
  for (const std::filesystem::directory_entry& entry : std::filesystem::directory_iterator(where, none)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind(prefix, 0) != 0) continue;
    const pid_t owner = std::atoi(name.c_str() + prefix.size());
    if (owner > 0 && kill(owner, 0) != 0 && errno == ESRCH) std::filesystem::remove_all(entry.path(), none);
  }
}

class TemporaryFolder {
 public:
  TemporaryFolder() {
    sweep_left_behind(temporary_folder());
    path_ = (temporary_folder() / str("convoy-verify-", getpid(), "-XXXXXX")).string();
    if (mkdtemp(path_.data()) == nullptr)
      throw Error(Failure::io,
                  str(path_, ": cannot be made: ", std::strerror(errno), "; set TMPDIR to another folder"));
  }
  ~TemporaryFolder() {
    std::error_code none;
    std::filesystem::remove_all(path_, none);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct Prepared {
  PreparedRun run;
  Placed placed;
};

Prepared prepared(const RunArguments& arguments, const std::vector<std::string>& overrides, const Variables& variables,
                  const LaunchedAs& as) {
  RunArguments complete = arguments;
  complete.overrides.insert(complete.overrides.end(), overrides.begin(), overrides.end());
  Prepared result{prepare(complete, variables, as), {}};
  result.placed = placed_here(result.run);
  result.run.quiet = true;
  return result;
}

std::string layout_text(const Prepared& prepared) {
  const Job& job = prepared.placed.job;
  std::vector<std::string> axes;
  for (const Axis& axis : job.mesh.axes())
    if (axis.degree > 1) axes.push_back(str(axis.name, " ", axis.degree));
  return str(prepared.run.config.strategy.name, " on ", job.ranks.size(), job.ranks.size() == 1 ? " rank" : " ranks",
             axes.empty() ? "" : " (" + join(axes, " × ") + ")", ", ", job.backend);
}

// How the configured run cuts the rows of an update: what its loss has to be additive over.
struct Parts {
  int64_t shares = 1;  // of a global batch: ranks of the data axis × micro-batches
  int64_t steps = 1;   // global batches of an update
};

Parts parts_of(const RunConfig& config, int data_degree) {
  const Options& strategy = config.strategy.options;
  Parts parts;
  parts.shares = data_degree * (strategy.has("micro_batches") ? strategy.integer("micro_batches") : 1);
  if (strategy.has("sync")) parts.steps = strategy.section("sync").integer("every");
  return parts;
}

// `into`: where it writes. 0, or the code that the run ended with, its cause told.
int train(EventLoop& loop, Prepared& prepared, const std::string& into, const Json& reference, const Parts& parts,
          const char* what) {
  prepared.run.arguments.output = into;
  prepared.run.snapshots = {{"folder", into + "/states"},
                            {"reference", reference},
                            {"shares", parts.shares},
                            {"splits", parts.shares * parts.steps > 1}};
  const int code = start_alone(loop, prepared.run, prepared.placed);
  if (code == exit_code::done) return code;
  if (code == 128 + SIGINT || code == 128 + SIGTERM) {
    std::cerr << "convoy: asked to stop during " << what << " (" << layout_text(prepared)
              << "): nothing was compared\n";
    return code;
  }
  const Json failure = read_summary(into).value("failure", Json());
  std::string cause = "no cause was told";
  if (failure.is_object()) cause = failure.value("message", cause);
  std::cerr << "convoy: " << what << " (" << layout_text(prepared) << ") did not end: exit " << code << ": " << cause
            << '\n';
  return code;
}

// "", or why the reference's loss is none that may be cut.
std::string read_loss_fault(const std::string& states) {
  std::ifstream file(states + "/loss_fault.txt");
  return {std::istreambuf_iterator<char>(file), {}};
}

// Says so where no step compared shares of unequal sizes.
std::string ragged_text(const std::string& states, const Parts& parts) {
  if (!std::filesystem::exists(states + "/no_ragged_batch.txt")) return "";
  return str(
      "no global batch of these steps is ragged: mistakes that only unequal shares show stay hidden; one takes "
      "--steps 2 or more, and a global batch of at least ",
      parts.shares + 2, " rows and of fewer than the data set has\n");
}

// What the configured run found, and what it left of the reference's states because it made no update there.
std::vector<StepDifferences> differences_in(const std::string& path, const std::vector<std::string>& references) {
  const Json json = Json::parse(read_file_if_any(path), nullptr, false);
  CONVOY_CHECK(json.is_array(), path, " was not written, though the run is done");
  std::vector<StepDifferences> steps;
  for (const Json& step : json) steps.push_back(step_differences_from_json(step));
  const std::string prefix = "step-";
  std::set<int64_t> left;  // each once, however many models
  for (const std::string& reference : references)
    for (const std::string& name : names_in(reference))
      if (name.rfind(prefix, 0) == 0) left.insert(std::stoll(name.substr(prefix.size())));
  for (int64_t step : left) steps.push_back(update_of_one(step, "is as before: only the reference made an update"));
  std::stable_sort(steps.begin(), steps.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return steps;
}

}  // namespace

namespace {

// Of the section `sync` or one of its groups.
void check_agreement(const Options& section) {
  const std::string agreed = "gradients";
  if (!section.json().contains("what") || section.text("what") == agreed) return;
  section.fail("what", str("is ", section.text("what"),
                           ", under which ranks train apart for a while: that is not meant to give ",
                           reference_strategy().name, "'s results; verify with ", agreed));
}

}  // namespace

void check_comparable(const RunConfig& config) {
  const Options& optimizer = config.optimizer.options;
  const Json& model = config.model.options.json();
  const bool rows = model.contains("rows") && model["rows"] != false;
  if (rows && optimizer.json().contains("lazy") && optimizer.boolean("lazy"))
    optimizer.fail("lazy", str("is true: rows without gradient stay where they are, which is not meant to give ",
                               reference_strategy().name, "'s results with dense tables; verify with false"));
  if (!config.strategy.options.json().contains("sync")) return;
  const Options sync = config.strategy.options.section("sync");
  check_agreement(sync);
  if (!sync.json().contains("groups")) return;
  for (const Options& group : sync.sections("groups")) check_agreement(group);
}

std::vector<std::string> common_overrides(const RunConfig& config, const VerifyArguments& arguments,
                                          std::vector<std::string>& said) {
  std::vector<std::string> overrides = {
      str("precision=", arguments.precision),
      "randomness=exact",  // else dropout draws by rank
      str("train.max_steps=", arguments.steps),
      "train.epochs=~",
      "train.evaluate_every=never",
      "train.checkpoint_every=never",
      "train.resume=never",
  };
  said.push_back(str("precision ", arguments.precision,
                     config.precision == arguments.precision ? "" : " instead of " + config.precision));
  if (config.randomness == "fast") said.push_back("randomness exact instead of fast");
  if (config.strategy.options.has("early_stop")) overrides.push_back("strategy.early_stop.patience=0");
  const Options& optimizer = config.optimizer.options;
  if (optimizer.json().contains("eps") && optimizer.real("eps") < least_eps) {
    overrides.push_back(str("optimizer.eps=", Json(least_eps).dump()));
    said.push_back(str("optimizer.eps raised from ", optimizer.real("eps"), " to ", least_eps));
  }
  return overrides;
}

std::vector<std::string> reference_overrides(const RunConfig& config, int data_degree) {
  const StrategyEntry& reference = reference_strategy();
  Json section = {{"name", reference.name}};
  section.update(shared_keys(config.strategy.options.json(), reference.options));
  section.erase("loss_scale");  // nothing is computed in 16 bits
  section.erase("recompute");   // a block that a second forward changes would change both runs in the same way
  const BatchSize& batch = config.train.batch;
  const int64_t rows = batch.per_rank ? batch.rows * data_degree : batch.rows;
  std::vector<std::string> overrides{str("strategy=", section.dump()), "launch.ranks=auto", "backend=auto",
                                     str("train.batch=", Json{{"global", rows}}.dump())};
  // Row tables are held against dense ones.
  const Json& model = config.model.options.json();
  if (model.contains("rows") && model["rows"] != false) overrides.push_back("model.rows=false");
  return overrides;
}

// Statistics of fewer rows are others: what a verdict of "differ" would hide.
std::string batch_norm_text(const Json& strategy, int data_degree, const std::vector<StepDifferences>& steps) {
  if (data_degree == 1 || strategy.value("batch_norm", "") != "local") return "";
  const std::string statistics = "running_mean";
  for (const StepDifferences& step : steps)
    for (const TensorDifference& tensor : step.tensors)
      if (tensor.name.size() >= statistics.size() &&
          tensor.name.compare(tensor.name.size() - statistics.size(), statistics.size(), statistics) == 0)
        return str(
            "batch norm is over each rank's own rows here (strategy.batch_norm: local), which is not meant to give ",
            reference_strategy().name,
            "'s results; --set strategy.batch_norm=sync compares, for layers that come from Layers::batch_norm\n");
  return "";
}

int verify_command(const VerifyArguments& arguments) {
  const Variables variables = current_variables();
  const LaunchedAs as = launched_as(variables);
  if (as.launcher != Launcher::none)
    throw Error(Failure::command_line,
                str("convoy verify starts its ranks itself, and ", name_of(as.launcher),
                    " has started it; type it alone, with --ranks N, and --set backend=mpi for mpi"));
  refuse_several(arguments.run);
  ReadRequest request{arguments.run.config, arguments.run.overrides};
  const RunConfig written = read_run_config(request, all_catalogues());
  check_comparable(written);
  std::vector<std::string> said;
  const std::vector<std::string> common = common_overrides(written, arguments, said);
  Prepared configured = prepared(arguments.run, common, variables, as);

  RunArguments alone = arguments.run;
  alone.ranks = 0;
  alone.faults.clear();
  std::vector<std::string> overrides = common;
  for (std::string& override : reference_overrides(written, configured.placed.job.mesh.degree("data")))
    overrides.push_back(std::move(override));
  const StrategyEntry& strategy = strategy_entry(written.strategy.name);
  std::vector<Prepared> references;
  for (const std::vector<std::string>& more :
       strategy.members ? strategy.members(written) : std::vector<std::vector<std::string>>(1)) {
    std::vector<std::string> own = overrides;
    own.insert(own.end(), more.begin(), more.end());
    references.push_back(prepared(alone, own, variables, as));
  }
  Prepared& reference = references.front();

  const double tolerance = arguments.tolerance.value_or(
      std::max(arguments.precision == "fp64" ? 1e-9 : 1e-3, compression_error(written.strategy.options.json())));
  std::cout << layout_text(configured) << ", against " << layout_text(reference)
            << (strategy.members ? str(", one run for each of ", references.size(), " members") : "") << ": "
            << arguments.steps << " steps of " << reference.run.config.train.batch.rows << " rows; " << join(said, "; ")
            << std::endl;

  const TemporaryFolder folder;
  const Parts parts = parts_of(written, configured.placed.job.mesh.degree("data"));
  EventLoop loop;  // one for both, so that no signal finds a moment in which it would leave the folder behind
  std::vector<std::string> states;
  for (Prepared& one : references) {
    const std::string into = str(folder.path(), "/reference-", states.size());
    states.push_back(into + "/states");
    if (int code = train(loop, one, into, "", parts, "the reference")) return code;
  }
  const Json against = strategy.members ? Json(states) : Json(states.front());
  if (int code = train(loop, configured, folder.path() + "/configured", against, parts, "the configured run"))
    return code;
  const std::vector<StepDifferences> steps =
      differences_in(folder.path() + "/configured/states/differences.json", states);
  const VerifyVerdict verdict = verdict_of(steps, tolerance, reference.run.config.strategy.name);
  const std::string loss_fault = read_loss_fault(states.front());
  std::cout << '\n' << verdict.table << '\n' << ragged_text(states.front(), parts);
  if (!verdict.agree || loss_fault.empty()) std::cout << verdict.text;
  // Shares that happen to be equal hide it.
  if (!loss_fault.empty()) std::cout << (verdict.agree ? "differ: " : "") << loss_fault << '\n';
  if (!verdict.agree)
    std::cout << batch_norm_text(written.strategy.options.json(), configured.placed.job.mesh.degree("data"), steps);
  std::cout << std::flush;
  return verdict.agree && loss_fault.empty() ? exit_code::done : exit_code::differs;
}

}  // namespace convoy
