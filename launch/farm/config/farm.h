// A farm: several runs from one file (`strategy: independent`). Each pipeline waits for a slot and runs there as its
// own `convoy run`. It can have limits, be retried, or be preempted by a pipeline of higher priority. Runs send nothing
// to each other and end independently.
//
// The file is read and checked as a whole: every mistake of every pipeline is reported, with its source location,
// before anything starts.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/json.h"
#include "core/config/job_plan.h"
#include "core/config/node.h"
#include "core/config/run_config.h"
#include "launch/farm/schedule/halving.h"
#include "launch/farm/schedule/options.h"
#include "launch/farm/schedule/queue.h"
#include "launch/prepare/prepare.h"

namespace convoy {

struct Pipeline {
  std::string name;  // also the name of its folder
  Json config;       // resolved (RunConfig::resolved), with source locations; its strategy plans within its slot
  QueueOptions options;
  SourceLocation location;  // where the user wrote it
  Json grid = nullptr;      // values by key path, for a point of a grid
};

struct Farm {
  std::vector<Pipeline> pipelines;  // names differ
  int max_parallel = 0;             // pipelines at a time; 0: as many as slots allow
  std::string metric;               // sorts the leaderboard; "": none chosen
  std::string direction = "auto";   // auto | maximize | minimize
  HalvingOptions halving;
};

// A file of several runs, as `convoy run` executes it.
struct FarmRun {
  RunArguments arguments;
  Variables variables;
  LaunchedAs as;
  std::string name;
  Json resolved;  // the file with overrides and a flat grid; a rerun must equal it
  Farm farm;
  SourceLocation metric_location;  // location of strategy.metric
  LaunchConfig launch;             // its time limits and address are for the agents of the slots
  std::vector<std::string> warnings;
  bool grows = false;  // pipelines wait in the inbox of the folder, although its farm may be done
  // All mistakes of the file; with any, nothing starts. refuse_all reports them together with those of check_requests.
  // A configuration with mistakes is null in its pipeline.
  std::vector<ConfigError> mistakes;
};

// Returns nothing if the tree describes one run. Throws ConfigError if the tree cannot be read.
std::optional<FarmRun> read_farm(const Node& root, const RunArguments& arguments, const Variables& variables,
                                 const LaunchedAs& as);

// Reads a pipeline to add to a running farm: a map of name, config (a file, or the keys of a whole run) and queue
// options. Throws ConfigError, or Error(config) with one mistake per line of its message.
Pipeline read_pipeline(const std::string& path);
// Returns the pipeline as YAML for read_pipeline. The text refers to no other file, so it may be moved.
std::string pipeline_yaml(const Pipeline& pipeline);

// Checks before the start that a pipeline reports strategy.metric, which sorts the leaderboard. With strategy.halving
// each pipeline must report it, because rungs compare them all. Returns the mistake at `location`, with the metrics
// that exist; nothing if there is none, or if that is unknown. Starts `rank_program` for the first few different
// pipelines only. Needs configurations without mistakes.
std::optional<ConfigError> metric_mistake(const Farm& farm, const SourceLocation& location,
                                          const std::string& rank_program);

// --- Pipelines of the file: the tree of each, as in a separate file ---

struct PipelineText {
  std::string name;
  Node config;  // a whole run, to be read strictly; each location names the file of its key
  QueueOptions options;
  SourceLocation location;  // location of the pipeline, in the file that lists it
  Json grid = nullptr;      // values by key path, for a point of a grid
};

// Returns the pipelines of a farm's file; sets everything of `farm` except its pipelines. Adds all mistakes; if there
// are any, nothing starts.
std::vector<PipelineText> pipeline_texts(const Node& root, Farm& farm, std::vector<ConfigError>& mistakes);

// Merges `over` into `base`: maps key by key; other values are replaced. A component with another name is replaced as
// a whole.
Node merged(const Node& base, const Node& over);
// Sets `value` at a key path such as "train.batch.global"; creates missing maps. Items of lists count from 0. Throws
// ConfigError at the value's location for an invalid path.
void put_at(Node& root, const std::string& path, const Node& value);

// The grid, or the ranges of a search, with key paths instead of maps: {optimizer: {lr: [1, 2]}} becomes
// {optimizer.lr: [1, 2]}. Values from --set replace those of the file. `twice`: keys that the file contains twice.
Node flat_grid(const Node& grid, std::vector<Node::Field>& twice);

// True if a node of the tree comes from this file (SourceLocation::file), which may be one assignment of --set.
bool holds_text_of(const Node& node, const std::string& file);

// --- Grid: every combination of the values of some keys, with a name for each ---

struct GridPoint {
  std::string name;
  // Key path and value, in the order of the grid's keys. Points into the grid.
  std::vector<std::pair<std::string, const Node*>> values;
};

// `grid` maps key paths to lists of values; the last key varies fastest. `trials`: the values of a search, as a map
// from key paths to lists of equal length; trial i has the i-th value of each list. Each trial is combined with the
// whole grid.
// `pattern` makes the names: {optimizer.lr} is the value of that key, {index} the number of the point from 0, {trial}
// the number of the trial. With "" a name has the number of the trial, and the last part of each key of the grid and
// its value. Characters that are not allowed in names become '-'. Values of a key with equal texts get "-2", "-3", …;
// long names end in a hash of the rest.
// Throws ConfigError: at the grid for more than most_grid_points, at the key for an empty list, at `pattern_location`
// for a key that the grid does not have.
std::vector<GridPoint> grid_points(const Node& grid, const std::string& pattern, const SourceLocation& pattern_location,
                                   const Node& trials = {});
// Points for error messages of an invalid grid: each value of each key once, with the first values of the other keys.
// Omits keys without a list of values, and values after the first thousand points.
std::vector<GridPoint> grid_values(const Node& grid);

// --- Random search (Bergstra and Bengio, 2012): random values of some keys ---

// `search`: {random: number of trials, seed, over: {key path: list of values, or {from, to, scale: linear | log}}}.
// A range of integers gives integers; other values have four significant digits, more in a narrow range. A value
// depends on the seed, the number of the trial and the key only, so more trials do not change the first ones. All
// trials differ.
// Returns a map from key paths to a list of the values of all trials. Throws ConfigError at the value that is wrong.
Node sampled_trials(const Node& search);

// --- Additional values for the keys of a grid: `convoy add RUN --set strategy.grid.seed=[3, 4]` ---

struct GridExtension {
  FarmRun farm;                     // from RUN/config.yaml, to start it again
  std::vector<Pipeline> pipelines;  // points with a new value of at least one key; their names are new in RUN
};

// `overrides`: assignments of --set, each of a grid key with a list of values to add. Skips points that exist already,
// also from earlier additions. Throws Error(command_line) if RUN is no farm with a grid, or if an override has another
// key. Throws ConfigError or Error(config) with all mistakes, and Error(config) if no point is new.
GridExtension extended(const std::string& folder, const std::vector<std::string>& overrides);

// --- Resource requests of pipelines, and checks of pipelines on a cluster ---
//
// The checks read files, start convoy-rank to describe plugins, and complete Pipeline::config. The other functions are
// pure.

// The hosts of a farm, and the slots, GPUs and memory that it may use of them.
struct Cluster {
  std::vector<Host> hosts;
  Inventory inventory;
};
// Without a launcher: each physical core is a slot.
Cluster cluster_of(const Host& host);
// Under a launcher: agent i is slot i. `agents`: each agent's host, with the launcher's binding (Host::bound). Agents
// that may use the same cores of a host divide them.
Cluster cluster_of(const std::vector<Host>& agents);

// `pipeline.config` may be null; then only the queue options count.
ResourceRequest request_of(const Pipeline& pipeline, const Cluster& cluster, int max_parallel);
// Hardware threads of an allocation: those that the request lists, else all of its slots.
std::vector<int> hardware_threads_of(const Allocation& allocation, const ResourceRequest& request,
                                     const Inventory& inventory);

// Returns all mistakes of the pipelines on this cluster: missing devices; plans that the strategy refuses; cores and
// GPUs that two pipelines list without `share`; shares or memory limits that together exceed a device or host.
// Completes configurations that load plugins. `rank_program`: path of convoy-rank. A null configuration had mistakes;
// then only the pipeline's queue options are checked. The first `known` pipelines were checked before; they only count
// as users of cores, GPUs and memory.
std::vector<ConfigError> check_requests(Farm& farm, const Cluster& cluster, const std::string& rank_program,
                                        size_t known = 0);
// The checks that need no cluster: plugins, data files, and devices that two pipelines list without `share`.
std::vector<ConfigError> check_anywhere(Farm& farm, const std::string& rank_program);

}  // namespace convoy
