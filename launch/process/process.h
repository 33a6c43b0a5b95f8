// Child processes: started by argv without a shell, bound to cores before they execute, killed when `convoy` ends.
#pragma once
#include <sys/types.h>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/control/assignment.h"
#include "launch/machine/environment.h"

namespace convoy {

// End of a process: by itself with `code`, or by `signal`.
struct ProcessEnd {
  int code = 0;
  int signal = 0;
  std::string lack = {};  // the missing resource, if it is known to have ended the process (lack_of)
  bool ok() const { return code == 0 && signal == 0; }
  int exit_code() const { return signal > 0 ? 128 + signal : code; }
};
ProcessEnd process_end(int wait_status);
// Names memory or threads if their lack ended the process, by the kernel's count of kills, its exit code or its last
// output; else "". `last`: last lines of output. `killed_by_kernel`: memory_kills() has increased.
std::string lack_of(const ProcessEnd& end, const std::string& last, bool killed_by_kernel);
std::string end_text(const ProcessEnd& end);  // "ended with 70", "was killed by signal 9 (KILL)"

// State and parent in /proc/PID/stat; nothing if there is no such process.
struct ProcessStatus {
  char state = 0;  // 'T': stopped, 'Z' and 'X': dead
  pid_t parent = 0;
  bool alive() const { return state != 'Z' && state != 'X'; }
};
std::optional<ProcessStatus> process_status(pid_t pid);
// Processes that /proc lists, of this host or container.
std::vector<pid_t> listed_processes();

// Exit code 127 if the program does not exist, 126 if it cannot be executed.
class CannotExecute : public Error {
 public:
  CannotExecute(int code, const std::string& message) : Error(Failure::internal, message), code_(code) {}
  int code() const { return code_; }

 private:
  int code_;
};
// The code of the error's kind, or the code of CannotExecute.
int exit_code_of(const Error& error);

struct ProcessStart {
  std::vector<std::string> argv;  // argv[0] is a path, or looked up in PATH when it has no slash
  Variables environment;
  std::vector<int> cores;   // hardware threads; empty: those of this process
  int death_signal = 9;     // the kernel sends it when this process ends
  bool with_input = false;  // connects standard input to a pipe; else /dev/null
};

struct StartedProcess {
  pid_t pid = -1;
  int output = -1;  // read ends, non-blocking; the caller closes them
  int error = -1;
  int input = -1;  // blocking
};

// Starts a process in a new process group. The process blocks no signal. It ignores those that this program ignored at
// its start, except SIGTERM and SIGPIPE. Call it from the main thread only: the kernel sends the death signal when the
// thread that forked ends. Throws CannotExecute if the kernel refuses.
StartedProcess start_process(const ProcessStart& start);

// Path of the file that `program` means. Throws CannotExecute with `advice` at the end of its message.
std::string executable_path(const std::string& program, const std::string& advice);

std::string program_path();  // path of this process's program

// --- Rank processes, under every launcher ---

// Path of `convoy-rank`, in the folder of `convoy`. Throws CannotExecute, so that the error appears before rendezvous.
std::string rank_program();

// If Torch_DIR names a LibTorch, programs that this process starts load that one: sets LD_LIBRARY_PATH. Call it before
// other threads exist.
void prefer_named_libtorch();

// `program`: path of convoy-rank; not used if the job has a program of the user.
inline constexpr char program_advice[] = "`program` names what each rank runs: a path, or a name in PATH";
ProcessStart rank_process(const std::string& program, const RankAssignment& assignment, int process,
                          const std::string& channel, Variables environment);

}  // namespace convoy
