#include "launch/prepare/leftovers.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <sstream>
#include <vector>

#include "core/files/files.h"
#include "launch/machine/topology.h"
#include "launch/process/process.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

bool is_mine_and_old(const fs::path& path, int seconds) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0 && status.st_uid == geteuid() &&
         std::time(nullptr) - status.st_mtime >= seconds;
}

// Open MPI names segments vader_segment.HOST.UID.JOB.RANK.
std::vector<fs::path> old_segments(const LeftoverPaths& paths) {
  const std::string prefix = str("vader_segment.", host_name(), ".");
  std::vector<fs::path> found;
  for (const std::string& name : names_in(paths.shared_memory))
    if (const fs::path path = fs::path(paths.shared_memory) / name;
        begins_with(name, prefix) && is_mine_and_old(path, paths.oldest_seconds))
      found.push_back(path);
  return found;
}

// Removes old segments that no process has mapped.
int remove_leftover_segments(const LeftoverPaths& paths) {
  std::vector<fs::path> files = old_segments(paths);
  if (files.empty()) return 0;
  for (const pid_t pid : listed_processes()) {
    const std::string maps = read_file_if_any(str("/proc/", pid, "/maps"));
    const auto is_mapped = [&maps](const fs::path& file) { return maps.find(file.string()) != std::string::npos; };
    files.erase(std::remove_if(files.begin(), files.end(), is_mapped), files.end());
  }
  return static_cast<int>(
      std::count_if(files.begin(), files.end(), [](const fs::path& file) { return unlink(file.c_str()) == 0; }));
}

// False also for a zombie: the first process of a container may never reap it.
bool runs(pid_t pid) {
  if (kill(pid, 0) != 0 && errno == ESRCH) return false;
  const auto status = process_status(pid);
  return !status || status->alive();
}

// TMPDIR/ompi.HOST.UID; it has a folder pid.N for each mpirun.
fs::path sessions_of(const LeftoverPaths& paths) {
  const char* variable = std::getenv("TMPDIR");
  const std::string temporary = !paths.temporary.empty() ? paths.temporary : variable ? variable : "/tmp";
  return fs::path(temporary) / str("ompi.", host_name(), ".", geteuid());
}

int remove_leftover_sessions(const LeftoverPaths& paths) {
  const fs::path folder = sessions_of(paths);
  std::error_code none;
  int removed = 0;
  for (const std::string& name : names_in(folder.string())) {
    const pid_t pid = begins_with(name, "pid.") ? std::atoi(name.c_str() + 4) : 0;
    if (pid <= 0 || !is_mine_and_old(folder / name, paths.oldest_seconds) || runs(pid)) continue;
    if (fs::remove_all(folder / name, none) > 0 && !none) ++removed;
  }
  return removed;
}

}  // namespace

void remove_leftover_session(pid_t mpirun, const LeftoverPaths& paths) {
  const fs::path folder = sessions_of(paths);
  const fs::path session = folder / str("pid.", mpirun);
  if (mpirun <= 0 || runs(mpirun) || !is_mine_and_old(folder, 0)) return;
  std::error_code none;
  if (is_mine_and_old(session, 0)) fs::remove_all(session, none);
  fs::remove(folder, none);  // only if no other mpirun has a folder there
}

void remove_leftover_segment(const std::map<std::string, std::string>& variables, const LeftoverPaths& paths) {
  const auto job = variables.find("OMPI_MCA_ess_base_jobid");
  const auto rank = variables.find("OMPI_COMM_WORLD_LOCAL_RANK");
  if (job == variables.end() || rank == variables.end()) return;
  // The name has the job in hexadecimal, the variable in decimal.
  std::ostringstream name;
  name << "vader_segment." << host_name() << '.' << geteuid() << '.' << std::hex
       << std::strtoul(job->second.c_str(), nullptr, 10) << std::dec << '.' << std::atoi(rank->second.c_str());
  std::error_code none;
  fs::remove(fs::path(paths.shared_memory) / name.str(), none);
}

int remove_leftover_open_mpi(const LeftoverPaths& paths) {
  return remove_leftover_segments(paths) + remove_leftover_sessions(paths);
}

}  // namespace convoy
