// The processes that this `convoy` itself started: what they write, how they end, and that none is left.
//
// Threads: all in the event loop's. Every process has its own group; ending a process ends its group.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>

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
  Agent(EventLoop& loop, AgentEvents events);
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

  EventLoop& loop_;
  AgentEvents events_;
  OrphanGuard guard_;
  std::map<pid_t, std::unique_ptr<Child>> children_;
  EventLoop::TimerId kill_timer_ = 0;
  int64_t kills_ = 0;  // memory_kills() before the first child
};

}  // namespace convoy
