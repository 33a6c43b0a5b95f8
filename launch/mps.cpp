#include "launch/mps.h"

#include <errno.h>
#include <signal.h>

#include <map>
#include <set>
#include <sstream>

#include "core/files.h"
#include "core/text.h"
#include "core/units.h"

namespace convoy {

// The daemon writes its number there and removes the file when it ends. In a container its number may mean nothing: where
// the user names the folder, the file is enough.
std::string mps_folder(const Variables& variables, const std::string& otherwise) {
  const auto given = variables.find("CUDA_MPS_PIPE_DIRECTORY");
  const bool named = given != variables.end() && !given->second.empty();
  const std::string folder = named ? given->second : otherwise;
  std::istringstream file(
      read_file_if_any(folder + "/nvidia-cuda-mps-control.pid", 64));  // a shared folder's may be a FIFO
  pid_t daemon = 0;
  if (!(file >> daemon) || daemon <= 0) return "";
  const bool alive = kill(daemon, 0) == 0 || errno == EPERM;
  return alive || named ? folder : "";
}

std::string shared_gpu_note(int gpu, const std::string& host, const std::string& sharers, const std::string& mps) {
  return str("GPU ", gpu, " of ", host, " is shared by ", sharers,
             mps.empty()
                 ? ": they take turns on it, as no MPS daemon was found; `nvidia-cuda-mps-control -d` starts one, "
                   "under which they use it at the same time"
                 : ": at the same time, through the MPS daemon of " + mps);
}

std::vector<std::string> shared_gpu_notes(const Job& job, const Topology& topology, const std::string& here,
                                          const Variables& variables) {
  std::map<std::pair<int, int>, std::set<int>> processes;  // by host and GPU
  std::map<std::pair<int, int>, std::vector<int>> ranks;
  for (const RankPlan& rank : job.ranks) {
    for (const DevicePlan& device : rank.devices) {
      if (device.kind != DevicePlan::Kind::gpu) continue;
      processes[{rank.host, device.gpu}].insert(rank.process);
      ranks[{rank.host, device.gpu}].push_back(rank.rank);
    }
  }
  std::vector<std::string> notes;
  for (const auto& [place, sharers] : processes) {
    if (sharers.size() < 2) continue;
    const std::string& host = topology.hosts.at(static_cast<size_t>(place.first)).name;
    notes.push_back(shared_gpu_note(place.second, host, "ranks " + ranks_text(ranks[place]),
                                    host == here ? mps_folder(variables) : ""));
  }
  return notes;
}

}  // namespace convoy
