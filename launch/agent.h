// The processes that this `convoy` itself started: what they write, how they end, and that none is left.
//
// Threads: all in the event loop's. Every process has its own group; ending a process ends its group.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "core/limits.h"
#include "launch/event_loop.h"
#include "launch/lines.h"
#include "launch/orphan_guard.h"
#include "launch/process.h"

namespace convoy {

struct AgentEvents {
  std::function<void(int process, const std::string& line)> on_line;
  std::function<void(int process, const ProcessEnd& end)> on_end;  // after its last line
};

class Agent {
 public:
  // `kills` counts what the kernel killed for want of memory (core/limits.h). `longest_kill`: from that count to the end
  // of a process, which may have much memory to give back.
  Agent(
      EventLoop& loop, AgentEvents events, std::function<int64_t()> kills = [] { return memory_kills(); },
      std::chrono::milliseconds longest_kill = std::chrono::seconds(5));
  ~Agent();  // kills what is left
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // `process` is the caller's number for it. Throws what start_process throws.
  pid_t start(int process, const ProcessStart& start);
  // To the standard input of a process that was started with one; short texts only, since it waits until they are taken.
  // Nothing where the process has ended.
  void send(int process, const std::string& text);
  void end_input(int process);
  void kill_after(std::chrono::milliseconds grace);  // the earliest call counts
  void kill_all();
  bool idle() const { return children_.empty(); }

 private:
  struct Child {
    int process = 0;
    StartedProcess started;
    LineCutter output, error;
    std::string last;  // lines that it wrote
  };
  void read(Child& child, int& fd, LineCutter& cutter);
  void line(Child& child, const std::string& text);
  void ended(pid_t pid, const ProcessEnd& end);
  void close_pipe(int& fd);
  void count_later();

  EventLoop& loop_;
  AgentEvents events_;
  OrphanGuard guard_;
  std::map<pid_t, std::unique_ptr<Child>> children_;
  EventLoop::TimerId kill_timer_ = 0;
  EventLoop::TimerId count_timer_ = 0;
  const std::function<int64_t()> kills_;
  const std::chrono::milliseconds longest_kill_;
  // The last counts: a kill that is older than both did not end the child that ends now.
  int64_t older_count_, newer_count_;
};

}  // namespace convoy
