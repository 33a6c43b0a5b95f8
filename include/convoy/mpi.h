// Creates a Job over an MPI communicator of the application: convoy::Job job(communicator).
#pragma once
#include <mpi.h>

#include <convoy/job.h>

namespace convoy {

class MpiCommunicator {
 public:
  MpiCommunicator(MPI_Comm communicator) : fortran_handle_(MPI_Comm_c2f(communicator)) {}
  int fortran_handle() const { return fortran_handle_; }

 private:
  int fortran_handle_;
};

inline Job::Job(const MpiCommunicator& communicator, const std::vector<std::string>& settings)
    : Job(over_mpi(communicator.fortran_handle(), settings)) {}

}  // namespace convoy
