// Makes a checked configuration from the command line, and a placed job from the configuration and the hosts.
#pragma once
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/config/job_plan.h"
#include "core/config/node.h"
#include "core/config/run_config.h"
#include "launch/machine/environment.h"
#include "launch/machine/placement.h"
#include "launch/prepare/run_folder.h"
#include "launch/process/process.h"

namespace convoy {

// Typed command line of `convoy run`, or of a command that runs a job too.
struct RunArguments {
  std::vector<std::string> words{"run"};  // the command before CONFIG
  std::string config;                     // "": `program` and `overrides` hold the whole configuration
  std::vector<std::string> program = {};  // words after `--`
  std::vector<std::string> overrides;
  std::string output;
  int ranks = 0;
  std::vector<std::string> faults = {};  // --inject
  std::vector<std::string> hosts = {};   // --hosts: NAME or NAME:RANKS
  NodeOptions nodes;                     // --nodes, --node-rank, --rendezvous
  std::vector<std::string> fixed = {};   // overrides that follow the typed ones
  Json bench = {};                       // null, or a measurement instead of training (launch/rank/measure/bench.h)
  Json use = {};                         // null, or {command, …}: uses a trained run (launch/rank/use/use.h)
  Json stored = {};                      // null, or the configuration stored in the manifest `config`
  bool quiet = false;                    // shows lines of ranks only
  std::chrono::steady_clock::time_point launched = std::chrono::steady_clock::now();
};

struct PreparedRun {
  RunArguments arguments;
  Variables variables;  // environment variables
  LaunchedAs as;
  RunConfig config;  // checked, with the options of plugins
  std::string rank_program;
  std::vector<std::string> warnings;
  bool quiet = false;  // the console shows lines of ranks only
  // Lines of ranks that this command has printed in earlier runs; it skips them. Null: it prints every line.
  std::shared_ptr<std::set<std::string>> printed_before = nullptr;
  Json snapshots;  // null, or the snapshots that ranks take (launch/rank/snapshots.cpp)
  Json described;  // null, or the answer of `convoy-rank --describe blocks`
  Node tree;       // the parsed configuration with the typed overrides, for variants of this run
};

// The tree of the typed configuration file or program, with the overrides.
Node configuration_tree(const RunArguments& arguments);

// Reads the configuration and checks it on this host, without planning. Throws ConfigError, Error, CannotExecute.
PreparedRun prepare(const RunArguments& arguments, const Variables& variables, const LaunchedAs& as);
// `tree`: the configuration with the typed overrides, already parsed.
PreparedRun prepare(Node tree, const RunArguments& arguments, const Variables& variables, const LaunchedAs& as);

// Refuses a configuration with a program, for a command that needs its model. ConfigError at the key.
void refuse_program(const RunConfig& config, const std::string& command);

// Compares rows with model, transforms and loss, and checks products of sizes, as far as options describe them. Throws
// ConfigError at the key.
void check_components(const RunConfig& config);

// Refuses launch.min_ranks for a job that cannot continue without a rank. ConfigError at the key to change.
void check_min_ranks(const PreparedRun& run, const JobPlan& job);

// The typed command without --output, --inject and train.resume: hints append other values of these.
TypedCommand typed_command(const RunArguments& arguments);
RunFolderRequest folder_request(const PreparedRun& run);

// True if the configuration may use GPUs, so that a search for them is worth its time.
bool may_use_gpus(const RunConfig& config);

// Plans and places. If a launcher started the ranks, `rank_hosts` gives the host of each rank and `allowed` the
// hardware threads that each rank may use. Empty `rank_hosts`: `topology` is this host and the strategy may choose the
// number of ranks.
struct PlacedJob {
  JobPlan job;
  bool passive = false;
  std::vector<std::string> warnings;
  std::vector<PlacedRank> table;  // by rank
  Json topology;                  // result of topology_json
  Topology hosts;
};
PlacedJob plan_and_place(const PreparedRun& run, const Topology& topology, const std::vector<int>& rank_hosts = {},
                         const std::vector<std::vector<int>>& allowed = {});

// The same for this host alone.
PlacedJob placed_here(const PreparedRun& run);

// The same from the host that each agent reports. A launcher may have bound ranks of one host to different cores.
PlacedJob plan_and_place(const PreparedRun& run, const std::vector<Host>& host_of_rank);

}  // namespace convoy
