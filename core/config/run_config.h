// The configuration of a run: typed, with every default filled in. Without LibTorch.
//
// run_config.cpp and the catalogues describe each key once (type, unit, range, default, help). The fields below are a
// typed view. `resolved` has the same values as data: the run folder stores it, ranks receive it, and comparisons of
// runs use it.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"

namespace convoy {

struct Node;  // core/config/node.h

struct Component {
  std::string name;
  Options options;  // checked, with defaults: `name`, the options of the component, and those of its kind
};

// Interval in steps or epochs, or never.
struct Interval {
  enum class Unit { never, steps, epochs } unit = Unit::never;
  int64_t every = 0;
};

struct BatchSize {
  int64_t rows = 0;
  bool per_rank = false;  // rows are per data-parallel rank, not for all ranks
};

constexpr int64_t default_patience = 3;  // evaluations: default of train.early_stop.patience

// A metric of evaluations that decides something.
struct WatchConfig {
  std::string metric;              // "": nothing is watched
  std::string direction = "auto";  // auto | minimize | maximize; auto: the metric decides
  int64_t patience = 0;            // evaluations without improvement; 0: not counted
};
// run_config.cpp takes the defaults of most keys from the initial values below, but sets those of intervals itself: an
// interval that a run with a program does not read is `never`.

struct TrainConfig {
  int64_t epochs = 1;     // 0: no limit; max_steps ends the run
  int64_t max_steps = 0;  // 0: no limit; epochs end the run
  BatchSize batch;
  Interval evaluate_every;
  Interval checkpoint_every;
  Interval pause_after;  // ends the process at this point of the training; never: at its end
  int64_t keep_last = 2;
  std::optional<bool> checkpoint_async;    // write while training continues; nullopt: if a copy of the state fits
  bool continue_after_save_error = false;  // a failed save is counted and does not end the run
  WatchConfig keep_best;                   // keeps the checkpoint with its best value
  WatchConfig early_stop;                  // ends the training when it no longer improves
  std::string resume = "auto";             // auto | never | path of a checkpoint or run folder
  int64_t log_every = 100;                 // steps between metric lines
};

struct LaunchConfig {
  int64_t ranks = 0;                          // 0: the strategy chooses
  int64_t cores_per_rank = 0;                 // 0: auto
  int64_t threads = 0;                        // intra-op threads per rank; 0: as many as its cores
  std::string bind = "core";                  // none | core | numa | socket | list | keep | convoy
  std::vector<std::string> cores;             // for bind list: cores of each rank of a host, "0-3" or "0+2"
  double grace = 30;                          // seconds from TERM to KILL after a stop request
  double failure_grace = 2;                   // seconds from TERM to KILL after a failure
  double heartbeat = 60;                      // seconds without a heartbeat after which a rank is lost
  double collective = 600;                    // time limit of one collective, in seconds
  double rendezvous = 300;                    // time limit of the rendezvous, in seconds
  double step_timeout = 0;                    // time limit of one step, in seconds; 0: none
  std::string check_collectives = "sampled";  // none | sampled | all
  bool host_memory = true;                    // ranks of a host exchange tensors through shared memory
  int64_t max_restarts = 0;
  int64_t min_ranks = 0;  // the job continues without lost ranks while it has this many; 0: it ends
  double backoff = 1;     // seconds before the first restart
  std::vector<std::string> remote_shell{"ssh", "-oBatchMode=yes"};
  std::string address;  // interface address for the control channel; "": chosen
  int64_t port = 0;     // port of the control channel; 0: any free one
};

LaunchConfig launch_config(const Options& section);
Interval interval_of(const Json& value);  // value of an interval option
Json to_json(const Interval& interval);

struct LogConfig {
  std::string level = "info";
  bool tensorboard = true;  // event files in RUN/tensorboard
  int64_t histograms = 0;   // steps between histograms of weights and gradients; 0: none
  std::string prometheus;   // file of the job's metrics, absolute once prepared; "": none
};

// Steps that are traced, counted from 1 as in metrics.jsonl.
struct ProfileConfig {
  int64_t first = 0, last = 0;  // 0: none
};

// Reads "12" or "10-12". Returns {0, 0} if the text is neither.
ProfileConfig traced_steps(const std::string& text);

struct RunConfig {
  std::string name;
  uint64_t seed = 1;
  std::string device = "auto";      // auto | cpu | cuda
  std::string precision = "fp32";   // fp64 | fp32 | bf16 | fp16
  std::string randomness = "auto";  // auto | exact | fast
  Component model;                  // name "plugin:<path>" if model.plugin has no name and is not loaded yet
  Component data;
  Component loss;  // name "": the default of the model
  Component optimizer;
  Component strategy;
  std::string backend = "auto";
  TrainConfig train;
  LaunchConfig launch;
  LogConfig log;
  ProfileConfig profile;
  // Command that each rank runs instead of training `model`; empty: none. With it, model, data, loss, optimizer and
  // strategy are empty, and `train` has only the keys that core/config/program.cpp lists.
  std::vector<std::string> program;
  std::vector<std::string> plugins;  // libraries that register further losses, data sets, transforms or models
  // All of the above as data, in the order of run_options(). Its hidden key "marks" has the source location of each
  // key, so that errors of a rank name file, line and column. to_yaml and first_difference ignore it. Use
  // without_locations() to hash or compare.
  Json resolved;
  std::vector<std::string> warnings;  // from reading, one line each; not part of resolved

