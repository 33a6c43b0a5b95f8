#include "launch/describe.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "core/control/position.h"
#include "core/limits.h"
#include "launch/exit_codes.h"
#include "launch/process.h"
#include "launch/stacks.h"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds for_stacks{3000};  // a tenth of a second for each thread that does not answer
constexpr milliseconds for_its_end{2000};
constexpr size_t shown_frames = 8;

struct Described {
  ProcessEnd end;
  bool late = false;
  std::string output, error;
};

// Appends what is there, or so much of it that a pipe is empty; false at the end.
bool read_more(int fd, std::string& text) {
  char buffer[32 << 10];
  for (int reads = 0; reads < 64; ++reads) {
    const ssize_t got = read(fd, buffer, sizeof buffer);
    if (got > 0)
      text.append(buffer, static_cast<size_t>(got));
    else if (got == 0)
      return false;
    else if (errno != EINTR)
      return errno == EAGAIN || errno == EWOULDBLOCK;
  }
  return true;
}

// One that was started, its pipes and its end.
class Child {
 public:
  Child(const StartedProcess& process, std::string input) : process_(process), input_(std::move(input)) {
    fcntl(process_.input, F_SETFL, O_NONBLOCK);
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &ignore, &before_);  // it may end before it has read all
  }
  ~Child() {
    if (process_.input >= 0) close(process_.input);
    sigaction(SIGPIPE, &before_, nullptr);
    close(process_.output);
    close(process_.error);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Until it has ended, or `told` is true of what it has said, or so long. Whether that came in time. Its end counts and not
  // that of its pipes, which a process that it has left behind may keep open.
  template <class Told>
  bool wait(milliseconds limit, const Told& told) {
    const auto until = Clock::now() + limit;
    for (;;) {
      write_more();
      const bool ended = has_ended();  // then all that it has written is in the pipes
      if (output_open_) output_open_ = read_more(process_.output, output);
      if (error_open_) error_open_ = read_more(process_.error, error);
      if (ended || told()) return true;
      const auto left = std::chrono::duration_cast<milliseconds>(until - Clock::now());
      if (left <= milliseconds::zero()) return false;
      const auto pause = static_cast<int>(std::min(left, milliseconds(output_open_ || error_open_ ? 100 : 1)).count());
      pollfd fds[3] = {{output_open_ ? process_.output : -1, POLLIN, 0},
                       {error_open_ ? process_.error : -1, POLLIN, 0},
                       {process_.input, POLLOUT, 0}};
      poll(fds, 3, std::max(pause, 1));
    }
  }
  bool wait(milliseconds limit) {
    return wait(limit, [] { return false; });
  }
  void signal(int number) const { kill(process_.pid, number); }
  void kill_all() const { kill(-process_.pid, SIGKILL); }
  // As far as it is known: one that sleeps in the kernel cannot be killed.
  ProcessEnd end() const { return end_.value_or(ProcessEnd{0, SIGKILL}); }

  std::string output, error;

 private:
  // One that hangs may never read what a pipe cannot hold.
  void write_more() {
    while (process_.input >= 0 && written_ < input_.size()) {
      const ssize_t written = write(process_.input, input_.data() + written_, input_.size() - written_);
      if (written > 0)
        written_ += static_cast<size_t>(written);
      else if (errno == EAGAIN || errno == EWOULDBLOCK)
        return;
      else if (errno != EINTR)
        break;
    }
    if (process_.input >= 0) close(std::exchange(process_.input, -1));
  }
  bool has_ended() {
    int status = 0;
    if (!end_ && waitpid(process_.pid, &status, WNOHANG) == process_.pid) end_ = process_end(status);
    return end_.has_value();
  }

  StartedProcess process_;
  std::string input_;
  size_t written_ = 0;
  struct sigaction before_ {};
  bool output_open_ = true, error_open_ = true;
  std::optional<ProcessEnd> end_;
};

Described run(const std::vector<std::string>& command, const Json& resolved, milliseconds limit) {
  ProcessStart start;
  start.argv = command;
  start.environment = without_ranks(current_variables());
  // It measures with one thread; others would spin on cores that somebody else may need.
  start.environment["OMP_NUM_THREADS"] = "1";
  start.with_input = true;
  const int64_t kills = memory_kills();
  Child child(start_process(start), resolved.dump());
  const bool late = !child.wait(limit);
  if (late) {
    child.signal(describe_stacks_signal());
    const std::string last = str(describe_stack_line, "null\n");
    child.wait(for_stacks, [&] { return child.error.find(last) != std::string::npos; });
    child.kill_all();
    child.wait(for_its_end);
  }
  ProcessEnd end = child.end();
  if (!late) end.lack = lack_of(end, child.error, memory_kills() > kills);
  return {end, late, child.output, child.error};
}

// Takes what it said of its stacks out of `error`; a line for each thread.
std::string taken_stacks(std::string& error) {
  std::string rest, stacks;
  const std::string prefix = describe_stack_line;
  for (size_t at = 0; at < error.size();) {
    const size_t end = std::min(error.find('\n', at), error.size());
    const std::string line = error.substr(at, end - at);
    at = end + 1;
    if (line.rfind(prefix, 0) != 0) {
      rest += line + "\n";
      continue;
    }
    const Json json = Json::parse(line.substr(prefix.size()), nullptr, false);
    if (!json.is_object()) continue;
    const ThreadStack stack = stack_from_json(json);
    stacks += str("\n  ", stack.name, ": ", join(readable_stack(stack.frames, shown_frames), " < "));
  }
  error = rest;
  return stacks;
}

}  // namespace

int describe_stacks_signal() { return SIGUSR1; }

Json describe_run(const std::string& rank_program, const Json& resolved, const std::string& what, milliseconds limit) {
  std::vector<std::string> command{rank_program, "--describe"};
  if (!what.empty()) command.push_back(what);
  Described described = run(command, resolved, limit);
  if (described.late) {
    const std::string stacks = taken_stacks(described.error);
    throw Error(Failure::hang,
                str("convoy-rank --describe did not answer within ",
                    std::chrono::duration_cast<std::chrono::seconds>(limit).count(),
                    " s: it loads LibTorch, the plugins, the data set and the model; is this machine busy, or "
                    "the data on a slow disk? Try again",
                    stacks.empty() ? "; it did not say where it was, as one does that is still loading its libraries"
                                   : ". Where it was:" + stacks));
  }
  if (described.end.ok()) return Json::parse(described.output);
  const std::string message = described.error.substr(0, described.error.find_last_not_of('\n') + 1);
  const std::string who =
      str("convoy-rank --describe, which loads the plugins, the data set and the model, ", describe(described.end));
  if (!described.end.lack.empty()) throw Error(Failure::out_of_memory, str(who, ": ", described.end.lack));
  if (described.end.signal == 0) throw Error(failure_of_exit(described.end.code), message.empty() ? who : message);
  if (described.end.signal == SIGKILL)
    throw Error(Failure::training, str(who, "; it may have been out of memory: `dmesg` tells, as root"));
  throw Error(Failure::training, str(who, message.empty() ? "" : ":\n", message));
}

}  // namespace convoy
