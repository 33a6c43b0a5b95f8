// Start and end of MPI in a process, and the progress of its operations.

#include "backends/mpi/mpi_engine.h"

#include <sched.h>

#include "backends/registry.h"
#include "core/base/log.h"

// Open MPI's extensions; other MPI libraries lack this header or this extension.
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

namespace convoy {
namespace {

constexpr auto finalize_limit = std::chrono::seconds(5);
constexpr int largest_tag = 0x7fffffff;

// True if the MPI library accepts GPU pointers: that depends on its build and its settings (Open MPI:
// --mca opal_cuda_support 0). Requires MPI_Init.
bool mpi_takes_cuda() {
#if defined(MPIX_CUDA_AWARE_SUPPORT)
  return MPIX_Query_cuda_support() == 1;
#else
  return false;
#endif
}

}  // namespace

void check_mpi(int code, const char* what, int peer) {
  if (code == MPI_SUCCESS) return;
  int kind = MPI_ERR_OTHER, length = 0;
  char text[MPI_MAX_ERROR_STRING] = "";
  MPI_Error_class(code, &kind);
  MPI_Error_string(code, text, &length);
  if (kind == MPI_ERR_TRUNCATE) {
    throw CommError(Failure::disagreement, peer, "rank ", peer, " sent more than was expected of it (", what, ")");
  }
  throw CommError(Failure::peer_lost, peer, "MPI: ", what, ": ", text);
}

void check_mpi_length(const MPI_Status& status, int expected_bytes, int peer) {
  int got = 0;
  MPI_Get_count(&status, MPI_BYTE, &got);
  if (got == expected_bytes) return;
  throw CommError(Failure::disagreement, peer, "rank ", peer, " sent ", got, " bytes where ", expected_bytes,
                  " were expected: the ranks called different operations");
}

MpiEngine::MpiEngine(std::optional<int> application)
    : ProgressEngine("convoy-mpi"), of_application_(application.has_value()) {
  int already = 0, finalized = 0;
  MPI_Initialized(&already);
  MPI_Finalized(&finalized);
  if (finalized)
    throw Error(Failure::config, "backend mpi: MPI has been finalized in this process and cannot start again");
  int level = MPI_THREAD_SINGLE;
  if (application && !already)
    throw Error(Failure::config, "MPI is not running; call MPI_Init_thread with MPI_THREAD_SERIALIZED before the job");
  if (already) {
    MPI_Query_thread(&level);
  } else {
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
    initialised_here_ = true;
  }
  if (level < MPI_THREAD_SERIALIZED) {
    throw Error(Failure::config, "backend mpi: ",
                application ? "the application started MPI without MPI_THREAD_SERIALIZED; call MPI_Init_thread with it"
                            : "this MPI was built without threads (MPI_THREAD_SERIALIZED is needed)");
  }
  MPI_Comm_dup(application ? MPI_Comm_f2c(*application) : MPI_COMM_WORLD, &comm_);
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
  takes_cuda_ = mpi_takes_cuda();
  int* bound = nullptr;
  int there = 0;
  // Only MPI_COMM_WORLD is guaranteed to have this attribute.
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &bound, &there);
  if (!there || *bound < largest_tag) {
    throw Error(Failure::config, "backend mpi: this MPI's tags end at ", there ? *bound : 0, ", but ", largest_tag,
                " are needed; Open MPI with shared memory or TCP has them");
  }
}

MpiEngine::~MpiEngine() {
  stop();
  finalize();
}

void MpiEngine::finalize() {
  if ((!initialised_here_ && !of_application_) || broken_ || std::uncaught_exceptions() > 0) return;
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized) return;
  // Dead or failed peers never call MPI_Finalize, so a barrier with a time limit comes first.
  MPI_Request request = MPI_REQUEST_NULL;
  if (MPI_Ibarrier(comm_, &request) != MPI_SUCCESS) return;
  auto deadline = Clock::now() + finalize_limit;
  for (int done = 0; !done;) {
    if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || broken_) return;
    if (Clock::now() > deadline) {
      log::warning("backend mpi: not all ranks reached the end in time; MPI_Finalize is skipped");
      return;
    }
    if (!done) sched_yield();
  }
  MPI_Comm_free(&comm_);
  if (initialised_here_) MPI_Finalize();
}