  // Builds the typed view from resolved data, as a rank receives it; repeats no checks.
  static RunConfig from_resolved(const Json& resolved);
  // This configuration with other values, in the form of `resolved`: {"launch": {"ranks": 4}}. Maps are merged.
  RunConfig changed(const Json& values) const;
};

// Returns the description of the whole file: top-level keys, their sections and components. core/config/program.h has
// the keys of a file with `program`.
const std::vector<Option>& run_options();

// Checks resolved data again after plugins are loaded. Options of model.plugin and of components from plugins then get
// types, ranges, defaults and errors of the same form. `plugin_model`: catalogue entry for a model.plugin without a
// name.
RunConfig check_resolved(const Json& resolved, const Catalogues& catalogues, const std::string& plugin_model = "");

// Returns the source location of `key` ("launch.ranks"), or of the nearest section around it. For checks after reading.
SourceLocation location_of(const Json& resolved, const std::string& key);
Json without_locations(const Json& resolved);
// Returns the resolved configuration as YAML text with the same meaning, one key a line, in the order of run_options().
std::string to_yaml(const Json& resolved);
// Returns the first key path in which two resolved configurations differ, without the `ignored` prefixes; "" if none.
std::string first_difference(const Json& a, const Json& b, const std::vector<std::string>& ignored);

// --- Differences between two resolved configurations, such as those of a checkpoint and of the run that resumes it ---

struct Difference {
  std::string key;
  Json was, is;  // null if a configuration has no such key
};

// Returns the differences of `is` against the older `was`. A key that only `is` has counts only if the user wrote it,
// because later versions add keys with defaults. If a component has a different name, only its written options count.
std::vector<Difference> differences(const Json& was, const Json& is, const std::vector<std::string>& ignored);

std::string to_string(const Difference& difference);  // "optimizer.lr: 0.1 -> 0.01"

// Returns the keys that may differ between the runs of one folder under train.resume: auto.
const std::vector<std::string>& resumable_keys();

// --- Trees that were parsed already, and all their mistakes ---

// Reads the tree of one run (core/config/reader.h). Strict: every mistake of docs/errors.md throws ConfigError with
// file, line, column, key and the nearest valid word.
RunConfig read_run_tree(const Node& root, const Catalogues& catalogues);

// Throws one error that lists all mistakes, if there are any; a single one is thrown as it is.
void refuse_all(const std::vector<ConfigError>& mistakes);

// Returns all mistakes of a tree. `read` reads it, and adds its mistakes to the list or throws one. It checks
// combinations of values only if all single values are valid. So it is called again without the wrong values, until it
// finds no new mistake. Mistakes that removed values may have caused are dropped.
using ReadTree = std::function<void(const Node&, std::vector<ConfigError>& mistakes)>;
std::vector<ConfigError> all_mistakes(Node root, const ReadTree& read);

// Reads trees that have most of their values in common: reads and checks each distinct top-level value once. Returns
// RunConfig::resolved of each. The result is null for a tree with a mistake and for a null pointer. Adds each mistake
// once.
std::vector<Json> read_run_trees(const std::vector<const Node*>& roots, const Catalogues& catalogues,
                                 std::vector<ConfigError>& mistakes);

}  // namespace convoy
