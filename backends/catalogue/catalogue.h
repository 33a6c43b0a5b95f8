// Communication backends, without LibTorch: names, options, requirements, and availability in this build.
#pragma once
#include <string>
#include <vector>

#include "core/base/options.h"

namespace convoy {

struct BackendEntry : Entry {
  bool built = true;
  std::string how_to_get;     // part of the error message if the backend is requested but not built
  bool threads_only = false;  // ranks must be threads of one process
  bool needs_gpu = false;
  bool by_mpirun = false;  // processes find each other through mpirun or srun; without either, convoy starts mpirun
  // Why a job cannot continue without one of its ranks, and what to do; "": it can.
  std::string no_lost_rank = "this backend cannot continue without a rank; set backend: gloo";
};
const std::vector<BackendEntry>& backend_catalogue();
const BackendEntry& backend_entry(const std::string& name);  // the name is known

}  // namespace convoy
