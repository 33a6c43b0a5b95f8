// Transport: the interface that each backend implements. GroupCommunicator (group.h) implements everything else.
//
// A transport runs operations among the ranks of one group of at least two. The caller has checked all arguments:
// tensors are contiguous, flat and on a supported device; counts agree with sizes. Operations that only move data get
// bytes (uint8); reductions get any dtype but bool. GroupCommunicator handles groups of one, strided and empty tensors,
// staging between devices, names, time limits, abort and byte counts.
// Threads: operations start under the group's issue lock; one thread at a time waits for a PendingOperation.
// Ownership: the caller keeps every tensor alive until the PendingOperation is over, and then drops the
// PendingOperation.
// Failure: a PendingOperation throws CommError (peer_lost, disagreement); at a time limit `wait_until` returns false.
#pragma once
#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "backends/communicator/call.h"
#include "core/base/error.h"
#include "core/communicator.h"

namespace convoy {

using Clock = std::chrono::steady_clock;

// An operation that has started.
class PendingOperation {
 public:
  virtual ~PendingOperation() = default;
  virtual bool done() = 0;  // never blocks, may make progress; also true after a failure
  // True if wait_until(now) would return true at once. A waiting thread tries this before it reports and measures its
  // wait. May spin for some microseconds, about as long as the report takes.
  virtual bool soon() { return done(); }
  virtual bool wait_until(Clock::time_point deadline) = 0;  // false at the deadline; throws failures
  // Names the ranks that have not taken part, for the message of a time limit; "" if they are unknown.
  virtual std::string missing() { return ""; }
};
using PendingOperationPtr = std::unique_ptr<PendingOperation>;

// Bounds of the blocks of a flat tensor: block r is [offset[r], offset[r + 1]).
using Offsets = std::vector<int64_t>;

class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::vector<at::DeviceType> devices() const = 0;
  virtual std::vector<at::DeviceType> reduction_devices() const { return devices(); }  // devices for sums
  // True if every operation compares the calls of all ranks (Call::hash) before it touches a tensor.
  virtual bool compares_calls() const { return false; }

  virtual PendingOperationPtr all_reduce(const Call& call, at::Tensor tensor, ReduceOp op) = 0;
  // Block r of `output` is rank r's input.
  virtual PendingOperationPtr all_gather(const Call& call, at::Tensor output, const Offsets& bounds,
                                         at::Tensor input) = 0;
  virtual PendingOperationPtr all_to_all(const Call& call, at::Tensor output, const Offsets& output_bounds,
                                         at::Tensor input, const Offsets& input_bounds) = 0;
  // input has size() times as many elements as output.
  virtual PendingOperationPtr reduce_scatter(const Call& call, at::Tensor output, at::Tensor input, ReduceOp op) = 0;
  virtual PendingOperationPtr broadcast(const Call& call, at::Tensor tensor, int root) = 0;
  // The peer is never this rank itself.
  virtual PendingOperationPtr exchange(const Call& call, const std::vector<Transfer>& transfers) = 0;
  virtual PendingOperationPtr barrier(const Call& call) = 0;

  // First step of a split: every rank of this group proposes a number. The largest becomes `agreed`.
  virtual int64_t propose() { return 0; }
  // Second step: returns the group of `members`, at least two ranks of this group in the new order. Collective over
  // them. The label is unique within the job.
  virtual std::shared_ptr<Transport> split(const std::vector<int>& members, int rank, const std::string& label,
                                           int64_t agreed, std::chrono::milliseconds timeout) = 0;

  // Implements Communicator::common_memory. all_gather receives this memory unchanged as output.
  virtual at::Tensor common_memory(int64_t /*bytes*/, std::chrono::milliseconds /*timeout*/) { return {}; }

  // True if an operation must start within the call, on its thread: a CUDA graph records it.
  virtual bool must_begin_now() const { return false; }

  // Wakes all waiting threads. Every PendingOperation, old or new, then throws CommError(peer_lost, reason). Never
  // throws.
  virtual void fail(const std::string& reason) = 0;
};

}  // namespace convoy
