// Job: this process as one rank of a job. It connects the ranks, numbers this rank, and reports how the rank ends.
// Every other class of the library needs a Job.
//
//   int main(int argc, char** argv) {
//     convoy::Job job(argc, argv);
//     …
//   }
//
// Call order: create it first in main(), once per process; objects that use it are destroyed before it.
// Threads: the thread that created it.
// Errors: CommError if a peer is gone or too slow; ConfigError and Error for mistakes in the settings.
// An exception that leaves main() ends the job. The failure names this rank and its step, and the exit code is that of
// the exception's kind (70 for any other exception). A process that ends while its Job still exists has failed too,
// whatever its exit code.
#pragma once
#include <ATen/core/Tensor.h>

#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/communicator.h"

namespace convoy {

class MpiCommunicator;  // convoy/mpi.h
class Run;              // convoy/run.h
class Trained;          // convoy/trained.h

// Names of axes and their degrees. The last one varies fastest with the rank.
using MeshAxes = std::vector<std::pair<std::string, int>>;

// Sum of a value and of its weight over ranks.
struct Sum {
  double value = 0;
  double weight = 0;
  double mean() const { return weight != 0 ? value / weight : std::numeric_limits<double>::quiet_NaN(); }
};

class Job {
 public:
  // Creates a supervised rank. `convoy run -- program arguments` or a YAML file with the key `program` starts it.
  // A program that is started without `convoy`, or by mpirun, srun or torchrun, has no supervisor yet. Then this
  // constructor replaces the process by the installed `convoy`, which starts the program again as its child. It looks
  // for `convoy` in the variable CONVOY, in the installation of this library and in PATH.
  // Does not return if the job cannot start: it prints the reason and ends the process with the exit code of the
  // failure.
  Job(int argc, char** argv);

  // Collective. Creates one rank on each MPI process of the communicator, and duplicates the communicator. Include
  // convoy/mpi.h.
  // The application calls MPI_Init_thread with at least MPI_THREAD_SERIALIZED before, and MPI_Finalize after the
  // destruction. Other MPI calls of the program must not run at the same time as those of the job.
  // There is no supervisor: nothing is restarted, and a rank that fails ends the waits of the others.
  // `settings` are values of `convoy run --set`, such as "seed=3" or "launch.collective=60".
  explicit Job(const MpiCommunicator& communicator, const std::vector<std::string>& settings = {});
  // Does the same with a Fortran handle (MPI_Comm_c2f).
  static Job over_mpi(int fortran_communicator, const std::vector<std::string>& settings = {});

  // Creates one process with one rank, without a supervisor.
  static Job embedded(const std::vector<std::string>& settings = {});

  Job(Job&&) noexcept;
  Job& operator=(Job&&) = delete;
  // Calls finish(), unless an exception is leaving the scope: then the rank has failed. A supervised process whose
  // finish() fails ends here with the exit code of the failure.
  ~Job();

  // Waits for all ranks and reports the end of this one. Only destruction is allowed afterwards.
  void finish();

  // With launch.min_ranks both may change between two calls of the body of Run::each_batch (convoy/run.h).
  int rank() const;
  int size() const;
  int local_rank() const;  // number among the ranks of this host
  c10::Device device() const;
  const std::vector<std::string>& arguments() const;  // arguments of the program, its name first

  // Returns the group of all ranks.
  CommunicatorPtr world() const;
  // Collective. Returns this rank's group along each axis: the ranks that differ from it in that coordinate only. The
  // product of the degrees is size(). Replicas and Shards use the axis "data"; without a mesh that axis has all ranks.
  std::map<std::string, CommunicatorPtr> mesh(const MeshAxes& axes);

  // Collective. Sums a value and its weight over all ranks.
  Sum sum(double value, double weight = 1) const;
  Sum sum(const at::Tensor& value, double weight = 1) const;

  // Collective. Loads the newest complete checkpoint into `trained`, if there is one; see convoy/run.h.
  Run resume(const std::string& folder, Trained& trained);

  // Internal: api/job_impl.h.
  struct Impl;
  Impl& impl() const { return *impl_; }
  explicit Job(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace convoy
