// Runs the ranks of one rank process as threads, from the rank assignment to the results.
#pragma once
#include <memory>
#include <string>

#include "core/base/plan.h"
#include "core/control/channel.h"
#include "core/registry.h"
#include "launch/process/process.h"
#include "strategies/plans/catalogue.h"

namespace convoy {

// The rank assignment of one rank process.
struct ProcessAssignment : RankAssignment {
  int process = 0;   // index into job.processes
  RunConfig config;  // of the job
  // Address for data sockets: launch.address, or loopback if the control channel uses it. "": the backend chooses and
  // may take an external interface.
  std::string data_address;
};
// Reads it from the control channel (protocol::job).
ProcessAssignment read_assignment(Channel& channel, int process, Timeout timeout);

// Creates the registry of built-in and plugin components; checks the options of plugin components.
Registry make_registry(RunConfig& config);

// ModelDescription of the model that the configuration creates for its data set.
struct DescribedBlocks {
  ModelDescription model;
  std::string unmeasured;  // why activations were not measured although requested; "" otherwise
};
// With `activations`, also measures saved activations and outputs of each block, by a step with fake tensors. A model
// that does not support them runs for real if it is small.
DescribedBlocks describe_blocks(const RunConfig& config, const Registry& registry, bool activations);

// Trains or runs the requested benchmark; returns the process's exit code. Failures have been reported over the
// channel.
int run_ranks(const ProcessAssignment& assignment, const Registry& registry, std::shared_ptr<Channel> channel);

}  // namespace convoy
