#include "launch/process.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <utility>

#include "core/limits.h"

namespace convoy {
namespace {

struct Pipe {
  int read = -1;
  int write = -1;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
      throw Error(Failure::io, str("cannot make a pipe: ", strerror(errno), "; raise `ulimit -n`"));
    read = ends[0];
    write = ends[1];
  }
  ~Pipe() {
    if (read >= 0) close(read);
    if (write >= 0) close(write);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close_write() { close(std::exchange(write, -1)); }
  int take_read() { return std::exchange(read, -1); }
  int take_write() { return std::exchange(write, -1); }
};

constexpr int max_units = 8192;

// All that the child needs, made before it starts: until it is another program it shares this one's memory, and may neither
// allocate nor return.
struct Prepared {
  std::vector<char*> argv;
  std::vector<std::string> environment_lines;
  std::vector<char*> environment;
  cpu_set_t* units = nullptr;
  size_t units_size = CPU_ALLOC_SIZE(max_units);
  ~Prepared() {
    if (units) CPU_FREE(units);
  }
};

void prepare(const ProcessStart& start, Prepared& prepared) {
  for (const std::string& argument : start.argv) prepared.argv.push_back(const_cast<char*>(argument.c_str()));
  prepared.argv.push_back(nullptr);
  for (const auto& [name, value] : start.environment) prepared.environment_lines.push_back(name + "=" + value);
  for (std::string& line : prepared.environment_lines) prepared.environment.push_back(line.data());
  prepared.environment.push_back(nullptr);
  if (start.cores.empty()) return;
  prepared.units = CPU_ALLOC(max_units);
  CPU_ZERO_S(prepared.units_size, prepared.units);
  for (int unit : start.cores) CPU_SET_S(static_cast<size_t>(unit), prepared.units_size, prepared.units);
}

// In the child. Says errno through `report` when it cannot go on; only async-signal-safe calls.
[[noreturn]] void become(const ProcessStart& start, const Prepared& prepared, const char* path, pid_t parent, int input,
                         int output, int error, int report) {
  auto give_up = [report](int code) {
    const ssize_t written = write(report, &code, sizeof code);
    (void)written;
    _exit(127);
  };
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, start.death_signal);
  if (getppid() != parent) _exit(127);  // it died before the line above
  if (prepared.units && sched_setaffinity(0, prepared.units_size, prepared.units) != 0) give_up(-errno);
  if (dup2(input, STDIN_FILENO) < 0 || dup2(output, STDOUT_FILENO) < 0 || dup2(error, STDERR_FILENO) < 0)
    give_up(errno);
  signal(SIGPIPE, SIG_DFL);
  signal(SIGTERM, SIG_DFL);  // a farm asks its pipelines to stop by it, whatever its own caller ignores
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(path, prepared.argv.data(), prepared.environment.data());
  give_up(errno);
  _exit(127);
}

[[noreturn]] void refuse(const std::string& path, int reason, const std::string& advice) {
  throw CannotExecute(reason == ENOENT || reason == ENOTDIR ? 127 : 126,
                      str("cannot start ", path, ": ", strerror(reason), advice.empty() ? "" : "; ", advice));
}

}  // namespace

ProcessEnd process_end(int wait_status) {
  ProcessEnd end;
  if (WIFSIGNALED(wait_status))
    end.signal = WTERMSIG(wait_status);
  else
    end.code = WEXITSTATUS(wait_status);
  return end;
}

namespace {

// EAGAIN from what starts threads and processes, not from reads and sends. std::thread's error has no other word.
bool reports_no_thread(const std::string& line) {
  const auto has = [&line](const char* words) { return line.find(words) != std::string::npos; };
  if (has("Thread creation failed")) return true;
  if (!has("Resource temporarily unavailable")) return false;
  return has("thread") || has("fork") || has("what():  Resource temporarily unavailable");
}

}  // namespace

