// Transport: what one backend adds to the half that all backends share (GroupCommunicator, group.h).
//
// Role: operations among the ranks of one group of at least two. What arrives here is already checked: tensors are
// contiguous, lie on a device that the transport said it takes, and are flat; what is only moved comes as bytes (uint8),
// what is reduced in a dtype other than bool; counts agree with sizes. Groups of one, strided and empty tensors, staging
// between devices, names, time limits, abort and counting are the shared half's.
// Threads: operations are issued under the group's issue lock; a Pending is waited for in one thread at a time.
// Ownership: the caller keeps every tensor alive until the Pending is over, and drops the Pending then.
// Failure: a Pending throws CommError (peer_lost, disagreement); time limits are told by `wait_until` returning false.
#pragma once
#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "backends/call.h"
#include "core/communicator.h"
#include "core/error.h"

namespace convoy {

using Clock = std::chrono::steady_clock;

// One operation under way.
class Pending {
 public:
  virtual ~Pending() = default;
  virtual bool done() = 0;  // never blocks, may make progress; true also when it failed
  // Whether wait_until(now) will return true at once: what a waiter tries before it tells that it waits and measures how
  // long. May spin for some microseconds, about as long as telling takes.
  virtual bool soon() { return done(); }
  virtual bool wait_until(Clock::time_point deadline) = 0;  // false: not over by then; throws what went wrong
  // Who is known to be missing, for the message of a time limit; "" where that cannot be told.
  virtual std::string missing() { return ""; }
};
using PendingPtr = std::unique_ptr<Pending>;

// Parts of a flat tensor: part r begins at offset[r] and ends at offset[r + 1].
using Offsets = std::vector<int64_t>;

class Transport {
 public:
  virtual ~Transport() = default;
  virtual Capabilities capabilities() const = 0;
  // Every operation compares the calls of all ranks (Call::hash) before it touches a tensor.
  virtual bool compares_calls() const { return false; }

  virtual PendingPtr all_reduce(const Call& call, at::Tensor tensor, ReduceOp op) = 0;
  // Part r of output is rank r's input.
  virtual PendingPtr all_gather(const Call& call, at::Tensor output, const Offsets& parts, at::Tensor input) = 0;
  virtual PendingPtr all_to_all(const Call& call, at::Tensor output, const Offsets& output_parts, at::Tensor input,
                                const Offsets& input_parts) = 0;
  // input is size() times as long as output.
  virtual PendingPtr reduce_scatter(const Call& call, at::Tensor output, at::Tensor input, ReduceOp op) = 0;
  virtual PendingPtr broadcast(const Call& call, at::Tensor tensor, int root) = 0;
  // Never with this rank itself as peer.
  virtual PendingPtr exchange(const Call& call, const std::vector<Transfer>& transfers) = 0;
  virtual PendingPtr barrier(const Call& call) = 0;

  // A split has two steps: every rank of this group proposes a number, and the largest is what all get as `agreed`.
  virtual int64_t propose() { return 0; }
  // The group of `members` (ranks of this group, in the new order). Called by every rank of this group, by those in
  // groups of one too (they get null). No other group of the job has this label.
  virtual std::shared_ptr<Transport> split(const std::vector<int>& members, int rank, const std::string& label,
                                           int64_t agreed, std::chrono::milliseconds timeout) = 0;

  // Communicator::common_memory. Its outputs are given to all_gather as they are.
  virtual at::Tensor common_memory(int64_t /*bytes*/, std::chrono::milliseconds /*timeout*/) { return {}; }

  // Whether an operation has to be begun in the call itself, by its thread: where what is issued now is being recorded.
  virtual bool must_begin_now() const { return false; }

  // Wakes whoever waits here; every Pending, old and new, then throws CommError(peer_lost, reason). Never throws.
  virtual void fail(const std::string& reason) = 0;
};

}  // namespace convoy
