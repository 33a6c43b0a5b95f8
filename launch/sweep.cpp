#include "launch/sweep.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "core/text.h"
#include "launch/topology.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

bool own_and_old(const fs::path& path, int seconds) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0 && status.st_uid == geteuid() &&
         std::time(nullptr) - status.st_mtime >= seconds;
}

bool starts_with(const std::string& text, const std::string& prefix) { return text.rfind(prefix, 0) == 0; }

// Open MPI's names: vader_segment.HOST.UID.JOB.RANK
std::vector<fs::path> old_segments(const SweepPlaces& places) {
  const std::string prefix = str("vader_segment.", host_name(), ".");
  std::vector<fs::path> found;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(places.shared_memory, none))
    if (starts_with(entry.path().filename(), prefix) && own_and_old(entry.path(), places.oldest_seconds))
      found.push_back(entry.path());
  return found;
}

// One pass over the maps of all processes.
std::vector<bool> mapped(const std::vector<fs::path>& files) {
  std::vector<bool> used(files.size(), false);
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc", none)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream maps(entry.path() / "maps");
    for (std::string line; std::getline(maps, line);)
      for (size_t i = 0; i < files.size(); ++i)
        if (line.find(files[i].string()) != std::string::npos) used[i] = true;
  }
  return used;
}

int sweep_segments(const SweepPlaces& places) {
  const std::vector<fs::path> files = old_segments(places);
  if (files.empty()) return 0;
  const std::vector<bool> used = mapped(files);
  int removed = 0;
  for (size_t i = 0; i < files.size(); ++i)
    if (!used[i] && unlink(files[i].c_str()) == 0) ++removed;
  return removed;
}

// A dead process that nobody waits for, as under a container's lazy first process, is gone all the same.
bool runs(pid_t pid) {
  if (kill(pid, 0) != 0 && errno == ESRCH) return false;
  std::ifstream file(str("/proc/", pid, "/stat"));
  std::string line;
  std::getline(file, line);
  const size_t end = line.rfind(')');
  return end == std::string::npos || end + 2 >= line.size() || (line[end + 2] != 'Z' && line[end + 2] != 'X');
}

// TMPDIR/ompi.HOST.UID, with a folder pid.N for each mpirun.
fs::path sessions_of(const SweepPlaces& places) {
  const char* variable = std::getenv("TMPDIR");
  const std::string temporary = !places.temporary.empty() ? places.temporary : variable ? variable : "/tmp";
  return fs::path(temporary) / str("ompi.", host_name(), ".", geteuid());
}

int sweep_sessions(const SweepPlaces& places) {
  const fs::path folder = sessions_of(places);
  std::error_code none;
  int removed = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename();
    const pid_t pid = starts_with(name, "pid.") ? std::atoi(name.c_str() + 4) : 0;
    if (pid <= 0 || !own_and_old(entry.path(), places.oldest_seconds)) continue;
    if (runs(pid)) continue;
    if (fs::remove_all(entry.path(), none) > 0 && !none) ++removed;
  }
  return removed;
}

}  // namespace

void sweep_session(pid_t mpirun, const SweepPlaces& places) {
  const fs::path folder = sessions_of(places);
  const fs::path session = folder / str("pid.", mpirun);
  if (mpirun <= 0 || runs(mpirun) || !own_and_old(folder, 0)) return;
  std::error_code none;
  if (own_and_old(session, 0)) fs::remove_all(session, none);
  fs::remove(folder, none);  // where no other mpirun has one
}

void sweep_own_segment(const std::map<std::string, std::string>& variables, const SweepPlaces& places) {
  const auto job = variables.find("OMPI_MCA_ess_base_jobid");
  const auto rank = variables.find("OMPI_COMM_WORLD_LOCAL_RANK");
  if (job == variables.end() || rank == variables.end()) return;
  // The name holds the job in hexadecimal, the variable in decimal.
  std::ostringstream name;
  name << "vader_segment." << host_name() << '.' << geteuid() << '.' << std::hex
       << std::strtoul(job->second.c_str(), nullptr, 10) << std::dec << '.' << std::atoi(rank->second.c_str());
  std::error_code none;
  fs::remove(fs::path(places.shared_memory) / name.str(), none);
}

int sweep_open_mpi(const SweepPlaces& places) { return sweep_segments(places) + sweep_sessions(places); }

}  // namespace convoy