namespace {

// Waits for a request by polling, with a time limit.
void complete_in_time(MPI_Request& request, std::chrono::steady_clock::time_point deadline) {
  for (int done = 0; !done;) {
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "exchange before the job");
    if (!done && std::chrono::steady_clock::now() > deadline)
      throw CommError(Failure::rendezvous, -1,
                      "not all processes of the MPI communicator started the job in time "
                      "(launch.rendezvous)");
    if (!done) sched_yield();
  }
}

void require_running() {
  int running = 0, finalized = 0;
  MPI_Initialized(&running);
  MPI_Finalized(&finalized);
  if (!running || finalized)
    throw Error(Failure::config, finalized ? "MPI has been finalized; end the job before MPI_Finalize"
                                           : "MPI is not running; call MPI_Init_thread before the job");
}

}  // namespace

MpiRank mpi_rank(int fortran_communicator) {
  require_running();
  const MPI_Comm comm = MPI_Comm_f2c(fortran_communicator);
  MpiRank result;
  MPI_Comm_rank(comm, &result.rank);
  MPI_Comm_size(comm, &result.size);
  MPI_Comm here = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, result.rank, MPI_INFO_NULL, &here),
            "processes of this host");
  MPI_Comm_rank(here, &result.local_rank);
  MPI_Comm_size(here, &result.local_size);
  MPI_Comm_free(&here);
  return result;
}

std::vector<std::string> mpi_exchange_texts(int fortran_communicator, const std::string& text,
                                            std::chrono::milliseconds limit) {
  require_running();
  const MPI_Comm comm = MPI_Comm_f2c(fortran_communicator);
  const auto deadline = std::chrono::steady_clock::now() + limit;
  int size = 0;
  MPI_Comm_size(comm, &size);
  const int mine = static_cast<int>(text.size());
  std::vector<int> sizes(static_cast<size_t>(size)), offsets(static_cast<size_t>(size));
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Iallgather(&mine, 1, MPI_INT, sizes.data(), 1, MPI_INT, comm, &request), "exchange before the job");
  complete_in_time(request, deadline);
  int total = 0;
  for (size_t i = 0; i < sizes.size(); total += sizes[i++]) offsets[i] = total;
  std::string all(static_cast<size_t>(total), ' ');
  check_mpi(
      MPI_Iallgatherv(text.data(), mine, MPI_CHAR, all.data(), sizes.data(), offsets.data(), MPI_CHAR, comm, &request),
      "exchange before the job");
  complete_in_time(request, deadline);
  std::vector<std::string> texts;
  for (size_t i = 0; i < sizes.size(); ++i)
    texts.push_back(all.substr(static_cast<size_t>(offsets[i]), static_cast<size_t>(sizes[i])));
  return texts;
}

std::shared_ptr<MpiGroup> MpiEngine::world(Clock::time_point deadline) {
  int mine = reserve_id(), agreed = 0;
  MPI_Request request = MPI_REQUEST_NULL;
  std::unique_lock lock(mutex_);
  check_mpi(MPI_Iallreduce(&mine, &agreed, 1, MPI_INT, MPI_MAX, comm_, &request), "rendezvous of all ranks");
  for (int done = 0; !done;) {
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "rendezvous of all ranks");
    if (!done && (broken_ || Clock::now() > deadline)) {
      broken_ = true;
      throw CommError(Failure::rendezvous, -1, "rank ", rank_, " of ", size_, " (mpi): not all ranks joined");
    }
    if (!done) sched_yield();
  }
  lock.unlock();
  observe_id(agreed);
  auto group = std::make_shared<MpiGroup>();
  group->comm = comm_;
  group->rank = rank_;
  group->id = agreed;
  for (int i = 0; i < size_; ++i) group->world.push_back(i);
  return group;
}

int MpiEngine::reserve_id() { return next_id_++; }

void MpiEngine::observe_id(int id) {
  int next = next_id_;
  while (next <= id && !next_id_.compare_exchange_weak(next, id + 1)) {
  }
}

}  // namespace convoy
