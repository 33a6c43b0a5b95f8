#include "launch/prepare/describe.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <iostream>
#include <optional>
#include <utility>
#include <vector>

#include "backends/catalogue/catalogue.h"
#include "core/control/exit_codes.h"
#include "core/data/catalogue/catalogue.h"
#include "core/files/files.h"
#include "core/files/limits.h"
#include "core/losses/catalogue/catalogue.h"
#include "core/optim/catalogue/catalogue.h"
#include "core/rank_state/position.h"
#include "launch/diagnose/stall_report.h"
#include "launch/farm/schedule/options.h"
#include "launch/process/process.h"
#include "models/catalogue/catalogue.h"
#include "strategies/plans/catalogue.h"

namespace convoy {

Catalogues all_catalogues() {
  Catalogues all;
  all.kinds["model"] = model_catalogue();
  all.kinds["data"] = dataset_catalogue();
  all.kinds["transform"] = transform_catalogue();
  all.kinds["loss"] = loss_catalogue();
  all.kinds["optimizer"] = optimizer_catalogue();
  all.kinds["schedule"] = schedule_catalogue();
  all.kinds["strategy"] = strategy_entries();
  all.kinds["strategy"].push_back(farm_entry());
  std::vector<Entry>& backends = all.kinds["backend"];
  for (const BackendEntry& backend : backend_catalogue()) backends.push_back(backend);
  return all;
}

void check_plugins(RunConfig& config, const std::string& rank_program) {
  std::vector<std::pair<std::string, std::string>> named;  // key, path
  for (size_t i = 0; i < config.plugins.size(); ++i) named.emplace_back(str("plugins.", i), config.plugins[i]);
  if (config.model.options.has("plugin")) named.emplace_back("model.plugin", config.model.options.text("plugin"));
  if (named.empty()) return;
  for (const auto& [key, path] : named) {
    try {
      trusted_plugin_file(path);
    } catch (const Error& error) {
      throw ConfigError(location_of(config.resolved, key), key, error.what(), error.kind());
    }
  }
  const Json described = describe_run(rank_program, config);
  const std::vector<std::string> warnings = config.warnings;
  config = RunConfig::from_resolved(described.at("config"));
  config.warnings = warnings;
}

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds for_stacks{3000};  // each thread that does not answer takes a tenth of a second
constexpr milliseconds for_its_end{2000};
constexpr size_t shown_frames = 8;

struct DescribeResult {
  ProcessEnd end;
  bool late = false;
  std::string output, error;
};

// Appends available bytes, at most 64 buffers; false at the end of the stream.
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

// A started process with its pipes and its end.
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

