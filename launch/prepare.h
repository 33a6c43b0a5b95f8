// From the command line to a checked configuration, and from that and the hosts to a placed job.
#pragma once
#include <chrono>
#include <string>
#include <vector>

#include "core/config/run_config.h"
#include "core/plan.h"
#include "launch/environment.h"
#include "launch/placement_table.h"
#include "launch/rank_process.h"
#include "launch/run_folder.h"

namespace convoy {

// `convoy run`, or a command like it, as it was typed.
struct RunArguments {
  std::vector<std::string> words{"run"};  // of the command, in front of CONFIG
  std::string config;                     // "": all of the configuration is in `overrides`
  std::vector<std::string> overrides;
  std::string output;
  int ranks = 0;
  std::vector<std::string> faults = {};  // --inject
  std::vector<std::string> hosts = {};   // --hosts: NAME or NAME:RANKS
  std::vector<std::string> fixed = {};   // overrides behind those that were typed
  Json bench = {};                       // null, or what ranks do instead of training (launch/rank/bench.h)
  std::chrono::steady_clock::time_point launched = std::chrono::steady_clock::now();
};

struct PreparedRun {
  RunArguments arguments;
  Variables variables;  // of the environment
  LaunchedAs as;
  RunConfig config;  // checked, plugins' options included
  std::string rank_program;
  std::vector<std::string> warnings;
  bool quiet = false;  // the console shows what ranks write and nothing of its own
  Json snapshots;      // null, or what ranks are asked for (launch/rank/snapshots.h)
  Json described;      // null, or what `convoy-rank --describe blocks` has told already
};

// Reads and checks all that can be checked on one host without planning. Throws ConfigError, Error, CannotExecute.
PreparedRun prepare(const RunArguments& arguments, const Variables& variables, const LaunchedAs& as);

FolderRequest folder_request(const PreparedRun& run);

// Whether GPUs are worth looking for.
bool wants_gpus(const RunConfig& config);

// Plans and places. `rank_hosts` gives the host of each rank where a launcher has started them, with what each rank may
// use there; empty: `topology` has this host alone and the strategy may choose the number of ranks.
struct Placed {
  Job job;
  bool passive = false;
  std::vector<std::string> warnings;
  std::vector<PlacedRank> table;               // by rank
  std::shared_ptr<const Farm> farm = nullptr;  // runs to be queued instead of the job, which is empty then
};
Placed plan_and_place(const PreparedRun& run, const Topology& topology, const std::vector<int>& rank_hosts = {},
                      const std::vector<std::vector<int>>& allowed = {});

// The same from what each agent told of its host; ranks on one host may have been bound apart by their launcher.
Placed plan_and_place(const PreparedRun& run, const std::vector<Host>& host_of_rank);

}  // namespace convoy
