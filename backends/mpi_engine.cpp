// MPI's life in a process, and the progress of its operations.
#include "backends/mpi_engine.h"

#include <c10/core/DeviceGuard.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>

#include "backends/mpi_cuda.h"
#include "core/log.h"

namespace convoy {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr auto finalize_patience = std::chrono::seconds(5);
constexpr int largest_tag = 0x7fffffff;

}  // namespace

void check_mpi(int code, const char* what, int peer) {
  if (code == MPI_SUCCESS) return;
  int kind = MPI_ERR_OTHER, length = 0;
  char text[MPI_MAX_ERROR_STRING] = "";
  MPI_Error_class(code, &kind);
  MPI_Error_string(code, text, &length);
  if (kind == MPI_ERR_TRUNCATE) {
    throw CommError(Failure::disagreement, peer, str("rank ", peer, " sent more than was expected of it (", what, ")"));
  }
  throw CommError(Failure::peer_lost, peer, str("MPI: ", what, ": ", text));
}

void check_mpi_length(const MPI_Status& status, int expected_bytes, int peer) {
  int got = 0;
  MPI_Get_count(&status, MPI_BYTE, &got);
  if (got == expected_bytes) return;
  throw CommError(Failure::disagreement, peer,
                  str("rank ", peer, " sent ", got, " bytes where ", expected_bytes,
                      " were expected: the ranks called different things"));
}

std::string nothing_from(const std::vector<int>& ranks) {
  std::vector<std::string> names;
  for (int rank : ranks) names.push_back(std::to_string(rank));
  if (names.empty()) return "";
  return str(names.size() == 1 ? "nothing from rank " : "nothing from ranks ", join(names, ", "));
}

void MpiOperation::check() const {
  if (error_) std::rethrow_exception(error_);
}

MpiEngine::MpiEngine() {
  int already = 0, finalized = 0;
  MPI_Initialized(&already);
  MPI_Finalized(&finalized);
  if (finalized)
    throw Error(Failure::config, "backend mpi: MPI has been finalized in this process and cannot start again");
  int level = MPI_THREAD_SINGLE;
  if (already) {
    MPI_Query_thread(&level);
  } else {
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
    initialised_here_ = true;
  }
  if (level < MPI_THREAD_SERIALIZED) {
    throw Error(Failure::config, "backend mpi: this MPI was built without threads (MPI_THREAD_SERIALIZED is needed)");
  }
  MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
  takes_cuda_ = mpi_takes_cuda();
  int* bound = nullptr;
  int there = 0;
  MPI_Comm_get_attr(comm_, MPI_TAG_UB, &bound, &there);
  if (!there || *bound < largest_tag) {
    throw Error(Failure::config, str("backend mpi: this MPI's tags end at ", there ? *bound : 0, ", and ", largest_tag,
                                     " are needed; Open MPI with shared memory or TCP has them"));
  }
  background_ = std::thread([this] { run_background(); });
}

MpiEngine::~MpiEngine() {
  {
    std::lock_guard lock(sleep_mutex_);
    stop_ = true;
    sleep_.notify_all();
  }
  background_.join();
  finalize();
}

void MpiEngine::finalize() {
  if (!initialised_here_ || broken_ || std::uncaught_exceptions() > 0) return;
  // Peers that have died or failed do not come, and MPI_Finalize itself would wait for them for ever.
  MPI_Request request = MPI_REQUEST_NULL;
  if (MPI_Ibarrier(comm_, &request) != MPI_SUCCESS) return;
  auto deadline = Clock::now() + finalize_patience;
  for (int done = 0; !done;) {
    if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || broken_) return;
    if (Clock::now() > deadline) {
      log::warning("backend mpi: not all ranks came to the end; MPI_Finalize is left out");
      return;
    }
    if (!done) sched_yield();
  }
  MPI_Comm_free(&comm_);
  MPI_Finalize();
}

std::shared_ptr<MpiGroup> MpiEngine::world(Clock::time_point deadline) {
  int mine = reserve_id(), agreed = 0;
  MPI_Request request = MPI_REQUEST_NULL;
  std::unique_lock lock(mutex_);
  check_mpi(MPI_Iallreduce(&mine, &agreed, 1, MPI_INT, MPI_MAX, comm_, &request), "meeting of all ranks");
  for (int done = 0; !done;) {
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "meeting of all ranks");
    if (!done && (broken_ || Clock::now() > deadline)) {
      broken_ = true;
      throw CommError(Failure::rendezvous, -1,
                      str("rank ", rank_, " of ", size_, " (mpi): not all ranks came to the start"));
    }
    if (!done) sched_yield();
  }
  lock.unlock();
  know_id(agreed);
  auto group = std::make_shared<MpiGroup>();
  group->comm = comm_;
  group->rank = rank_;
  group->id = agreed;
  for (int i = 0; i < size_; ++i) group->world.push_back(i);
  return group;
}

int MpiEngine::reserve_id() { return next_id_++; }

