// MpiEngine: MPI in one process. Every call of MPI is made under its lock, by whoever drives progress.
//
// Progress: an operation is a small state machine over non-blocking sends and receives. Whoever waits polls all
// operations of the process; a background thread polls, backing off, only while something is under way and nobody
// waits, so that communication overlaps with computing without stealing the rank's only core.
// Threads: thread-safe; needs MPI_THREAD_SERIALIZED.
// Life: MPI_Init when it is made, once per process; MPI_Finalize in the destructor, when nothing failed and all ranks
// come to it in time, and otherwise never (a finalize among dead peers would hang).
#pragma once
#include <mpi.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "backends/transport.h"

namespace convoy {

// What the operations of one group share.
struct MpiGroup {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;            // within the group
  std::vector<int> world;  // rank in `comm` of each member
  int id = 0;              // part of every tag; no two groups of a rank share one
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::string reason;

  int size() const { return static_cast<int>(world.size()); }
};

class MpiOperation {
 public:
  MpiOperation(std::shared_ptr<MpiGroup> group, std::vector<at::Tensor> tensors)
      : group_(std::move(group)), tensors_(std::move(tensors)) {}
  virtual ~MpiOperation() = default;

  bool over() const { return over_.load(std::memory_order_acquire); }
  const MpiGroup& group() const { return *group_; }
  void check() const;                       // after over(): throws what went wrong
  virtual std::string missing() const = 0;  // under the engine's lock

 protected:
  // Posts what can be posted, takes what has come. Sets `moved` when anything did; true when all is done.
  virtual bool advance(bool& moved) = 0;
  std::shared_ptr<MpiGroup> group_;

 private:
  friend class MpiEngine;
  std::vector<at::Tensor> tensors_;  // kept until the end
  std::exception_ptr error_;
  std::atomic<bool> over_{false};
};

class MpiEngine {
 public:
  // MPI_Init. Throws Error(config) when MPI cannot be had in this form.
  MpiEngine();
  ~MpiEngine();
  MpiEngine(const MpiEngine&) = delete;
  MpiEngine& operator=(const MpiEngine&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  // The group of all ranks; waits for all to call it, CommError(rendezvous) at the deadline.
  std::shared_ptr<MpiGroup> world(Clock::time_point deadline);
  bool takes_cuda() const { return takes_cuda_; }  // pointers to GPU memory
  int reserve_id();                                // no id that this rank knows is as large
  void know_id(int id);

  void start(const std::shared_ptr<MpiOperation>& operation);
  bool poll(const MpiOperation& operation);  // makes progress; true when it is over or its group failed
  bool wait_until(const MpiOperation& operation, Clock::time_point deadline);
  std::string missing(const MpiOperation& operation);
  void fail(MpiGroup& group, const std::string& reason);
  void never_finalize() { broken_ = true; }

 private:
  bool pass();  // polls every operation once, under the lock; true when anything moved
  bool step(MpiOperation& operation, bool& moved);
  void run_background();
  void finalize();

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  bool initialised_here_ = false;
  bool takes_cuda_ = false;
  std::atomic<int> next_id_{0};
  std::atomic<bool> broken_{false};

  std::mutex mutex_;
  std::vector<std::shared_ptr<MpiOperation>> active_;
  std::vector<std::shared_ptr<MpiOperation>> abandoned_;  // their memory may still be written to
  std::atomic<int> under_way_{0};
  std::atomic<int> waiters_{0};

  std::mutex sleep_mutex_;
  std::condition_variable sleep_;
  std::atomic<bool> asleep_{false};
  bool stop_ = false;
  std::thread background_;
};

// Throws CommError for an MPI error code: disagreement where a message was longer than expected, else peer_lost.
void check_mpi(int code, const char* what, int peer = -1);
// Throws CommError(disagreement) for a message of another length than expected.
void check_mpi_length(const MPI_Status& status, int expected_bytes, int peer);
// "nothing from rank 3", of ranks of a group; "" for none.
std::string nothing_from(const std::vector<int>& ranks);

}  // namespace convoy
