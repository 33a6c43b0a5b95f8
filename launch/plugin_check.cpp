#include "launch/plugin_check.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
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

void check_owner(const std::string& path, const std::string& what) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) throw Error(Failure::refused, str(what, " ", path, ": ", strerror(errno)));
  if (status.st_uid != geteuid() && status.st_uid != 0)
    throw Error(Failure::refused, str(what, " ", path, " belongs to user ", status.st_uid,
                                      ", who could run code as you; copy it to a folder of your own"));
  // In a folder with the sticky bit, as /tmp has, others cannot replace a file that is not theirs.
  const bool sticky_folder = S_ISDIR(status.st_mode) && (status.st_mode & S_ISVTX) != 0;
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0 && !sticky_folder)
    throw Error(Failure::refused, str(what, " ", path, " can be written by others; type `chmod go-w ", path, "`"));
}

struct Described {
  ProcessEnd end;
  std::string output, error;
};

Described describe(const std::string& rank_program, const Json& resolved) {
  ProcessStart start;
  start.argv = {rank_program, "--describe"};
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
    if (std::chrono::steady_clock::now() > until) kill(-process.pid, SIGKILL);
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

void check_plugin_file(const std::string& path, const Mark& mark) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0)
    throw ConfigError(mark, "plugin", str(path, ": ", strerror(errno), "; build it first, see docs/extending.md"));
  if (!S_ISREG(status.st_mode)) throw ConfigError(mark, "plugin", str(path, " is no file"));
  check_owner(path, "plugin");
  check_owner(path.substr(0, path.rfind('/') + 1), "the plugin's folder");
}

void check_plugins(RunConfig& config, const std::string& rank_program, const std::string& file) {
  std::vector<std::string> paths = config.plugins;
  const Json& model = config.resolved.at("model");
  if (model.contains("plugin") && model["plugin"].is_string()) paths.push_back(model["plugin"].get<std::string>());
  if (paths.empty()) return;
  for (const std::string& path : paths) check_plugin_file(path, {file, 0, 0});
  const Described described = describe(rank_program, config.resolved);
  if (described.end.ok()) {
    const std::vector<std::string> warnings = config.warnings;
    config = RunConfig::from_resolved(Json::parse(described.output).at("config"));
    config.warnings = warnings;
    return;
  }
  std::string message = described.error.substr(0, described.error.find_last_not_of('\n') + 1);
  if (message.empty()) message = str("convoy-rank --describe ", describe(described.end));
  const Failure kind = described.end.signal != 0 ? Failure::config : failure_of_exit(described.end.code);
  throw Error(kind, message);
}

}  // namespace convoy
