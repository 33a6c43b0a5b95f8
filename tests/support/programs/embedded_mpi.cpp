// An MPI program with jobs on two of its communicators, one after the other, and MPI messages between steps.
#include <convoy/mpi.h>

#include <cstdio>
#include <stdexcept>

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

}  // namespace

int main(int argc, char** argv) {
  int level = 0, rank = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  add(MPI_COMM_WORLD);
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
  add(half);
  MPI_Comm_free(&half);
  MPI_Finalize();
}
