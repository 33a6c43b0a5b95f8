// Context: all that a rank knows of its surroundings. One per rank, passed in; there are no mutable globals.
// Threads: const after construction; the objects it points to say their own rules.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "core/config/run_config.h"
#include "core/control/channel.h"
#include "core/control/state_file.h"
#include "core/device_graph.h"
#include "core/mesh.h"

namespace convoy {

struct Context {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among the ranks of this host
  std::string host;
  std::vector<at::Device> devices{at::Device(at::kCPU)};  // of this rank; the first is its main one
  std::vector<std::vector<int>> device_cores;  // processing units of each device; none, or empty: not bound to any
  int threads = 1;                             // intra-op threads of this rank
  int process_ranks = 1;                       // ranks that are threads of this process
  Mesh mesh;
  CommunicatorPtr world;                        // over all ranks of the job
  std::map<std::string, CommunicatorPtr> axes;  // by axis name, this rank's group
  std::shared_ptr<Channel> channel;
  std::string folder;           // the run folder
  int64_t steps_per_epoch = 0;  // known once the data set is: schedules need them
  int64_t total_steps = 0;
  std::shared_ptr<StateFile> state;  // where this rank is, for whoever outlives it; never null
  RunConfig config;
  // Adds to what the summary says of this rank (an object); replaces keys that it has. Never null.
  std::function<void(const Json&)> tell = [](const Json&) {};
  // Of a device of this rank; null, or gives null, where it records none.
  std::function<std::unique_ptr<DeviceGraph>(at::Device)> make_graph = nullptr;

  // This rank's group along an axis; a group of one for an axis that the mesh does not have.
  CommunicatorPtr axis(const std::string& name) const;
};

}  // namespace convoy
