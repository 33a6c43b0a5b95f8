#include "launch/cli/commands.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/control/exit_codes.h"
#include "core/rank_state/summary.h"
#include "launch/diagnose/reports.h"
#include "strategies/plans/catalogue.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

// Default run folder, equal on all ranks: ranks of a launcher rendezvous in it.
std::string default_folder(const LaunchedAs& as) {
  return str("runs/bench-", as.launcher == Launcher::none ? std::to_string(getpid()) : as.job);
}

// Checks the file before measuring.
void check_writable(const std::string& file) {
  if (file.empty()) return;
  const std::string parent = fs::path(file).parent_path().string();
  const std::string kind = irregular(file);
  if (!kind.empty() || access(parent.empty() ? "." : parent.c_str(), W_OK | X_OK) != 0)
    throw Error(Failure::output, "--json ", file, ": ", kind.empty() ? std::strerror(errno) : kind.c_str(),
                "; name a file in a folder that you may write");
}

void write_rows(const std::string& file, const Json& summary) {
  Json json = {{"backend", summary.at("backend")},
               {"ranks", summary.at("world_size")},
               {"placement", summary.at("placement")},
               {"joined_seconds", summary.at("startup_seconds")},  // seconds from launch until all ranks had joined
               {"version", summary.at("version")},
               {"rows", summary.at("bench")}};
  write_whole(file, json.dump(2) + "\n", false);
}

void remove_folder(const std::string& folder) {
  std::error_code none;
  fs::remove_all(folder, none);
  fs::remove(fs::path(folder).parent_path(), none);  // only if it is empty
}

}  // namespace

std::vector<std::string> bench_overrides(const std::string& operation) {
  return {str("name=bench-", operation),
          "seed=1",
          "precision=fp32",
          "randomness=auto",
          "plugins=[]",
          "program=~",
          "model={name: mlp}",
          "data={name: synthetic}",
          "loss=~",
          "optimizer={name: sgd, lr: 1}",
          str("strategy={name: ", equal_ranks_strategy().name, "}"),
          "train={batch: {per_rank: 1}, resume: never}"};
}

int bench_command(const BenchArguments& arguments) {
  const LaunchedAs as = launched_as(current_variables());
  const bool reports = as.channel.empty() && as.rank == 0;  // other ranks follow rank 0
  RunArguments run = arguments.run;
  run.words = {"bench", arguments.operation, "--sizes", arguments.sizes, "--dtype", arguments.dtype};
  run.bench = {{"operation", arguments.operation}, {"sizes", bench_sizes(arguments.sizes)}, {"dtype", arguments.dtype}};
  run.fixed = bench_overrides(arguments.operation);
  if (run.output.empty()) run.output = default_folder(as);
  if (reports) check_writable(arguments.json);

  int code = run_command(run);
  if (!reports) return code;
  const Json summary = read_summary(run.output);
  if (code == exit_code::done) {
    CONVOY_CHECK(summary.contains("bench"), run.output, "/summary.json holds no rows, though the run is done");
    if (!arguments.json.empty()) write_rows(arguments.json, summary);
    if (wrong_elements(summary["bench"]) > 0) code = exit_code::differs;
  }
  const bool kept = !arguments.run.output.empty() || (code != exit_code::done && code != exit_code::stopped);
  if (!kept) remove_folder(run.output);
  return code;
}

}  // namespace convoy
