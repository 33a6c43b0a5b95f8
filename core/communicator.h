// Communicator: an ordered group of ranks that exchange tensors.
//
// Role: the only way by which strategies and the trainer talk to other ranks about tensors. Implementations in backends/.
// Call order: every rank of the group issues the same collectives in the same order; point-to-point operations pair by
// (peer, order). `group` issues sends and receives together, so that neither order of peers can deadlock.
// Threads: operations may be issued from any thread; the issuing threads of one group agree on the order among
// themselves. A Work may be waited for in another thread than the one that issued it.
// Ownership: a Work keeps its tensors until it completes, and has dropped them when `wait` returns. Tensors must not be
// touched in between. Strided tensors are allowed everywhere (implementations copy), empty ones too.
// Devices: on the CPU, `wait` returns when the result is there. On CUDA it orders the current stream after the result
// and does not block the host; time limits are then the watcher's.
// Failure: `wait` throws CommError: `peer_lost` (a peer went away or abort was called), `hang` (time limit passed; the
// message holds name, operation and step), `disagreement` (the ranks called different things, where it can be known).
// Groups of one work everywhere: collectives copy input to output.
#pragma once
#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace convoy {

enum class ReduceOp { sum, product, min, max };

// What every operation carries beside its tensors.
struct CallOptions {
  std::string name;                      // bucket or parameter, for stalls: "rank 3 waits in bucket 2"
  std::chrono::milliseconds timeout{0};  // 0: the communicator's default
};

class Work {
 public:
  virtual ~Work() = default;
  virtual void wait() = 0;  // idempotent; rethrows the same failure each time
  virtual bool done() = 0;  // never blocks; true also when it failed
};
using WorkPtr = std::shared_ptr<Work>;

// One half of a point-to-point exchange.
struct Transfer {
  enum class Kind { send, receive } kind;
  at::Tensor tensor;
  int peer = 0;  // rank within this group
};

struct Capabilities {
  std::vector<at::DeviceType> devices;
  std::vector<at::ScalarType> reducible;  // dtypes that all_reduce and reduce_scatter take; moving takes every dtype
  bool device_aware = false;              // takes CUDA tensors without staging
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::string& backend() const = 0;
  virtual Capabilities capabilities() const = 0;
  // Figures of this group and of all that were split from it.
  virtual int64_t bytes_sent() const = 0;       // payload this rank has sent so far, by the algorithm's textbook count
  virtual double wait_seconds() const = 0;      // spent so far in waits that had to wait, all threads together
  virtual double wait_cpu_seconds() const = 0;  // processor time of those (spinning)

  // In place on every rank. bool: sum and max are "or", product and min are "and".
  virtual WorkPtr all_reduce(at::Tensor tensor, ReduceOp op, const CallOptions& call) = 0;
  // output: [size(), …shape of input].
  virtual WorkPtr all_gather(at::Tensor output, at::Tensor input, const CallOptions& call) = 0;
  // Rows of dimension 0: rank r gives counts[r] of them; output holds their sum, in order of ranks. Counts are known to all.
  virtual WorkPtr all_gather_v(at::Tensor output, at::Tensor input, const std::vector<int64_t>& counts,
                               const CallOptions& call) = 0;
  // Rows of dimension 0 of input go to ranks in order by input_counts; output_counts[r] rows come from rank r.
  virtual WorkPtr all_to_all_v(at::Tensor output, const std::vector<int64_t>& output_counts, at::Tensor input,
                               const std::vector<int64_t>& input_counts, const CallOptions& call) = 0;
  // input: [size(), …shape of output]; rank r receives the reduction of slice r.
  virtual WorkPtr reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op, const CallOptions& call) = 0;
  virtual WorkPtr broadcast(at::Tensor tensor, int root, const CallOptions& call) = 0;
  virtual WorkPtr send(at::Tensor tensor, int peer, const CallOptions& call) = 0;
  virtual WorkPtr receive(at::Tensor tensor, int peer, const CallOptions& call) = 0;
  virtual WorkPtr group(const std::vector<Transfer>& transfers, const CallOptions& call) = 0;
  virtual WorkPtr barrier(const CallOptions& call) = 0;

  // Memory of the CPU that all ranks of the group map: [bytes] uint8, zero at first, the same on all. Undefined, on all of them,
  // where there is no second rank, or they do not share a host. An all_gather_v whose output lies in it, on all ranks at the
  // same place, moves nothing that was written to its part there: it is there for all once the operation is over. Who writes
  // anew must know that all have read. Collective; blocks until it stands.
  virtual at::Tensor common_memory(int64_t /*bytes*/, const CallOptions&) { return {}; }

  // Collective: ranks of equal color form a group, ordered by (key, rank). Blocks until the group stands.
  virtual std::shared_ptr<Communicator> split(int color, int key, const CallOptions& call) = 0;

  // Wakes every waiter of this group here and on its peers with CommError(peer_lost, reason). Never throws.
  virtual void abort(const std::string& reason) = 0;
};
using CommunicatorPtr = std::shared_ptr<Communicator>;

}  // namespace convoy
