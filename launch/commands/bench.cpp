#include "launch/commands/bench.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "launch/bench_report.h"
#include "launch/commands/run.h"
#include "launch/exit_codes.h"
#include "launch/summary.h"
#include "strategies/catalogue.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

// Each rank comes to the same: the ranks of a launcher meet in this folder.
std::string own_folder_of(const LaunchedAs& as) {
  return str("runs/bench-", as.launcher == Launcher::none ? std::to_string(getpid()) : as.job);
}

// Before anything is measured.
void check_writable(const std::string& file) {
  if (file.empty()) return;
  const std::string parent = fs::path(file).parent_path().string();
  const std::string kind = irregular(file);
  if (!kind.empty() || access(parent.empty() ? "." : parent.c_str(), W_OK | X_OK) != 0)
    throw Error(Failure::output, str("--json ", file, ": ", kind.empty() ? std::strerror(errno) : kind.c_str(),
                                     "; name a file in a folder that can be written"));
}

void write_rows(const std::string& file, const Json& summary) {
  Json told = {{"backend", summary.at("backend")},
               {"ranks", summary.at("world_size")},
               {"placement", summary.at("placement")},
               {"joined_seconds", summary.at("startup_seconds")},  // from launch until all ranks had met
               {"version", summary.at("version")},
               {"rows", summary.at("bench")}};
  write_whole(file, told.dump(2) + "\n", false);
}

void remove_folder(const std::string& folder) {
  std::error_code none;
  fs::remove_all(folder, none);
  fs::remove(fs::path(folder).parent_path(), none);  // where nothing else is in it
}

std::vector<std::string> words_of(const BenchArguments& arguments) {
  return {"bench", arguments.operation, "--sizes", arguments.sizes, "--dtype", arguments.dtype};
}

}  // namespace

std::vector<std::string> bench_overrides(const std::string& operation) {
  return {str("name=bench-", operation),
          "seed=1",
          "precision=fp32",
          "randomness=auto",
          "plugins=[]",
          "model={name: mlp}",
          "data={name: synthetic}",
          "loss=~",
          "optimizer={name: sgd, lr: 1}",
          str("strategy={name: ", plain_strategy().name, "}"),
          "train={batch: {per_rank: 1}, resume: never}"};
}

int bench_command(const BenchArguments& arguments) {
  const LaunchedAs as = launched_as(current_variables());
  const bool tells = as.channel.empty() && as.rank == 0;  // others do what the one of rank 0 says
  RunArguments run = arguments.run;
  run.words = words_of(arguments);
  run.bench = {{"operation", arguments.operation}, {"sizes", bench_sizes(arguments.sizes)}, {"dtype", arguments.dtype}};
  run.fixed = bench_overrides(arguments.operation);
  if (run.output.empty()) run.output = own_folder_of(as);
  if (tells) check_writable(arguments.json);

  int code = run_command(run);
  if (!tells) return code;
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
