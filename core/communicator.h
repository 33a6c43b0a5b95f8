// Communicator: an ordered group of ranks that exchange tensors. Strategies and the trainer exchange tensors only
// through it. Implementations are in backends/.
//
// Call order: all ranks of a group issue the same collectives in the same order. Point-to-point operations match by
// peer and order. `group` issues sends and receives together, so no order of peers can deadlock.
// Threads: any thread may issue operations. If several threads use one group, they keep the same order on all ranks.
// Any thread may wait for a Work.
// Ownership: a Work keeps its tensors until it completes. Before that, do not read or change an output, and do not
// change an input: backends read contiguous inputs in place. After `wait` a Work keeps no tensor.
// Strided and empty tensors are allowed everywhere (implementations copy strided ones).
// Devices: on the CPU, `wait` returns when the result is ready. On CUDA, `wait` makes the current stream wait for the
// result and does not block the host; a watcher thread then enforces the time limit.
// Errors: `wait` throws CommError: `peer_lost` (a peer is gone or called abort), `hang` (time limit reached; the
// message names the operation and the step), `disagreement` (the ranks called different collectives, if this was
// detected).
// A group of one rank works everywhere: collectives copy input to output.
#pragma once
#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace convoy {

enum class ReduceOp { sum, product, min, max };

// Arguments of every operation besides its tensors.
struct CallOptions {
  std::string name;                      // bucket or parameter; shown in stall reports: "rank 3 waits in bucket 2"
  std::chrono::milliseconds timeout{0};  // 0: the default of the communicator
};

class Work {
 public:
  virtual ~Work() = default;
  virtual void wait() = 0;  // idempotent; rethrows the same failure each time
  virtual bool done() = 0;  // never blocks; true also after a failure
};
using WorkPtr = std::shared_ptr<Work>;

// One half of a point-to-point exchange.
struct Transfer {
  enum class Kind { send, receive } kind;
  at::Tensor tensor;
  int peer = 0;  // rank within this group
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::string& backend() const = 0;
  virtual std::vector<at::DeviceType> devices() const = 0;  // tensors of other devices are staged
  // Statistics of this group and of all groups split from it.
  virtual int64_t bytes_sent() const = 0;       // payload that this rank has sent; computed by textbook formulas
  virtual double wait_seconds() const = 0;      // time of all threads in waits that blocked
  virtual double wait_cpu_seconds() const = 0;  // CPU time of these waits (spinning)

  // In place on every rank. bool: sum and max are "or", product and min are "and".
  virtual WorkPtr all_reduce(at::Tensor tensor, ReduceOp op, const CallOptions& call) = 0;
  // output: [size(), …shape of input].
  virtual WorkPtr all_gather(at::Tensor output, at::Tensor input, const CallOptions& call) = 0;
  // Gathers rows (dimension 0): rank r contributes counts[r] rows; output contains them in rank order. All ranks know
  // `counts`.
  virtual WorkPtr all_gather_v(at::Tensor output, at::Tensor input, const std::vector<int64_t>& counts,
                               const CallOptions& call) = 0;
  // Exchanges rows (dimension 0): the first input_counts[0] rows of `input` go to rank 0, the next input_counts[1] rows
  // to rank 1, and so on. `output` gets output_counts[r] rows from rank r, in rank order.
  virtual WorkPtr all_to_all_v(at::Tensor output, const std::vector<int64_t>& output_counts, at::Tensor input,
                               const std::vector<int64_t>& input_counts, const CallOptions& call) = 0;
  // input: [size(), …shape of output]. Rank r receives the reduction of input[r] over all ranks. Do not change `input`
  // before `wait` has returned: backends read it in place, and a peer may read it as long as the operation runs.
  virtual WorkPtr reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op, const CallOptions& call) = 0;
  virtual WorkPtr broadcast(at::Tensor tensor, int root, const CallOptions& call) = 0;
  virtual WorkPtr send(at::Tensor tensor, int peer, const CallOptions& call) = 0;
  virtual WorkPtr receive(at::Tensor tensor, int peer, const CallOptions& call) = 0;
  virtual WorkPtr group(const std::vector<Transfer>& transfers, const CallOptions& call) = 0;
  virtual WorkPtr barrier(const CallOptions& call) = 0;

  // Collective; blocks. Returns zeroed CPU memory shared by the group: [bytes] uint8. Returns an undefined tensor on
  // all ranks if the group has one rank or several hosts.
  // All ranks may use the same range of it as the output of an all_gather_v. Each rank then writes only its rows, or
  // none if its input is already in place, and all ranks see all rows after the operation. Synchronise before
  // overwriting: all ranks must have read.
  virtual at::Tensor common_memory(int64_t /*bytes*/, const CallOptions&) { return {}; }

  // Collective; blocks until the group exists. Ranks with equal color form a group, ordered by (key, rank).
  virtual std::shared_ptr<Communicator> split(int color, int key, const CallOptions& call) = 0;

  // Ends all waits of this group, here and on its peers, with CommError(peer_lost, reason). Never throws.
  virtual void abort(const std::string& reason) = 0;
};
using CommunicatorPtr = std::shared_ptr<Communicator>;

// Group of one rank: collectives copy input to output. Context::axis returns it for an axis that the mesh does not
// have, so callers never branch on the size of a group.
CommunicatorPtr make_single_communicator(const std::string& backend = "none");

}  // namespace convoy
