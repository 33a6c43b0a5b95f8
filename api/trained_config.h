// Configuration of one Trained, checked like a file.
#pragma once
#include <optional>
#include <string>

#include "convoy/replicas.h"
#include "convoy/shards.h"
#include "core/config/run_config.h"

namespace convoy {

// Settings of the user: keys as in a file, without defaults.
struct TrainedSettings {
  std::string source;  // for messages: "ReplicaOptions"
  bool shards = false;
  bool continues = false;  // the job continues without lost ranks
  Json strategy;
  Json optimizer;  // fused optimizer, with `name`; null: a torch optimizer
  std::optional<double> clip_norm;
  std::string precision;  // "": precision of the parameters
};
TrainedSettings settings_of(const ReplicaOptions& options, const FusedOptimizer* fused);
TrainedSettings settings_of(const ShardOptions& options, const FusedOptimizer* fused);

// Returns `job` with precision, optimizer and strategy. `own_precision`: precision of the parameters, fp32 or fp64.
// ConfigError names the option and the nearest valid word.
RunConfig trained_config(const RunConfig& job, const TrainedSettings& settings, const std::string& own_precision);

}  // namespace convoy