  // Waits until the process has ended, or until `done` returns true; false if the limit passes first. The end of the
  // process counts, not that of its pipes: its children may keep them open.
  template <class Done>
  bool wait(milliseconds limit, const Done& done) {
    const auto until = Clock::now() + limit;
    for (;;) {
      write_more();
      const bool ended = has_ended();  // then all that it has written is in the pipes
      if (output_open_) output_open_ = read_more(process_.output, output);
      if (error_open_) error_open_ = read_more(process_.error, error);
      if (ended || done()) return true;
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
  // End of the process; SIGKILL if it sleeps in the kernel and cannot be killed.
  ProcessEnd end() const { return end_.value_or(ProcessEnd{0, SIGKILL}); }

  std::string output, error;

 private:
  // Writes without blocking: a process that hangs may never read more than the pipe holds.
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

DescribeResult run(const std::vector<std::string>& command, const Json& resolved, milliseconds limit) {
  ProcessStart start;
  start.argv = command;
  start.environment = without_ranks(current_variables());
  // It measures with one thread; more threads would spin on cores that other processes may need.
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

// Moves the stack lines out of `error`; returns a line for each thread.
std::string take_stacks(std::string& error) {
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
    const ThreadStack stack = json.get<ThreadStack>();
    stacks += str("\n  ", stack.name, ": ", join(readable_stack(stack.frames, shown_frames), " < "));
  }
  error = rest;
  return stacks;
}

std::string plugins_of(const RunConfig& config) {
  std::vector<std::string> paths = config.plugins;
  if (config.model.options.has("plugin")) paths.push_back(config.model.options.text("plugin"));
  return join(paths, ", ");
}

std::string without_newlines_at_end(const std::string& text) { return text.substr(0, text.find_last_not_of('\n') + 1); }

// The last line is the answer, or the end of an error: a plugin may have printed lines before.
Json answer_in(const DescribeResult& described) {
  const std::string lines = without_newlines_at_end(described.output);
  return Json::parse(lines.substr(lines.rfind('\n') + 1), nullptr, false);
}

// A plugin's code can end the process with any exit code and output. So convoy-rank marks its own errors.
[[noreturn]] void fail_without_answer(const DescribeResult& described, const std::string& plugins) {
  const std::string message = without_newlines_at_end(described.error);
  throw Error(Failure::training, "convoy-rank --describe ended without an answer",
              described.end.code == 0 ? "" : str(", with exit code ", described.end.code), ": ",
              plugins.empty() ? "a library that it loads" : "the code of a plugin (" + plugins + ")",
              " ended the process, for example by _exit; throw an exception instead",
              message.empty() ? "" : str(". It printed:\n", message));
}

// True if convoy-rank itself chose the exit code: it reported an error (launch/rank/main.cpp) or a crash.
bool ended_itself(const DescribeResult& described) {
  const Json answer = answer_in(described);
  if (answer.is_object() && answer.contains(describe_failed_key)) return true;
  const std::string message = without_newlines_at_end(described.error);
  return begins_with(message.substr(message.rfind('\n') + 1), "convoy-rank: ");
}

// Throws for a message of the dynamic linker that it found no LibTorch.
void refuse_without_libtorch(const std::string& message) {
  const auto has = [&](const char* part) { return message.find(part) != std::string::npos; };
  if (has("error while loading shared libraries: lib") && (has("torch") || has("libc10")))
    throw Error(Failure::config, message,
                "; name the LibTorch that convoy was built with: Torch_DIR=/path/to/libtorch convoy …");
}

Json answer_of(const DescribeResult& described, const std::string& plugins) {
  const Json answer = answer_in(described);
  if (!answer.is_object()) fail_without_answer(described, plugins);
  return answer;
}

}  // namespace

int describe_stacks_signal() { return SIGUSR1; }

Json describe_run(const std::string& rank_program, const RunConfig& config, const std::string& what,
                  std::optional<milliseconds> given_limit) {
  std::vector<std::string> command{rank_program, "--describe"};
  if (!what.empty()) command.push_back(what);
  const milliseconds limit = given_limit.value_or(
      std::chrono::duration_cast<milliseconds>(std::chrono::duration<double>(config.launch.rendezvous)));
  DescribeResult described = run(command, config.resolved, limit);
  if (described.late) {
    const std::string stacks = take_stacks(described.error);
    throw Error(Failure::hang, "convoy-rank --describe did not answer within ",
                human_seconds(std::chrono::duration<double>(limit).count()),
                " (launch.rendezvous): it loads LibTorch, the plugins, the data set and the model; is this machine "
                "busy, or the data on a slow disk? Try again, or allow more time with --set launch.rendezvous=…",
                stacks.empty() ? "; it reported no stack: it may still load its libraries" : ". Its stacks:" + stacks);
  }
  if (described.end.ok()) return answer_of(described, plugins_of(config));
  const std::string message = without_newlines_at_end(described.error);
  const std::string who =
      str("convoy-rank --describe, which loads the plugins, the data set and the model, ", end_text(described.end));
  if (!described.end.lack.empty() && described.end.code != exit_code::out_of_memory)
    throw Error(Failure::out_of_memory, who, ": ", described.end.lack);
  refuse_without_libtorch(message);
  if (described.end.signal == 0) {
    const bool started = described.end.code != exit_code::not_found && described.end.code != exit_code::cannot_execute;
    if (started && !ended_itself(described)) fail_without_answer(described, plugins_of(config));
    throw Error(failure_of_exit(described.end.code), message.empty() ? who : message);
  }
  if (described.end.signal == SIGKILL)
    throw Error(Failure::training, who, "; it may have been out of memory: see `dmesg` as root");
  throw Error(Failure::training, who, message.empty() ? "" : ":\n", message);
}

Json ask_rank_program(const std::string& rank_program, const std::vector<std::string>& arguments, const Json& input,
                      milliseconds limit) {
  std::vector<std::string> command{rank_program};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const std::string what = "convoy-rank " + join(arguments, " ");
  DescribeResult result = run(command, input, limit);
  const std::string stacks = take_stacks(result.error);
  if (result.late)
    throw Error(Failure::hang, what, " did not end within ", human_seconds(limit),
                stacks.empty() ? "" : ". Its stacks:" + stacks);
  const std::string message = without_newlines_at_end(result.error);
  if (!result.end.ok()) {
    refuse_without_libtorch(message);
    if (!result.end.lack.empty() && result.end.code != exit_code::out_of_memory)
      throw Error(Failure::out_of_memory, what, " ", end_text(result.end), ": ", result.end.lack);
    if (result.end.signal == 0 && !message.empty()) throw Error(failure_of_exit(result.end.code), message);
    throw Error(Failure::training, what, " ", end_text(result.end), message.empty() ? "" : ":\n", message);
  }
  if (!message.empty()) std::cerr << message << '\n';
  return answer_of(result, "");
}

}  // namespace convoy
