#include "launch/plugin_check.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "core/plugin_file.h"
#include "launch/exit_codes.h"
#include "launch/lines.h"
#include "launch/process.h"

namespace convoy {
namespace {

constexpr std::chrono::seconds describe_limit{60};

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

void check_plugins(RunConfig& config, const std::string& rank_program) {
  std::vector<std::pair<std::string, std::string>> named;  // key, path
  for (size_t i = 0; i < config.plugins.size(); ++i) named.emplace_back(str("plugins.", i), config.plugins[i]);
  const Json& model = config.resolved.at("model");
  if (model.contains("plugin") && model["plugin"].is_string())
    named.emplace_back("model.plugin", model["plugin"].get<std::string>());
  if (named.empty()) return;
  for (const auto& [key, path] : named) {
    try {
      trusted_plugin_file(path);
    } catch (const Error& error) {
      throw ConfigError(mark_of(config.resolved, key), key, error.what(), error.kind());
    }
  }
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
