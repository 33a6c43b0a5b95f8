// Child processes: by argv and never through a shell, bound to cores before they execute, ended when `convoy` ends.
#pragma once
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "launch/environment.h"

namespace convoy {

// How a process ended: by itself with `code`, or by `signal`.
struct ProcessEnd {
  int code = 0;
  int signal = 0;
  std::string lack = {};  // what the system refused to it, where that is known to have ended it (lack_of)
  bool ok() const { return code == 0 && signal == 0; }
  int exit_code() const { return signal > 0 ? 128 + signal : code; }
};
ProcessEnd process_end(int wait_status);
// Memory or threads, by the kernel's count of kills or by the words of a loader or library that had to give up; "" where nothing
// tells. `last`: the last lines that it wrote; `killed_by_kernel`: memory_kills() has grown.
std::string lack_of(const ProcessEnd& end, const std::string& last, bool killed_by_kernel);
std::string describe(const ProcessEnd& end);  // "ended with 70", "was killed by signal 9 (KILL)"

// 127 where there is no such program, 126 where it cannot be executed.
class CannotExecute : public Error {
 public:
  CannotExecute(int code, const std::string& message) : Error(Failure::internal, message), code_(code) {}
  int code() const { return code_; }

 private:
  int code_;
};

struct ProcessStart {
  std::vector<std::string> argv;  // argv[0] is a path, or looked up in PATH when it has no slash
  Variables environment;
  std::vector<int> cores;   // processing units; empty: as this process
  int death_signal = 9;     // sent to it by the kernel when this process ends
  bool with_input = false;  // a pipe to its standard input, else /dev/null
};

struct StartedProcess {
  pid_t pid = -1;
  int output = -1;  // read ends, non-blocking; the caller closes them
  int error = -1;
  int input = -1;  // blocking
};

// Starts it in a process group of its own. No signal is blocked there, and those are ignored that this program was started
// with, SIGTERM and SIGPIPE aside. From the main thread only: the kernel sends the death
// signal when the thread that forked ends. Throws CannotExecute once the kernel has refused.
StartedProcess start_process(const ProcessStart& start);

// The file that would be executed for `program`; throws CannotExecute with `advice` at the end of its message.
std::string executable_path(const std::string& program, const std::string& advice);

// The folder of this program: `convoy-rank` stands beside `convoy`.
std::string own_folder();
std::string own_path();

}  // namespace convoy