std::string lack_of(const ProcessEnd& end, const std::string& last, bool killed_by_kernel) {
  if (end.signal == SIGKILL) return killed_by_kernel ? "the kernel killed it: " + no_memory_text() : "";
  if (end.signal != SIGABRT && end.code != EXIT_FAILURE && end.code != 127) return "";
  const auto says = [&last](const char* words) { return last.find(words) != std::string::npos; };
  std::istringstream lines(last);
  for (std::string line; std::getline(lines, line);)
    if (reports_no_thread(line)) return no_thread_text();
  if (says("std::bad_alloc") || says("Cannot allocate memory") || says("cannot allocate memory") ||
      says("failed to map segment"))
    return no_memory_text();
  return "";
}

std::string describe(const ProcessEnd& end) {
  if (end.signal == 0) return str("ended with ", end.code);
  const char* name = sigabbrev_np(end.signal);
  return str("was killed by signal ", end.signal, " (", name ? name : "?", ")");
}

StartedProcess start_process(const ProcessStart& start) {
  const std::string path = executable_path(start.argv.at(0), "");
  Prepared prepared;
  prepare(start, prepared);
  Pipe output, error, report;
  const std::unique_ptr<Pipe> input = start.with_input ? std::make_unique<Pipe>() : nullptr;
  const int nothing = input ? -1 : open("/dev/null", O_RDONLY | O_CLOEXEC);
  const pid_t parent = getpid();
  // Nothing of this process is copied; it waits until the child has become another program, as it did for its report.
  const pid_t pid = vfork();
  if (pid == 0)
    become(start, prepared, path.c_str(), parent, input ? input->read : nothing, output.write, error.write,
           report.write);
  const int fork_error = errno;
  if (nothing >= 0) close(nothing);
  if (pid < 0)
    throw Error(Failure::out_of_memory, str("cannot start ", path, ": ", strerror(fork_error), ": ",
                                            fork_error == ENOMEM ? no_memory_text() : no_thread_text()));
  setpgid(pid, pid);  // whoever is first, so that a kill of the group reaches it from here on
  report.close_write();
  int reason = 0;
  ssize_t got = 0;
  while ((got = read(report.read, &reason, sizeof reason)) < 0 && errno == EINTR) {
  }
  if (got > 0) {
    waitpid(pid, nullptr, 0);
    if (reason < 0)
      throw Error(Failure::config, str("launch: cannot bind ", path, " to its cores: ", strerror(-reason),
                                       "; try --set launch.bind=none"));
    refuse(path, reason, "");
  }
  StartedProcess started;
  started.pid = pid;
  started.output = output.take_read();
  started.error = error.take_read();
  for (int fd : {started.output, started.error}) fcntl(fd, F_SETFL, O_NONBLOCK);
  if (input) started.input = input->take_write();
  return started;
}

std::string executable_path(const std::string& program, const std::string& advice) {
  std::vector<std::string> candidates;
  if (program.find('/') != std::string::npos) {
    candidates.push_back(program);
  } else {
    const char* path = std::getenv("PATH");
    std::istringstream folders(path ? path : "/usr/local/bin:/usr/bin:/bin");
    for (std::string folder; std::getline(folders, folder, ':');)
      candidates.push_back((folder.empty() ? "." : folder) + "/" + program);
  }
  int reason = ENOENT;
  for (const std::string& candidate : candidates) {
    struct stat status {};
    if (stat(candidate.c_str(), &status) != 0) {
      if (candidates.size() == 1) reason = errno;
    } else if (!S_ISREG(status.st_mode) || access(candidate.c_str(), X_OK) != 0) {
      reason = EACCES;
    } else {
      return candidate;
    }
  }
  refuse(program, reason, advice);
}

std::string own_path() {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  if (length <= 0) throw Error(Failure::io, "cannot read /proc/self/exe; is /proc mounted?");
  return std::string(path, static_cast<size_t>(length));
}

std::string own_folder() {
  const std::string path = own_path();
  return path.substr(0, path.rfind('/'));
}

}  // namespace convoy
