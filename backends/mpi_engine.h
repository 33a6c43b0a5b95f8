// MpiEngine: MPI in one process. Every call of MPI is made under its lock, by whoever drives progress.
//
// Progress: as any engine's (progress.h); an operation is a small state machine over non-blocking sends and receives.
// Threads: thread-safe; needs MPI_THREAD_SERIALIZED.
// Life: MPI_Init when it is made, once per process; MPI_Finalize in the destructor, when nothing failed and all ranks
// come to it in time, and otherwise never (a finalize among dead peers would hang).
#pragma once
#include <mpi.h>

#include <atomic>
#include <memory>
#include <vector>

#include "backends/progress.h"

namespace convoy {

// What the operations of one group share.
struct MpiGroup : ProgressGroup {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;            // within the group
  std::vector<int> world;  // rank in `comm` of each member
  int id = 0;              // part of every tag; no two groups of a rank share one

  int size() const { return static_cast<int>(world.size()); }
};

class MpiOperation : public ProgressOperation {
 public:
  MpiOperation(const std::shared_ptr<MpiGroup>& group, std::vector<at::Tensor> tensors)
      : ProgressOperation(group, std::move(tensors)), group_(group) {}

 protected:
  std::shared_ptr<MpiGroup> group_;
};

class MpiEngine final : public ProgressEngine {
 public:
  // MPI_Init. Throws Error(config) when MPI cannot be had in this form.
  MpiEngine();
  ~MpiEngine() override;

  int rank() const { return rank_; }
  int size() const { return size_; }
  // The group of all ranks; waits for all to call it, CommError(rendezvous) at the deadline.
  std::shared_ptr<MpiGroup> world(Clock::time_point deadline);
  bool takes_cuda() const { return takes_cuda_; }  // pointers to GPU memory
  int reserve_id();                                // no id that this rank knows is as large
  void know_id(int id);

  void never_finalize() { broken_ = true; }

 private:
  void finalize();

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  bool initialised_here_ = false;
  bool takes_cuda_ = false;
  std::atomic<int> next_id_{0};
  std::atomic<bool> broken_{false};
};

// Throws CommError for an MPI error code: disagreement where a message was longer than expected, else peer_lost.
void check_mpi(int code, const char* what, int peer = -1);
// Throws CommError(disagreement) for a message of another length than expected.
void check_mpi_length(const MPI_Status& status, int expected_bytes, int peer);

}  // namespace convoy
