#include "launch/process/orphan_guard.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/files/files.h"
#include "core/files/limits.h"
#include "launch/machine/topology.h"
#include "launch/process/process.h"

namespace convoy {

void become_subreaper() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

std::vector<pid_t> descendants_of(pid_t ancestor) {
  std::multimap<pid_t, pid_t> children;
  for (const pid_t pid : listed_processes())
    if (const auto status = process_status(pid); status && status->alive()) children.emplace(status->parent, pid);
  std::vector<pid_t> found{ancestor};
  for (size_t i = 0; i < found.size(); ++i) {
    const auto range = children.equal_range(found[i]);
    for (auto child = range.first; child != range.second; ++child) found.push_back(child->second);
  }
  found.erase(found.begin());
  return found;
}

bool kill_descendants(int milliseconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
  while (true) {
    const std::vector<pid_t> alive = descendants_of(getpid());
    for (pid_t pid : alive) kill(pid, SIGKILL);
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (alive.empty()) return true;
    if (std::chrono::steady_clock::now() > end) return false;
    poll(nullptr, 0, 2);  // a killed process needs a moment to go
  }
}

ParentWatch::ParentWatch(EventLoop& loop, std::function<void()> gone) : loop_(loop) {
  const pid_t parent = getppid();
  fd_ = static_cast<int>(syscall(SYS_pidfd_open, parent, 0));
  if (fd_ < 0 && is_out_of_descriptors(errno))
    throw Error(Failure::io, "cannot watch process ", parent, ": ", error_text(errno));
  if (fd_ < 0 || getppid() != parent) {
    // The parent ended before the watch began. Kernels before 5.3 have no pidfd: there only the lost channel shows it.
    if (getppid() != parent) loop_.post(gone);
    return;
  }
  loop_.on_readable(fd_, [this, gone] {
    loop_.forget(fd_);
    gone();
  });
}

ParentWatch::~ParentWatch() {
  if (fd_ < 0) return;
  loop_.forget(fd_);
  close(fd_);
}

namespace {

constexpr char orderly[] = "end", child[] = "child";
constexpr int others_first = 700;  // milliseconds for mpirun to remove its session folder, and for last lines
constexpr int rounds = 50;         // a killed process may have started another one

using Markers = std::vector<std::string>;  // "NAME=value" strings that all occur in an environment

bool has_all(const std::string& environment, const Markers& markers) {
  const std::string entries = '\0' + environment;
  return std::all_of(markers.begin(), markers.end(), [&](const std::string& marker) {
    return entries.find('\0' + marker + '\0') != std::string::npos;
  });
}

// All living processes with the variables of one of `watched`.
std::vector<pid_t> processes_with(const std::vector<Markers>& watched) {
  std::vector<pid_t> found;
  for (const pid_t pid : listed_processes()) {
    if (pid == getpid()) continue;
    const std::string environment = read_file_if_any(str("/proc/", pid, "/environ"));  // a zombie's is empty
    if (std::any_of(watched.begin(), watched.end(),
                    [&](const Markers& markers) { return has_all(environment, markers); }))
      found.push_back(pid);
  }
  return found;
}

struct Received {
  std::vector<Markers> watched;
  std::vector<pid_t> children;
  bool ended = false;  // in order
};

Received parse(const std::string& text) {
  Received received;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    Markers words;
    std::istringstream rest(line);
    for (std::string word; rest >> word;) words.push_back(word);
    if (words.empty()) continue;
    if (words.front() == child)
      received.children.push_back(std::atoi(words.back().c_str()));
    else if (words.front() == orderly)
      received.ended = true;
    else
      received.watched.push_back(std::move(words));
  }
  return received;
}

[[noreturn]] void guard(int input) {
  setsid();  // a signal for convoy's group or terminal must not reach the guard
  prctl(PR_SET_NAME, "convoy-guard");
  dup2(input, STDIN_FILENO);
  closefrom(STDIN_FILENO + 1);  // closes the folder lock and the console, among others
  std::string received;
  char bytes[4096];
  for (ssize_t got; (got = read(STDIN_FILENO, bytes, sizeof bytes)) != 0;) {
    if (got > 0) received.append(bytes, static_cast<size_t>(got));
    if (got < 0 && errno != EINTR) break;
  }
  const auto [watched, children, ended] = parse(received);
  if (watched.empty() || ended) _exit(0);
  poll(nullptr, 0, others_first);
  for (int i = 0; i < rounds; ++i) {
    const std::vector<pid_t> living = processes_with(watched);
    if (living.empty()) break;
    for (const pid_t pid : living) kill(pid, SIGKILL);
    poll(nullptr, 0, 20);
  }
  for (const pid_t pid : children) remove_leftover_session(pid);  // a killed mpirun could not remove its session
  _exit(0);
}

}  // namespace

OrphanGuard::OrphanGuard() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;
  pid_ = fork();
  if (pid_ == 0) {
    close(ends[1]);
    guard(ends[0]);
  }
  close(ends[0]);
  pipe_ = ends[1];
}

OrphanGuard::~OrphanGuard() {
  send(orderly);
  if (pipe_ >= 0) close(pipe_);
  if (pid_ > 0) waitpid(pid_, nullptr, 0);
}

void OrphanGuard::watch(const Variables& environment) {
  std::string line;
  for (const char* name : {"CONVOY_CHANNEL", "CONVOY_PROCESS"}) {
    const auto found = environment.find(name);
    if (found != environment.end()) line += std::string(name) + "=" + found->second + " ";
  }
  // Without the channel's secret the processes could be another job's.
  if (line.rfind("CONVOY_CHANNEL=", 0) == 0) send(line);
}

void OrphanGuard::started(pid_t pid) { send(str(child, " ", pid)); }

void OrphanGuard::send(const std::string& line) {
  const std::string whole = line + "\n";
  if (pipe_ >= 0 && write(pipe_, whole.data(), whole.size()) < 0) close(std::exchange(pipe_, -1));
}

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
