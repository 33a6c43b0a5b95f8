// MpiEngine: MPI in one process. Every MPI call is made under its lock, by the thread that advances the operations.
//
// Progress: as in every engine (progress.h). An operation is a small state machine over non-blocking sends and
// receives.
// Threads: thread-safe; needs MPI_THREAD_SERIALIZED.
// Life: the constructor calls MPI_Init, once per process, or duplicates an application's communicator; the application
// then starts and ends MPI. The destructor calls MPI_Finalize only if nothing failed and all ranks reach it in time:
// with a dead peer it would never return.
#pragma once
#include <mpi.h>
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "backends/communicator/progress.h"

namespace convoy {

// State that the operations of one group share.
struct MpiGroup : ProgressGroup {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;            // within the group
  std::vector<int> world;  // by rank of the group: its rank in `comm`
  int id = 0;              // part of every tag; unique among the groups of a rank

  int size() const { return int(world.size()); }
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
  // Throws Error(config) if MPI is already finalized, lacks thread support, or has too few tags.
  // `application`: Fortran handle of an application's communicator; none: calls MPI_Init.
  explicit MpiEngine(std::optional<int> application = std::nullopt);
  ~MpiEngine() override;

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Returns the group of all ranks; waits until all ranks call it. CommError(rendezvous) at the deadline.
  std::shared_ptr<MpiGroup> world(Clock::time_point deadline);
  bool takes_cuda() const { return takes_cuda_; }  // true if MPI accepts GPU pointers
  int reserve_id();                                // returns an id larger than all ids that this rank knows
  void observe_id(int id);

  void never_finalize() { broken_ = true; }

 private:
  void finalize();

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  bool initialised_here_ = false;
  bool of_application_ = false;
  bool takes_cuda_ = false;
  std::atomic<int> next_id_{0};
  std::atomic<bool> broken_{false};
};

// Throws CommError for an MPI error code: disagreement if a message was too long, else peer_lost.
void check_mpi(int code, const char* what, int peer = -1);
// Throws CommError(disagreement) if the message has another length than expected.
void check_mpi_length(const MPI_Status& status, int expected_bytes, int peer);

}  // namespace convoy
