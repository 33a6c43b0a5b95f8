// Job: this process as one rank of a job. It connects the ranks, names this one's place among them, and reports how it
// ends. Every other class of the library takes it.
//
//   int main(int argc, char** argv) {
//     convoy::Job job(argc, argv);
//     …
//   }
//
// Call order: create it first in main(), once per process; objects that use it are destroyed before it.
// Threads: the thread that created it.
// Errors: CommError if a peer is gone or too slow, ConfigError and Error for mistakes in the settings. An exception
// that leaves main() ends the job: the failure names this rank and its step, and the exit code is that of its kind (70
// for any other exception). A process that ends while its Job still exists has failed too, whatever its exit code.
#pragma once
#include <ATen/core/Tensor.h>

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

// A figure summed over ranks.
struct Sum {
  double value = 0;
  double weight = 0;
  double mean() const { return value / weight; }  // NaN without weight
};

class Job {
 public:
  // A supervised rank. `convoy run -- program arguments` starts it, or a YAML file with the key `program`. If a program
  // is started by itself, or by mpirun, srun or torchrun, this constructor replaces it by the installed `convoy`, which
  // starts it again as its child. `convoy` is looked up in the variable CONVOY, in the installation of this library and
  // in PATH.
  // Does not return if the job cannot start: it prints the reason and ends the process with the exit code of its kind.
  Job(int argc, char** argv);

  // One rank on all MPI processes of the communicator, which is duplicated; collective. Include convoy/mpi.h. The
  // application calls MPI_Init_thread with at least MPI_THREAD_SERIALIZED before, and MPI_Finalize after the
  // destruction; MPI calls of its own must not run at the same time as those of the job. No supervisor: nothing is
  // restarted, and a rank that fails ends the waits of the others. `settings`: as of `convoy run --set`, such as
  // "seed=3" or "launch.collective=60".
  explicit Job(const MpiCommunicator& communicator, const std::vector<std::string>& settings = {});
  // The same with a Fortran handle (MPI_Comm_c2f).
  static Job over_mpi(int fortran_communicator, const std::vector<std::string>& settings = {});

  // One process with one rank, without a supervisor.
  static Job embedded(const std::vector<std::string>& settings = {});

  Job(Job&&) noexcept;
  Job& operator=(Job&&) = delete;
  // Calls finish(), unless an exception is leaving the scope: then the rank has failed. A supervised process whose
  // finish() fails ends here with the exit code of the failure.
  ~Job();

  // Waits for all ranks and reports the end of this one. Nothing but destruction is allowed afterwards.
  void finish();

  int rank() const;
  int size() const;
  int local_rank() const;  // among the ranks of this host
  c10::Device device() const;
  const std::vector<std::string>& arguments() const;  // arguments of the program, its name first

  // All ranks.
  CommunicatorPtr world() const;
  // Collective. This rank's group along each axis: the ranks that differ from it in that coordinate only. The degrees
  // multiply to size(). Replicas and Shards use the axis "data"; without a mesh it has all ranks.
  std::map<std::string, CommunicatorPtr> mesh(const MeshAxes& axes);

  // Collective. Adds a figure and its weight over all ranks.
  Sum sum(double value, double weight = 1) const;
  Sum sum(const at::Tensor& value, double weight = 1) const;

  // Collective. The state of `trained` from the newest complete checkpoint, or as it is; see convoy/run.h.
  Run resume(const std::string& folder, Trained& trained);

  // Internal: api/job_impl.h.
  struct Impl;
  Impl& impl() const { return *impl_; }
  explicit Job(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace convoy
