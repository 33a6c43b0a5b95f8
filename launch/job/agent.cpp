#include "launch/job/agent.h"

#include <signal.h>
#include <unistd.h>
#include <utility>

#include "core/base/error.h"
#include "launch/machine/topology.h"

namespace convoy {
namespace {

constexpr char hello_mark[] = "convoy-hello ";

Json parsed(const std::string& line) {
  Json json = Json::parse(line, nullptr, false);
  if (!json.is_object())
    throw Error(Failure::rendezvous,
                "standard input has no request of `convoy run --hosts`; do not start an agent yourself");
  return json;
}

}  // namespace

std::string to_line(const Json& message) { return message.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

std::string to_line(const RemoteHello& hello) {
  Json message = {{"version", hello.version}};
  if (hello.problem.empty())
    message.update({{"host", hello.host}, {"interfaces", hello.interfaces}});
  else
    message["problem"] = hello.problem;
  return hello_mark + to_line(message);
}

RemoteRequest remote_request(const std::string& line) { return parsed(line).get<RemoteRequest>(); }
RemotePlan remote_plan(const std::string& line) { return parsed(line).get<RemotePlan>(); }

std::optional<RemoteHello> remote_hello(const std::string& line) {
  if (line.rfind(hello_mark, 0) != 0) return std::nullopt;
  const Json json = parsed(line.substr(sizeof hello_mark - 1));
  RemoteHello hello;
  hello.version = json.at("version").get<std::string>();
  hello.problem = json.value("problem", "");
  if (!hello.problem.empty()) return hello;
  json.at("host").get_to(hello.host);
  json.at("interfaces").get_to(hello.interfaces);
  return hello;
}

Variables forwarded(const Variables& variables) {
  static const char* const prefixes[] = {"OMP_",    "KMP_",           "GOMP_",          "MKL_", "NCCL_",
                                         "GLOO_",   "TORCH_",         "PYTORCH_",       "UCX_", "MALLOC_",
                                         "CUBLAS_", "GLIBC_TUNABLES", "LD_LIBRARY_PATH"};
  Variables kept;
  for (const auto& [name, value] : variables)
    for (const char* prefix : prefixes)
      if (name.rfind(prefix, 0) == 0) kept[name] = value;
  return kept;
}

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
  for (auto& [pid, child] : children_) close_pipes(*child);
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
  guard_.started(child->started.pid);
  Child* raw = child.get();
  loop_.on_readable(raw->started.output, [this, raw] { read(*raw, raw->started.output, raw->output); });
  loop_.on_readable(raw->started.error, [this, raw] { read(*raw, raw->started.error, raw->error); });
  children_[raw->started.pid] = std::move(child);
  return raw->started.pid;
}

void Agent::read(Child& child, int& fd, LineSplitter& splitter) {
  const LineSplitter::Sink sink = [&](const std::string& text) { line(child, text); };
  if (fd < 0 || read_available(fd, splitter, sink)) return;
  splitter.finish(sink);
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

void Agent::close_pipes(Child& child) {
  for (int* fd : {&child.started.output, &child.started.error, &child.started.input}) close_pipe(*fd);
}

void Agent::ended(pid_t pid, const ProcessEnd& end) {
  const auto found = children_.find(pid);
  if (found == children_.end()) return;  // an adopted grandchild
  const std::unique_ptr<Child> child = std::move(found->second);
  children_.erase(found);
  kill(-pid, SIGKILL);  // kills the rest of its group
  // A grandchild may keep the pipes open for ever: only the bytes that are there now count.
  read(*child, child->started.output, child->output);
  read(*child, child->started.error, child->error);
  const LineSplitter::Sink sink = [&](const std::string& text) { line(*child, text); };
  child->output.finish(sink);
  child->error.finish(sink);
  close_pipes(*child);
  ProcessEnd reported = end;
  reported.lack = lack_of(end, child->last, kills_() > older_count_);
  events_.on_end(child->process, reported);
}

void Agent::send(int process, const std::string& text) {
  for (auto& [pid, child] : children_) {
    // If the process has ended, its end gives the reason.
    if (child->process == process && child->started.input >= 0) write_text(child->started.input, text);
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

void Agent::kill_one(int process) {
  for (const auto& [pid, child] : children_)
    if (child->process == process) kill(-pid, SIGKILL);
}

void Agent::kill_all() {
  for (const auto& child : children_) kill(-child.first, SIGKILL);
}

}  // namespace convoy
