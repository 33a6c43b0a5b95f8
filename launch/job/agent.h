// Agent: the processes that this `convoy` started, with their output and their ends; none of them survives it.
//
// Threads: the event loop's. Every process leads a process group; killing a process kills its group.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/config/job_plan.h"
#include "core/files/limits.h"
#include "launch/machine/environment.h"
#include "launch/machine/host_lists.h"
#include "launch/process/event_loop.h"
#include "launch/process/orphan_guard.h"
#include "launch/process/process.h"

namespace convoy {

// --- Messages between `convoy run --hosts` and the agent on another host, before the control channel exists ---
//
// The supervisor writes two lines to the remote shell's standard input and reads one line. The second line has the
// channel's secret, which must never be in argv.
//
//   → request   version, working folder, environment, and whether to look for GPUs
//   ← hello     version, host and interfaces; or a problem there
//   → plan      address of the control channel, and the processes of the job to start on this host
// The end of standard input means that the supervisor or the remote shell is gone.

struct RemoteRequest {
  std::string version;
  std::string folder;  // absolute: paths in a configuration are relative to it
  Variables environment;
  bool gpus = false;
  std::string program = "";  // rank program of the user, which the host must have; "": convoy-rank
};
CONVOY_JSON(RemoteRequest, version, folder, environment, gpus, program)

struct RemoteHello {
  std::string version;
  Host host;
  std::vector<Interface> interfaces;
  std::string problem;  // "": none; else the host and interfaces are empty
};

struct RemotePlan {
  std::string channel;         // to_string(ChannelAddress)
  std::vector<int> processes;  // indices into JobPlan::processes
  int size = 1;                // processes of the job
  Json assignment = {};        // for a rank that joins a running job; null: the channel has it
};
CONVOY_JSON(RemotePlan, channel, processes, size, assignment)

std::string to_line(const Json& message);  // for a RemoteRequest or RemotePlan
std::string to_line(const RemoteHello& hello);
RemoteRequest remote_request(const std::string& line);  // Error(rendezvous) for a line of another version
RemotePlan remote_plan(const std::string& line);
// Nothing for other lines: login shells may print some.
std::optional<RemoteHello> remote_hello(const std::string& line);

// Environment variables for other hosts: settings of libraries that ranks use. Leaves out variables that belong to a
// host, such as PATH, HOME and the visible GPUs.
Variables forwarded(const Variables& variables);

struct AgentEvents {
  std::function<void(int process, const std::string& line)> on_line;
  std::function<void(int process, const ProcessEnd& end)> on_end;  // after its last line
};

class Agent {
 public:
  // `kills` counts processes that the kernel killed for lack of memory (core/files/limits.h). A killed process is
  // counted at once, but ends later, because its memory must be freed: at most `longest_kill` later.
  Agent(
      EventLoop& loop, AgentEvents events, std::function<int64_t()> kills = [] { return memory_kills(); },
      std::chrono::milliseconds longest_kill = std::chrono::seconds(5));
  ~Agent();  // kills the remaining processes

  // `process` is the caller's number for the process. Throws what start_process throws.
  pid_t start(int process, const ProcessStart& start);
  // Writes to the standard input of a process that was started with a pipe there. Blocks until the process reads: short
  // texts only. Does nothing if the process has ended.
  void send(int process, const std::string& text);
  void end_input(int process);
  void kill_after(std::chrono::milliseconds grace);  // the earliest call counts
  void kill_all();
  void kill_one(int process);
  bool idle() const { return children_.empty(); }

 private:
  struct Child {
    int process = 0;
    StartedProcess started;
    LineSplitter output, error;
    std::string last;  // its last lines
  };
  void read(Child& child, int& fd, LineSplitter& splitter);
  void line(Child& child, const std::string& text);
  void ended(pid_t pid, const ProcessEnd& end);
  void close_pipe(int& fd);
  void close_pipes(Child& child);
  void count_later();

  EventLoop& loop_;
  AgentEvents events_;
  OrphanGuard guard_;
  std::map<pid_t, std::unique_ptr<Child>> children_;
  EventLoop::TimerId kill_timer_ = 0;
  EventLoop::TimerId count_timer_ = 0;
  const std::function<int64_t()> kills_;
  const std::chrono::milliseconds longest_kill_;
  // The two newest counts. A kill that is older than both did not end the child that ends now.
  int64_t older_count_, newer_count_;
};

}  // namespace convoy
