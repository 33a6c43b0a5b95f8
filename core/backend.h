// BackendRequest: inputs of a backend for the world group of a rank.
#pragma once
#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/control/channel.h"
#include "core/rank_state/position.h"
#include "core/rank_state/time_breakdown.h"

namespace convoy {

// Collective check: ranks compare name, operation, shape, dtype, reduction, root and counts over the control channel.
// The first calls of each group are checked before the transport gets them. Later calls are checked shortly afterwards.
enum class CollectiveChecks { none, sampled, all };

struct Context;

// Inputs of a backend for the world group.
struct BackendRequest {
  int rank = 0;
  int size = 1;
  at::Device device{at::kCPU};
  std::shared_ptr<Channel> channel;              // for rendezvous and abort
  std::string job;                               // unique per attempt: prefix of keys
  std::string host;                              // name of this rank's host; ranks of one host may share memory
  std::string address;                           // numeric address of this host's interface for data; "": chosen
  std::chrono::milliseconds timeout{600000};     // time limit of one operation (launch.collective)
  std::chrono::milliseconds rendezvous{300000};  // time limit of the rendezvous (launch.rendezvous)
  // Called with the name of the collective when a wait begins to block, and with "" when it ends. Called from any
  // thread; must not block.
  std::function<void(const char* name)> waiting;
  std::shared_ptr<CollectiveRecords> notes;        // receives every collective; may be null
  std::shared_ptr<TimeBreakdown> times = nullptr;  // counts the time of communication; may be null
  CollectiveChecks checks = CollectiveChecks::sampled;
  // The job may continue without a peer that dies (launch.min_ranks): the rendezvous ends at once when the job ends.
  bool abandons_rendezvous = false;
  // Fortran handle of an application's communicator with the same ranks. The backend mpi duplicates it. Without a
  // value, convoy initialises MPI.
  std::optional<int> mpi_communicator = std::nullopt;
  // Called in the waiting thread when half of the time limit has passed, and again at the limit. The second call may
  // block while the job finds the cause of the stall; it throws that cause. If it returns, the wait throws its own
  // error. Null: the backend reports by itself.
  std::function<void(const SlowCollective&)> slow_collective;
};

// Returns the inputs that follow from the context: its host, device, channel and times, and the limits and checks of
// section `launch`.
BackendRequest backend_request(const Context& context);

}  // namespace convoy
