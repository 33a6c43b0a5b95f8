// `convoy agent`: the far end of `convoy run --hosts`, started there by a remote shell.
//
// It says what its host has, is told which ranks to start and where the control channel is, and is then their parent as
// any other agent: they end when the channel is lost, when the remote shell is gone, or when all is done.
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/log.h"
#include "core/version.h"
#include "launch/agent_messages.h"
#include "launch/exit_codes.h"
#include "launch/run_modes.h"
#include "launch/topology.h"

namespace convoy {
namespace {

// The lines of the standard input, waited for in the loop: whoever started this may be killed before it writes them.
class InputLines {
 public:
  explicit InputLines(EventLoop& loop) : loop_(loop) {}

  // The next line, or nothing at the end.
  std::optional<std::string> next() {
    bool stopped = false;
    loop_.on_signal([&](int) { stopped = true; });
    loop_.on_readable(STDIN_FILENO, [this] { read_some(); });
    loop_.run_until([&] { return ended_ || stopped || text_.find('\n') != std::string::npos; });
    loop_.forget(STDIN_FILENO);
    const size_t end = text_.find('\n');
    if (end == std::string::npos) return std::nullopt;
    const std::string line = text_.substr(0, end);
    text_.erase(0, end + 1);
    return line;
  }

 private:
  void read_some() {
    char bytes[4096];
    const ssize_t got = read(STDIN_FILENO, bytes, sizeof bytes);
    if (got > 0) text_.append(bytes, static_cast<size_t>(got));
    if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN)) ended_ = true;
  }

  EventLoop& loop_;
  std::string text_;
  bool ended_ = false;
};

void say(const RemoteHello& hello) {
  const std::string line = to_line(hello);
  fputs(line.c_str(), stdout);
  fflush(stdout);
}

// What keeps ranks from being started here; "": nothing.
std::string problem_with(const RemoteRequest& request) {
  if (request.version != version)
    return str(own_path(), " is version ", version, " there and ", request.version,
               " here; install one build on all hosts");
  if (chdir(request.folder.c_str()) != 0)
    return str("cannot work in ", request.folder, " there: ", strerror(errno),
               "; it needs the folder in which `convoy run` was typed, shared or under the same path");
  return "";
}

}  // namespace

int run_for_another_host(EventLoop& loop) {
  InputLines input(loop);
  const std::optional<std::string> first = input.next();
  if (!first)
    throw Error(Failure::command_line,
                "convoy agent is what `convoy run --hosts` starts on other hosts, not a command to type");
  const RemoteRequest request = remote_request(*first);
  RemoteHello hello;
  hello.version = version;
  hello.problem = problem_with(request);
  AgentRequest agent;
  if (hello.problem.empty()) try {
      agent.rank_program = rank_program();
      hello.host = this_host({request.gpus, false});
      hello.interfaces = interfaces_here();
    } catch (const Error& error) {
      hello.problem = error.what();
    }
  say(hello);
  if (!hello.problem.empty()) return exit_code::rendezvous;
  const std::optional<std::string> second = input.next();
  if (!second) return exit_code::rendezvous;  // it found a reason not to start, and has told it
  const RemotePlan plan = remote_plan(*second);
  agent.as.launcher = Launcher::convoy;
  agent.as.rank = plan.processes.at(0);
  agent.as.size = plan.size;
  agent.as.channel = plan.channel;
  agent.processes = plan.processes;
  agent.input = STDIN_FILENO;
  agent.variables = without_ranks(current_variables());
  for (const auto& [name, value] : request.environment) agent.variables[name] = value;
  return run_as_agent(loop, agent, hello.host);
}

}  // namespace convoy
