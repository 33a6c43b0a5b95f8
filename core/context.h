// Context: the run as one rank sees it. Each rank has one and passes it on; there are no mutable globals.
// Threads: const after construction; the headers of the objects that it points to have their rules.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/plan.h"
#include "core/communicator.h"
#include "core/config/run_config.h"
#include "core/control/channel.h"
#include "core/rank_state/state_file.h"
#include "core/rank_state/time_breakdown.h"

namespace convoy {

// DeviceGraph: operations of one device, recorded once and then launched as one unit (a CUDA graph). The kernels of a
// small model's step take longer to launch than to run; a graph needs one launch.
//
// The graph stores kernels with their addresses: every launch reads and writes the same tensors as the recording. Code
// on the host does not run again.
// Threads: the thread of the rank. Context::make_graph creates it.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  // Calls `work` once and records its operations; the device does not run them. Throws if an operation cannot be
  // recorded, such as a wait for the device. Then there is no graph, and the device works as before. Tensors created by
  // `work` keep their memory for the lifetime of this object.
  virtual void record(const std::function<void()>& work) = 0;
  // Enqueues the graph on the current stream; does not wait.
  virtual void launch() = 0;
};

struct Context {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // number among the ranks of this host
  int local_size = 1;  // ranks of this host
  std::string host;
  std::vector<at::Device> devices{at::Device(at::kCPU)};  // devices of this rank; the first is the main one
  std::vector<std::vector<int>> device_cores;             // hardware threads of each device; empty: not bound
  int threads = 1;                                        // intra-op threads of this rank
  int process_ranks = 1;                                  // ranks that are threads of this process
  Mesh mesh;
  CommunicatorPtr world;                        // all ranks of the job
  std::map<std::string, CommunicatorPtr> axes;  // group of this rank by axis name
  std::shared_ptr<Channel> channel;
  std::string folder;           // the run folder
  int64_t steps_per_epoch = 0;  // known once the data set is open; schedules need it
  int64_t total_steps = 0;
  std::shared_ptr<StateFile> state;  // position of this rank, readable after its death; never null
  std::shared_ptr<TimeBreakdown> times =
      std::make_shared<TimeBreakdown>();  // breakdown of the rank's thread; never null
  RunConfig config;
  // Merges an object into this rank's part of the summary; existing keys are replaced. Never null.
  std::function<void(const Json&)> add_to_summary = [](const Json&) {};
  // Returns a recorder for a device of this rank, or null if graphs are not recorded. May be null itself.
  std::function<std::unique_ptr<DeviceGraph>(at::Device)> make_graph = nullptr;

  // This rank's group along an axis. Returns a group of one rank for an axis that the mesh does not have.
  CommunicatorPtr axis(const std::string& name) const;
};

}  // namespace convoy
