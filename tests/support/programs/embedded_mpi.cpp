// An MPI program with jobs on two of its communicators, one after the other, and MPI messages between steps.
//
//   embedded_mpi [throw|hang]: the last rank throws or sleeps in step 2 of its first job
#include <convoy/mpi.h>

#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>

#include "api/job_impl.h"

namespace {

// Adds the ranks of a communicator by a job on it, and by MPI.
void add(MPI_Comm comm) {
  convoy::Job job(comm, {"launch.rendezvous=30", "launch.collective=30"});
  int rank = 0, size = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  if (job.rank() != rank || job.size() != size) throw std::runtime_error("the job has other ranks than MPI");
  for (int step = 0; step < 3; ++step) {
    const double sum = job.sum(rank).value;
    int own = rank, all = 0;
    MPI_Allreduce(&own, &all, 1, MPI_INT, MPI_SUM, comm);
    if (sum != all) throw std::runtime_error("the sums differ");
  }
  const auto groups = job.mesh({{"data", size}});
  std::printf("rank %d of %d: %d along data\n", rank, size, groups.at("data")->size());
}

// Does not end the job in order. Other ranks print the error that they get.
void fail(const std::string& action) {
  convoy::Job job(MPI_COMM_WORLD, {"launch.rendezvous=30", "launch.collective=4", "launch.heartbeat=4"});
  const auto steps = [&] {
    for (int step = 0; step < 3; ++step) {
      convoy::context_of(job).state->step(step);
      if (step == 2 && job.rank() == job.size() - 1) {
        if (action == "throw") throw std::runtime_error("the program broke");
        std::this_thread::sleep_for(std::chrono::hours(1));
      }
      job.sum(1);
    }
  };
  // Nothing in this rank catches its exception.
  if (action == "throw" && job.rank() == job.size() - 1) return [&]() noexcept { steps(); }();
  try {
    steps();
  } catch (const convoy::Error& error) {
    std::printf("rank %d: %s: %s\n", job.rank(), convoy::name_of(error.kind()), error.what());
    std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::seconds(2));  // the others print too
    MPI_Abort(MPI_COMM_WORLD, 7);
  }
}

}  // namespace

int main(int argc, char** argv) {
  int level = 0, rank = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (argc > 1) fail(argv[1]);
  add(MPI_COMM_WORLD);
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
  add(half);
  MPI_Comm_free(&half);
  MPI_Finalize();
}
