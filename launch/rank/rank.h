// The work of one rank process: its ranks as threads, from the job to the results.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/control/channel.h"
#include "core/plan.h"
#include "core/registry.h"
#include "strategies/catalogue.h"

namespace convoy {

// What a process is told over the channel (protocol::job).
struct Assignment {
  Job job;
  std::string folder;
  int attempt = 0;
  int process = 0;                  // index into job.processes
  RunConfig config;                 // of the job
  Json snapshots;                   // null, or what launch/rank/snapshots.h is asked for
  std::vector<std::string> faults;  // of --inject, as written
  Json bench = {};                  // null, or what launch/rank/bench.h is asked for, instead of training
  // The interface for data sockets: launch.address, loopback where the control channel is on it; "": the backend's own
  // choice, which may be an outer one.
  std::string data_address;
};
Assignment read_assignment(Channel& channel, int process, Timeout timeout);

// Everything by name: the folders' own and what plugins bring; plugin components are checked here.
Registry make_registry(RunConfig& config);

// Of the model that the configuration makes of its data set.
struct DescribedBlocks {
  Description model;
  std::string unmeasured;  // why activations are not known although they were asked for; "": they are
};
// With `activations` also what its blocks keep for backward and hand on, found by a step of shapes without values. A
// model that needs values runs for real where it is small.
DescribedBlocks describe_blocks(const RunConfig& config, const Registry& registry, bool activations);

// Trains, or does what it is asked for instead; returns the process's exit code. Failures have been told to the
// channel.
int run_ranks(const Assignment& assignment, const Registry& registry, std::shared_ptr<Channel> channel);

}  // namespace convoy
