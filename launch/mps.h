// NVIDIA's Multi-Process Service: processes that share a GPU take turns on it, unless the user's MPS daemon runs; then
// they use it at the same time. It is looked for and told of, never started: whether to run it is the user's decision.
#pragma once
#include <string>
#include <vector>

#include "core/plan.h"
#include "core/topology.h"
#include "launch/environment.h"

namespace convoy {

// The folder of the daemon's pipes, from CUDA_MPS_PIPE_DIRECTORY or where CUDA looks otherwise; "" where none runs.
std::string mps_folder(const Variables& variables, const std::string& otherwise = "/tmp/nvidia-mps");

// "GPU 0 of dgx is shared by ranks 0 and 1: by turns, …". `mps`: mps_folder of that host, as far as this host knows.
std::string shared_gpu_note(int gpu, const std::string& host, const std::string& sharers, const std::string& mps);

// Of each GPU that several processes of the job use. `here`: the host whose variables these are.
std::vector<std::string> shared_gpu_notes(const Job& job, const Topology& topology, const std::string& here,
                                          const Variables& variables);

}  // namespace convoy
