// The collectives of the mpi backend, as state machines over non-blocking sends and receives.
//
// Ours and not MPI's own non-blocking ones, because those add in MPI's types (no fp16, no bf16), count in int, take
// twice as long between two ranks as the blocking ones (measured on Open MPI 4.1), and promise no order of addition.
// Here every rank adds in the order of ranks: results are equal on all ranks and from run to run.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "backends/mpi_engine.h"

namespace convoy {

// A message of any length. Messages beyond 1 GiB are cut (MPI counts in int).
struct MpiMessage {
  bool send = false;
  void* data = nullptr;
  int64_t bytes = 0;
  int peer = 0;  // within the group
};

using MpiOperationPtr = std::shared_ptr<MpiOperation>;

// All messages at once, then `finish`. Latency: one message.
MpiOperationPtr mpi_exchange(std::shared_ptr<MpiGroup> group, std::vector<at::Tensor> tensors, int tag,
                             std::vector<MpiMessage> messages, std::function<void()> finish = {});

// Reduce-scatter by direct exchange, in segments: each rank gets its slice from all, adds segment by segment while the
// next ones arrive, and (gather) sends each sum to all at once. Sends 2(n-1)/n of the bytes (gather) or (n-1)/n.
struct MpiReduction {
  char* input = nullptr;        // all slices
  std::vector<int64_t> slices;  // where in `input`, in bytes, each rank's slice begins; n + 1 of them
  char* output = nullptr;       // this rank's slice; with gather it lies in `input`
  bool gather = false;
  at::ScalarType dtype = at::kFloat;
  ReduceOp op = ReduceOp::sum;
};
MpiOperationPtr mpi_reduce_scatter(std::shared_ptr<MpiGroup> group, std::vector<at::Tensor> tensors, int tag,
                                   const MpiReduction& reduction);

// Every rank sends the whole tensor to all and adds by itself: the latency of one message.
MpiOperationPtr mpi_small_all_reduce(std::shared_ptr<MpiGroup> group, const at::Tensor& tensor, int tag, ReduceOp op);

// Binomial tree, in segments.
MpiOperationPtr mpi_broadcast(std::shared_ptr<MpiGroup> group, std::vector<at::Tensor> tensors, int tag, char* data,
                              int64_t bytes, int root);

// Dissemination (Hensgen, Finkel, Manber 1988): ceil(log2 n) rounds.
MpiOperationPtr mpi_barrier(std::shared_ptr<MpiGroup> group, int tag);

// Tags: group, number of the operation within the group, and which of up to four streams. The number wraps around, long
// after the operation that had it before is over.
int mpi_tag(const MpiGroup& group, int64_t number);  // tag + 1: a second stream of the same operation
int mpi_transfer_tag(const MpiGroup& group);         // sends and receives pair by order

}  // namespace convoy
