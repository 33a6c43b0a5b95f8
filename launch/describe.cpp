#include "launch/describe.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "launch/exit_codes.h"
#include "launch/lines.h"
#include "launch/process.h"

namespace convoy {
namespace {

constexpr std::chrono::seconds describe_limit{60};

struct Described {
  ProcessEnd end;
  bool late = false;
  std::string output, error;
};

Described run(const std::vector<std::string>& command, const Json& resolved) {
  ProcessStart start;
  start.argv = command;
  start.environment = without_ranks(current_variables());
  start.with_input = true;
  const StartedProcess process = start_process(start);
  const std::string input = resolved.dump();
  struct sigaction ignore {
  }, before{};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &before);  // it may end before it has read all
  for (size_t done = 0; done < input.size();) {
    const ssize_t written = write(process.input, input.data() + done, input.size() - done);
    if (written < 0 && errno != EINTR) break;
    if (written > 0) done += static_cast<size_t>(written);
  }
  sigaction(SIGPIPE, &before, nullptr);
  close(process.input);

  Described described;
  const auto until = std::chrono::steady_clock::now() + describe_limit;
  LineCutter output, error;
  bool output_open = true, error_open = true;
  while (output_open || error_open) {
    pollfd fds[2] = {{output_open ? process.output : -1, POLLIN, 0}, {error_open ? process.error : -1, POLLIN, 0}};
    poll(fds, 2, 1000);
    auto into = [](std::string& text) { return [&text](const std::string& line) { text += line + "\n"; }; };
    if (output_open) output_open = read_available(process.output, output, into(described.output));
    if (error_open) error_open = read_available(process.error, error, into(described.error));
    described.late = std::chrono::steady_clock::now() > until;
    if (described.late) kill(-process.pid, SIGKILL);
  }
  close(process.output);
  close(process.error);
  int status = 0;
  while (waitpid(process.pid, &status, 0) < 0 && errno == EINTR) {
  }
  described.end = process_end(status);
  return described;
}

}  // namespace

Json describe_run(const std::string& rank_program, const Json& resolved, const std::string& what) {
  std::vector<std::string> command{rank_program, "--describe"};
  if (!what.empty()) command.push_back(what);
  const Described described = run(command, resolved);
  if (described.end.ok()) return Json::parse(described.output);
  if (described.late)
    throw Error(Failure::hang,
                str("convoy-rank --describe did not answer within ", describe_limit.count(),
                    " s: it loads LibTorch, the plugins, the data set and the model; is this machine busy, or "
                    "the data on a slow disk? Try again"));
  std::string message = described.error.substr(0, described.error.find_last_not_of('\n') + 1);
  if (message.empty()) message = str("convoy-rank --describe ", describe(described.end));
  throw Error(described.end.signal != 0 ? Failure::config : failure_of_exit(described.end.code), message);
}

}  // namespace convoy
