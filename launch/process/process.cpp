#include "launch/process/process.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <set>
#include <sstream>
#include <utility>

#include "core/control/exit_codes.h"
#include "core/files/files.h"
#include "core/files/limits.h"

namespace convoy {
namespace {

struct Pipe {
  Descriptor read, write;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw Error(Failure::io, "cannot make a pipe: ", error_text(errno));
    read = Descriptor(ends[0]);
    write = Descriptor(ends[1]);
  }
};

// Data of the child, made before it starts: until exec it shares this process's memory, so it must not allocate or
// return.
struct Prepared {
  std::vector<char*> argv;
  std::vector<std::string> environment_lines;
  std::vector<char*> environment;
  cpu_set_t hardware_threads[8] = {};  // 8192 of them
};

void prepare(const ProcessStart& start, Prepared& prepared) {
  for (const std::string& argument : start.argv) prepared.argv.push_back(const_cast<char*>(argument.c_str()));
  prepared.argv.push_back(nullptr);
  for (const auto& [name, value] : start.environment) prepared.environment_lines.push_back(name + "=" + value);
  for (std::string& line : prepared.environment_lines) prepared.environment.push_back(line.data());
  prepared.environment.push_back(nullptr);
  for (int thread : start.cores)
    CPU_SET_S(static_cast<size_t>(thread), sizeof prepared.hardware_threads, prepared.hardware_threads);
}

// Runs in the child. Writes errno to `report` if it cannot continue; uses async-signal-safe calls only.
[[noreturn]] void become(const ProcessStart& start, const Prepared& prepared, const char* path, pid_t parent, int input,
                         int output, int error, int report) {
  auto report_error = [report](int code) {
    const ssize_t written = write(report, &code, sizeof code);
    (void)written;
    _exit(127);
  };
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, start.death_signal);
  if (getppid() != parent) _exit(127);  // the parent ended before prctl
  if (!start.cores.empty() && sched_setaffinity(0, sizeof prepared.hardware_threads, prepared.hardware_threads) != 0)
    report_error(-errno);
  if (dup2(input, STDIN_FILENO) < 0 || dup2(output, STDOUT_FILENO) < 0 || dup2(error, STDERR_FILENO) < 0)
    report_error(errno);
  signal(SIGPIPE, SIG_DFL);
  signal(SIGTERM, SIG_DFL);  // a farm stops its pipelines with SIGTERM, even if the farm's caller ignores it
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(path, prepared.argv.data(), prepared.environment.data());
  report_error(errno);
  _exit(127);
}

[[noreturn]] void refuse(const std::string& path, int reason, const std::string& advice) {
  const std::string what = str("cannot start ", path, ": ");
  if (is_out_of_descriptors(reason)) throw Error(Failure::io, what + error_text(reason));
  if (reason == ENOMEM) throw Error(Failure::out_of_memory, what + error_text(reason));
  if (reason == EAGAIN) throw Error(Failure::out_of_memory, what, strerror(reason), ": ", no_thread_text());
  throw CannotExecute(reason == ENOENT || reason == ENOTDIR ? exit_code::not_found : exit_code::cannot_execute,
                      str(what, strerror(reason), advice.empty() ? "" : "; ", advice));
}

}  // namespace

int exit_code_of(const Error& error) {
  const auto* cannot = dynamic_cast<const CannotExecute*>(&error);
  return cannot ? cannot->code() : exit_code_of(error.kind());
}

std::optional<ProcessStatus> process_status(pid_t pid) {
  const std::string stat = read_file_if_any(str("/proc/", pid, "/stat"));
  const size_t end = stat.rfind(')');  // "pid (name) state ppid …"; the name may contain anything
  if (end == std::string::npos || end + 4 >= stat.size()) return std::nullopt;
  return ProcessStatus{stat[end + 2], static_cast<pid_t>(std::atoi(stat.c_str() + end + 4))};
}

std::vector<pid_t> listed_processes() {
  std::vector<pid_t> pids;
  for (const std::string& name : names_in("/proc"))
    if (name.find_first_not_of("0123456789") == std::string::npos) pids.push_back(std::atoi(name.c_str()));
  return pids;
}

ProcessEnd process_end(int wait_status) {
  ProcessEnd end;
  if (WIFSIGNALED(wait_status))
    end.signal = WTERMSIG(wait_status);
  else
    end.code = WEXITSTATUS(wait_status);
  return end;
}

namespace {

// True for EAGAIN from starting threads and processes, not from reads and sends. std::thread's error has only this
// text.
bool reports_no_thread(const std::string& line) {
  const auto has = [&line](const char* words) { return line.find(words) != std::string::npos; };
  if (has("Thread creation failed")) return true;
  if (!has("Resource temporarily unavailable")) return false;
  return has("thread") || has("fork") || has("what():  Resource temporarily unavailable");
}

// The text by which a rank process reported a lack of memory or threads; "" if it reported none.
std::string reported_lack(const std::string& last) {
  std::string found;
  std::istringstream lines(last);
  for (std::string line; std::getline(lines, line);)
    if (line.find("out of memory") != std::string::npos || line.find("no more threads") != std::string::npos)
      found = line;
  constexpr char name[] = "convoy-rank: ";
  return found.rfind(name, 0) == 0 ? found.substr(sizeof name - 1) : found;
}

}  // namespace

