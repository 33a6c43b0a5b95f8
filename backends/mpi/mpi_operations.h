// The collectives of the mpi backend, as state machines over non-blocking sends and receives.
//
// They replace MPI's non-blocking collectives, which reduce only MPI's types (no fp16, no bf16), count in int and
// promise no order of summation. Between two ranks those also take twice as long as the blocking ones (measured on Open
// MPI 4.1). Here every rank sums in rank order, so results are equal on all ranks and from run to run.
#pragma once
#include <memory>
#include <vector>

#include "backends/mpi/mpi_engine.h"

namespace convoy {

// A message of any length. Messages beyond 1 GiB are split, because MPI counts in int.
struct MpiMessage {
  bool send = false;
  char* data = nullptr;
  int64_t bytes = 0;
  int peer = 0;  // rank within the group
};

using MpiOperationPtr = std::shared_ptr<MpiOperation>;

// Starts all messages at once. Latency: one message.
MpiOperationPtr mpi_exchange(std::shared_ptr<MpiGroup> group, std::vector<at::Tensor> tensors, int tag,
                             const std::vector<MpiMessage>& messages);

// Reduce-scatter by direct exchange, in segments. Each rank receives its shard from all ranks and sums one segment
// while the next arrive. With `gather` it sends each sum to all ranks at once. Sends (n-1)/n of the bytes; 2(n-1)/n
// with gather.
struct MpiReduction {
  char* input = nullptr;        // all shards
  std::vector<int64_t> shards;  // offsets in bytes of the shards in `input`; n + 1 of them
  char* output = nullptr;       // this rank's shard; with gather it is within `input`
  bool gather = false;
  at::ScalarType dtype = at::kFloat;
  ReduceOp op = ReduceOp::sum;
};
MpiOperationPtr mpi_reduce_scatter(std::shared_ptr<MpiGroup> group, std::vector<at::Tensor> tensors, int tag,
                                   const MpiReduction& reduction);

// Every rank sends the whole tensor to all ranks and sums all of them: the latency of one message.
MpiOperationPtr mpi_small_all_reduce(std::shared_ptr<MpiGroup> group, const at::Tensor& tensor, int tag, ReduceOp op);

// Binomial tree, in segments.
MpiOperationPtr mpi_broadcast(std::shared_ptr<MpiGroup> group, const at::Tensor& tensor, int tag, int root);

// Dissemination (Hensgen, Finkel, Manber 1988): ceil(log2 n) rounds.
MpiOperationPtr mpi_barrier(std::shared_ptr<MpiGroup> group, int tag);

// Tags encode the group, the number of the operation within the group, and one of up to four streams. The number wraps
// around long after the end of the operation with the same number.
int mpi_tag(const MpiGroup& group, int64_t number);  // tag + 1: a second stream of the same operation
int mpi_transfer_tag(const MpiGroup& group);         // the order of sends and receives pairs them

}  // namespace convoy