void MpiEngine::know_id(int id) {
  int next = next_id_;
  while (next <= id && !next_id_.compare_exchange_weak(next, id + 1)) {
  }
}

bool MpiEngine::step(MpiOperation& operation, bool& moved) {
  c10::OptionalDeviceGuard guard;  // whichever thread this is, MPI works in the context of the memory that it is given
  if (!operation.tensors_.empty() && !operation.tensors_.front().is_cpu())
    guard.reset_device(operation.tensors_.front().device());
  try {
    if (!operation.advance(moved)) return false;
    operation.tensors_.clear();
  } catch (const std::exception&) {
    operation.error_ = std::current_exception();
  }
  operation.over_.store(true, std::memory_order_release);
  return true;
}

void MpiEngine::start(const std::shared_ptr<MpiOperation>& operation) {
  std::lock_guard lock(mutex_);
  bool moved = false;
  if (step(*operation, moved)) {
    if (operation->error_) abandoned_.push_back(operation);
    return;
  }
  active_.push_back(operation);
  ++under_way_;
  if (asleep_) {
    std::lock_guard sleep_lock(sleep_mutex_);
    sleep_.notify_one();
  }
}

bool MpiEngine::pass() {
  bool moved = false;
  size_t kept = 0;
  for (size_t i = 0; i < active_.size(); ++i) {
    auto& operation = active_[i];
    if (!step(*operation, moved)) {
      if (kept != i) active_[kept] = std::move(operation);
      ++kept;
      continue;
    }
    moved = true;
    --under_way_;
    if (operation->error_) abandoned_.push_back(std::move(operation));
  }
  active_.resize(kept);
  return moved;
}

bool MpiEngine::poll(const MpiOperation& operation) {
  if (operation.over() || operation.group().failed) return true;
  if (std::unique_lock lock(mutex_, std::try_to_lock); lock) pass();
  return operation.over() || operation.group().failed;
}

bool MpiEngine::wait_until(const MpiOperation& operation, Clock::time_point deadline) {
  struct Count {
    explicit Count(std::atomic<int>& n) : n_(n) { ++n_; }
    ~Count() { --n_; }
    std::atomic<int>& n_;
  } count(waiters_);
  auto last = Clock::now();
  while (!operation.over() && !operation.group().failed) {
    bool moved = false;
    if (std::unique_lock lock(mutex_, std::try_to_lock); lock) moved = pass();
    if (moved) {
      last = Clock::now();
      continue;
    }
    auto now = Clock::now();
    if (now > deadline) return operation.over();
    // Ranks may share a core, and a peer may be computing for long: give way first, then nap.
    if (now - last > milliseconds(20)) {
      std::this_thread::sleep_for(microseconds(now - last > milliseconds(200) ? 200 : 20));
    } else if (now - last > microseconds(20)) {
      sched_yield();
    }
  }
  return true;
}

std::string MpiEngine::missing(const MpiOperation& operation) {
  std::lock_guard lock(mutex_);
  return operation.over() ? "" : operation.missing();
}

void MpiEngine::fail(MpiGroup& group, const std::string& reason) {
  {
    std::lock_guard lock(group.mutex);
    if (group.failed) return;
    group.reason = reason;
    group.failed = true;
  }
  std::lock_guard lock(mutex_);
  auto first = std::stable_partition(active_.begin(), active_.end(),
                                     [&](const auto& operation) { return &operation->group() != &group; });
  for (auto it = first; it != active_.end(); ++it) {
    abandoned_.push_back(std::move(*it));
    --under_way_;
  }
  active_.erase(first, active_.end());
}

void MpiEngine::run_background() {
  prctl(PR_SET_NAME, "convoy-mpi");
  prctl(PR_SET_TIMERSLACK, 1000UL);
  constexpr auto short_nap = microseconds(50), long_nap = microseconds(500);
  auto nap = short_nap;
  auto last_use = Clock::now();
  std::unique_lock lock(sleep_mutex_);
  while (!stop_) {
    if (under_way_ == 0) {
      // Waking costs the one who issues an operation, so between steps this thread looks by itself now and then.
      if (Clock::now() - last_use > milliseconds(50)) {
        asleep_ = true;
        if (under_way_ == 0) sleep_.wait(lock, [this] { return stop_ || under_way_ > 0; });
        asleep_ = false;
        last_use = Clock::now();
      } else {
        sleep_.wait_for(lock, long_nap);
      }
      nap = short_nap;
      continue;
    }
    last_use = Clock::now();
    if (waiters_ > 0) {
      sleep_.wait_for(lock, long_nap);
      continue;
    }
    lock.unlock();
    bool moved = false;
    if (std::unique_lock engine(mutex_, std::try_to_lock); engine) moved = pass();
    lock.lock();
    if (moved) {
      nap = short_nap;
      lock.unlock();
      sched_yield();
      lock.lock();
      continue;
    }
    sleep_.wait_for(lock, nap);
    nap = std::min(long_nap, nap + nap / 2);
  }
}

}  // namespace convoy
