// The configuration of a run: typed, with every default filled in. Without LibTorch.
//
// The shape (keys, types, units, ranges, defaults, help) is described once, in run_config.cpp and in the catalogues;
// the fields below are only its typed view. `resolved` is the same as data: it is what the run folder keeps, what ranks
// are given, and what two runs are compared by.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/options.h"

namespace convoy {

// Every catalogue a build has, by kind ("model", "data", "optimizer", "schedule", "strategy", "backend", "loss",
// "transform"). Filled by the program that reads (launch/catalogues.cpp, tests): core knows none of the entries.
struct Catalogues {
  std::map<std::string, std::vector<Entry>> kinds;
  const Entry* find(const std::string& kind, const std::string& name) const;  // null when absent
  std::vector<std::string> names(const std::string& kind) const;
};

struct Component {
  std::string name;
  Options options;  // checked, with defaults: `name`, the component's own, and what all of its kind take
};

// "every": in steps or epochs, or never.
struct Interval {
  enum class Unit { never, steps, epochs } unit = Unit::never;
  int64_t every = 0;
};

struct BatchSize {
  int64_t rows = 0;
  bool per_rank = false;  // rows per data-parallel rank instead of over all
};

struct TrainConfig {
  int64_t epochs = 1;     // 0: as many as max_steps takes
  int64_t max_steps = 0;  // 0: by epochs alone
  BatchSize batch;
  Interval evaluate_every;
  Interval checkpoint_every;
  int64_t keep_last = 2;
  std::string resume = "auto";  // auto | never | path of a checkpoint or run folder
  int64_t log_every = 100;      // steps between metric lines
};

struct LaunchConfig {
  int64_t ranks = 0;               // 0: the strategy chooses
  int64_t cores_per_rank = 0;      // 0: auto
  int64_t threads = 0;             // intra-op threads per rank; 0: as many as its cores
  std::string bind = "core";       // none | core | numa | socket | list | keep | convoy
  std::vector<std::string> cores;  // bind list: of each rank of a host, "0-3" or "0+2"
  double grace = 30;               // G: TERM → KILL on a request to stop, seconds
  double failure_grace = 2;        // G after a failure
  double heartbeat = 60;           // H
  double collective = 600;         // C
  double rendezvous = 300;         // R
  std::string address;             // interface address for the control channel; "": chosen
  int64_t port = 0;                // of the control channel; 0: any free one
};

struct RunConfig {
  std::string name;
  uint64_t seed = 1;
  std::string device = "auto";      // auto | cpu | cuda
  std::string precision = "fp32";   // fp64 | fp32 | bf16 | fp16
  std::string randomness = "auto";  // auto | exact | fast
  Component model;  // name "plugin:<path>" where model.plugin is given, without a name, and not loaded yet
  Component data;
  Component loss;  // name "" : the model's own
  Component optimizer;
  Component strategy;
  std::string backend = "auto";
  TrainConfig train;
  LaunchConfig launch;
  std::string log_level = "info";
  std::vector<std::string> plugins;  // libraries that register further losses, data sets, transforms or models
  // All of the above as data, in the order of run_options(). Beside it the hidden key "marks" tells where each key was
  // written, so that a rank's complaint names file, line and column too. to_yaml and first_difference leave it out;
  // without_marks() gives what may be hashed or compared.
  Json resolved;
  std::vector<std::string> warnings;  // from reading, one line each; not part of resolved

  // Builds the typed view from resolved data (what a rank is given); no checks are repeated.
  static RunConfig from_resolved(const Json& resolved);
};

// The description of the whole file: top-level keys, their sections and components.
const std::vector<Option>& run_options();

struct ReadRequest {
  std::string path;                    // of the YAML file
  std::vector<std::string> overrides;  // "train.epochs=3", in order; later ones win
};
// Reads strictly: every mistake of docs/errors.md ends in ConfigError with file, line, column, key and the nearest valid.
RunConfig read_run_config(const ReadRequest& request, const Catalogues& catalogues);
// Checks resolved data again, with the catalogues as they are once plugins are loaded: what read_run_config had to take
// unseen (model.plugin's options, components that a plugin brings) gets types, ranges, defaults and errors of the same
// form. `plugin_model` names the catalogue entry for a model.plugin without a name.
RunConfig check_resolved(const Json& resolved, const Catalogues& catalogues, const std::string& plugin_model = "");

// Where `key` ("launch.ranks") was written, or the nearest section around it; for checks that come after reading.
Mark mark_of(const Json& resolved, const std::string& key);
Json without_marks(const Json& resolved);
// The resolved configuration as YAML text with the same meaning, one key a line, in the order of run_options().
std::string to_yaml(const Json& resolved);
// First key path in which two resolved configurations differ, leaving out `ignored` prefixes; "" when none.
std::string first_difference(const Json& a, const Json& b, const std::vector<std::string>& ignored);

}  // namespace convoy
