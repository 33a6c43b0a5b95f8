// Reads and checks a file of several runs as a whole. It reports every mistake of every pipeline, with its source
// location, before anything starts.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/config/node.h"
#include "core/config/pipeline_texts.h"
#include "core/config/run_config.h"
#include "core/files/farm.h"
#include "launch/prepare/prepare.h"

namespace convoy {

// A file of several runs, as `convoy run` executes it.
struct FarmRun {
  RunArguments arguments;
  Variables variables;
  LaunchedAs as;
  std::string name;
  std::string strategy;  // for the summary
  Json resolved;         // the file with overrides and a flat grid; a rerun must equal it
  Farm farm;
  SourceLocation metric_mark;  // of strategy.metric
  double grace = 30;           // seconds from SIGTERM to SIGKILL on a request to stop
  double rendezvous = 300;     // time limit in seconds for the agents of other slots to join
  double heartbeat = 60;       // seconds without a heartbeat after which an agent is lost
  std::string address;         // launch.address; "": chosen
  std::vector<std::string> warnings;
  bool grows = false;  // pipelines wait in the inbox of the folder, although its farm may be done
  // All mistakes of the file; with any, nothing starts. refuse_all reports them together with those of check_requests.
  // A configuration with mistakes is null in its pipeline.
  std::vector<ConfigError> mistakes;
};

// Returns nothing if the tree describes one run. Throws ConfigError if the tree cannot be read.
std::optional<FarmRun> read_farm(const Node& root, const RunArguments& arguments, const Variables& variables,
                                 const LaunchedAs& as);
// Throws ConfigError if the file describes several runs or is for `convoy add`; for commands that take one run.
void refuse_several(const Node& root, const std::string& path);

// Reads a pipeline to add to a running farm: a map of name, config (a file, or the keys of a whole run) and queue
// options. Throws ConfigError, or Error(config) with one mistake per line of its message.
Pipeline read_pipeline(const std::string& path);
// The same as YAML for read_pipeline. It refers to no other file, so it may be moved.
std::string pipeline_yaml(const Pipeline& pipeline);

// Checks before the start that some pipeline reports strategy.metric, which sorts the leaderboard. Returns the mistake
// at `mark`, with the metrics that exist; nothing if one of the first different pipelines reports the metric, or if
// that is unknown. Starts `rank_program` once per different pipeline. Needs configurations without mistakes.
std::optional<ConfigError> metric_mistake(const Farm& farm, const SourceLocation& mark,
                                          const std::string& rank_program);

}  // namespace convoy