std::string lack_of(const ProcessEnd& end, const std::string& last, bool killed_by_kernel) {
  if (end.code == exit_code::out_of_memory) {
    const std::string reported = reported_lack(last);
    return reported.empty() ? no_memory_text() : reported;
  }
  if (end.signal == SIGKILL) return killed_by_kernel ? "the kernel killed it: " + no_memory_text() : "";
  if (end.signal != SIGABRT && end.code != EXIT_FAILURE && end.code != 127) return "";
  const auto contains = [&last](const char* words) { return last.find(words) != std::string::npos; };
  std::istringstream lines(last);
  for (std::string line; std::getline(lines, line);)
    if (reports_no_thread(line)) return no_thread_text();
  if (contains("std::bad_alloc") || contains("Cannot allocate memory") || contains("cannot allocate memory") ||
      contains("failed to map segment") || contains("Fatal glibc error: failed to register TLS destructor"))
    return no_memory_text();
  return "";
}

std::string end_text(const ProcessEnd& end) {
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
  const Descriptor nothing(input ? -1 : open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!input && !nothing.valid())
    throw Error(Failure::io, "cannot start ", path, ": cannot open /dev/null: ", error_text(errno));
  const pid_t parent = getpid();
  // vfork copies nothing; this process waits until the child has become another program.
  const pid_t pid = vfork();
  if (pid == 0)
    become(start, prepared, path.c_str(), parent, input ? input->read.get() : nothing.get(), output.write.get(),
           error.write.get(), report.write.get());
  const int fork_error = errno;
  if (pid < 0) refuse(path, fork_error, "");
  setpgid(pid, pid);  // in parent and child, so that a kill of the group works from now on
  report.write = Descriptor();
  int reason = 0;
  ssize_t got = 0;
  while ((got = read(report.read.get(), &reason, sizeof reason)) < 0 && errno == EINTR) {
  }
  if (got > 0) {
    waitpid(pid, nullptr, 0);
    if (reason < 0)
      throw Error(Failure::config, "launch: cannot bind ", path, " to its cores: ", strerror(-reason),
                  "; try --set launch.bind=none");
    refuse(path, reason, "");
  }
  StartedProcess started;
  started.pid = pid;
  started.output = output.read.release();
  started.error = error.read.release();
  for (int fd : {started.output, started.error}) fcntl(fd, F_SETFL, O_NONBLOCK);
  if (input) started.input = input->write.release();
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

std::string program_path() {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  if (length <= 0) throw Error(Failure::io, "cannot read /proc/self/exe; is /proc mounted?");
  return std::string(path, static_cast<size_t>(length));
}

std::string rank_program() {
  const std::string path = program_path();
  return executable_path(path.substr(0, path.rfind('/')) + "/convoy-rank",
                         "it must be in the folder of convoy: build it with `ninja convoy-rank`");
}

void prefer_named_libtorch() {
  const char* named = std::getenv("Torch_DIR");
  if (named == nullptr) return;
  std::string root = named;
  while (!root.empty() && root.back() == '/') root.pop_back();
  const size_t package = root.rfind("/share/cmake/Torch");  // the folder that find_package(Torch) wants
  if (package != std::string::npos) root.erase(package);
  const std::string libraries = root + "/lib";
  if (access((libraries + "/libtorch_cpu.so").c_str(), R_OK) != 0) return;
  const char* others = std::getenv("LD_LIBRARY_PATH");
  if (others == nullptr || *others == '\0')
    setenv("LD_LIBRARY_PATH", libraries.c_str(), 1);
  else if (!begins_with(others, libraries))
    setenv("LD_LIBRARY_PATH", (libraries + ":" + others).c_str(), 1);
}

ProcessStart rank_process(const std::string& program, const RankAssignment& assignment, int process,
                          const std::string& channel, Variables environment) {
  const ProcessPlan& plan = assignment.job.processes.at(static_cast<size_t>(process));
  std::set<int> cores;
  int threads = 1;
  for (int index : plan.ranks) {
    const RankPlan& rank = assignment.job.ranks.at(static_cast<size_t>(index));
    cores.insert(rank.cores.begin(), rank.cores.end());
    threads = std::max(threads, rank.threads);
  }
  environment.erase(protocol::joined_variable);
  environment["CONVOY_CHANNEL"] = channel;
  environment["CONVOY_PROCESS"] = std::to_string(process);
  environment["CONVOY_RANK"] = std::to_string(plan.ranks.front());
  environment["OMP_NUM_THREADS"] = std::to_string(threads);
  // Spinning on a core that another rank or program needs made steps 40 to 300 times longer. Waiting passively costs
  // microseconds per operation, and nothing with one thread.
  if (assignment.passive || threads > 1) environment.emplace("OMP_WAIT_POLICY", "passive");
  environment.emplace("CUDA_DEVICE_ORDER", "PCI_BUS_ID");  // numbers GPUs like NVML
  // UUIDs, because numbers change when some GPUs are hidden.
  const std::vector<std::string> shown = visible_gpus(assignment.job, process);
  if (!shown.empty()) environment["CUDA_VISIBLE_DEVICES"] = join(shown, ",");
  ProcessStart start;
  start.argv = assignment.job.config.program;
  if (start.argv.empty()) start.argv = {program};
  start.environment = std::move(environment);
  start.cores.assign(cores.begin(), cores.end());
  return start;
}

}  // namespace convoy
