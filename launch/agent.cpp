#include "launch/agent.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "launch/descendants.h"

namespace convoy {

Agent::Agent(EventLoop& loop, AgentEvents events, std::function<int64_t()> kills,
             std::chrono::milliseconds longest_kill)
    : loop_(loop),
      events_(std::move(events)),
      kills_(std::move(kills)),
      longest_kill_(longest_kill),
      older_count_(kills_()),
      newer_count_(older_count_) {
  become_subreaper();
  count_later();
  loop_.on_child([this](pid_t pid, const ProcessEnd& end) { ended(pid, end); });
}

Agent::~Agent() {
  loop_.on_child(nullptr);
  for (auto& [pid, child] : children_) {
    close_pipe(child->started.output);
    close_pipe(child->started.error);
    close_pipe(child->started.input);
  }
  if (kill_timer_ != 0) loop_.cancel(kill_timer_);
  loop_.cancel(count_timer_);
  kill_descendants(1000);
}

void Agent::count_later() {
  count_timer_ = loop_.after(longest_kill_, [this] {
    older_count_ = std::exchange(newer_count_, kills_());
    count_later();
  });
}

pid_t Agent::start(int process, const ProcessStart& start) {
  guard_.watch(start.environment);
  auto child = std::make_unique<Child>();
  child->process = process;
  child->started = start_process(start);
  Child* raw = child.get();
  loop_.on_readable(raw->started.output, [this, raw] { read(*raw, raw->started.output, raw->output); });
  loop_.on_readable(raw->started.error, [this, raw] { read(*raw, raw->started.error, raw->error); });
  children_[raw->started.pid] = std::move(child);
  return raw->started.pid;
}

void Agent::read(Child& child, int& fd, LineCutter& cutter) {
  const LineCutter::Sink sink = [&](const std::string& text) { line(child, text); };
  if (fd < 0 || read_available(fd, cutter, sink)) return;
  cutter.finish(sink);
  close_pipe(fd);
}

void Agent::line(Child& child, const std::string& text) {
  constexpr size_t kept = 2000;
  child.last += text.substr(0, kept) + '\n';
  if (child.last.size() > kept) child.last.erase(0, child.last.size() - kept);
  events_.on_line(child.process, text);
}

void Agent::close_pipe(int& fd) {
  if (fd < 0) return;
  loop_.forget(fd);
  close(fd);
  fd = -1;
}

void Agent::ended(pid_t pid, const ProcessEnd& end) {
  const auto found = children_.find(pid);
  if (found == children_.end()) return;  // an adopted grandchild
  const std::unique_ptr<Child> child = std::move(found->second);
  children_.erase(found);
  kill(-pid, SIGKILL);  // what it left in its group
  // A grandchild may hold the pipes open for ever: what is there now is all that counts.
  read(*child, child->started.output, child->output);
  read(*child, child->started.error, child->error);
  const LineCutter::Sink sink = [&](const std::string& text) { line(*child, text); };
  child->output.finish(sink);
  child->error.finish(sink);
  close_pipe(child->started.output);
  close_pipe(child->started.error);
  close_pipe(child->started.input);
  ProcessEnd told = end;
  told.lack = lack_of(end, child->last, kills_() > older_count_);
  events_.on_end(child->process, told);
}

void Agent::send(int process, const std::string& text) {
  for (auto& [pid, child] : children_) {
    if (child->process != process || child->started.input < 0) continue;
    for (size_t sent = 0; sent < text.size();) {
      const ssize_t now = write(child->started.input, text.data() + sent, text.size() - sent);
      if (now < 0 && errno != EINTR) return;  // its end will tell why
      if (now > 0) sent += static_cast<size_t>(now);
    }
  }
}

void Agent::end_input(int process) {
  for (auto& [pid, child] : children_)
    if (child->process == process) close_pipe(child->started.input);
}

void Agent::kill_after(std::chrono::milliseconds grace) {
  if (kill_timer_ != 0) return;
  kill_timer_ = loop_.after(grace, [this] { kill_all(); });
}

void Agent::kill_all() {
  for (const auto& child : children_) kill(-child.first, SIGKILL);
}

}  // namespace convoy
