// A file of several runs, read and checked as a whole: every mistake of every pipeline is told at once, each with the place
// in its own file, before anything starts.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/config/node.h"
#include "core/config/run_config.h"
#include "core/farm.h"
#include "launch/prepare.h"

namespace convoy {

// What `convoy run` does with such a file.
struct FarmRun {
  RunArguments arguments;
  Variables variables;
  LaunchedAs as;
  std::string name;
  std::string strategy;  // for the summary
  Json resolved;         // the file as it was written, overrides included; what two runs are compared by
  Farm farm;
  Mark metric_mark;         // of strategy.metric
  double grace = 30;        // seconds from TERM to KILL on a request to stop
  double rendezvous = 300;  // seconds for the agents of other slots to join
  double heartbeat = 60;    // seconds of silence after which one of them is lost
  std::string address;      // launch.address; "": chosen
  std::vector<std::string> warnings;
  bool grows = false;  // pipelines wait in the inbox of the folder, which may be done
  // All that is wrong with the file. Then nothing may start; but they are told (refuse_all) together with what the machines
  // have against it. A pipeline with mistakes in its configuration has none (null).
  std::vector<ConfigError> mistakes;
};

// Nothing where the file describes one run. Throws ConfigError where it cannot be read at all.
std::optional<FarmRun> read_farm(const RunArguments& arguments, const Variables& variables, const LaunchedAs& as);
// The same of a tree; `arguments` say what was typed.
std::optional<FarmRun> read_farm(const Node& root, const RunArguments& arguments, const Variables& variables,
                                 const LaunchedAs& as);
// For what takes one run alone: throws ConfigError where the file describes several, or is for `convoy add`.
void refuse_several(const RunArguments& arguments);
// Of a run whose strategy planned `farm` (Plan::farm).
FarmRun farm_run(const PreparedRun& run, const Farm& farm);

// A further pipeline for a farm that runs: a map of name, config (a file, or a whole run's keys) and queue options. Checked
// as strictly: throws ConfigError, or Error(config) whose message has a mistake a line.
Pipeline read_pipeline(const std::string& path);
// The same as YAML that read_pipeline reads back, wherever it stands: nothing in it is another file.
std::string pipeline_yaml(const Pipeline& pipeline);

// Throws Error(config) with all of them, one a line and each once; nothing for none.
void refuse_all(const std::vector<ConfigError>& mistakes);

}  // namespace convoy
