// The only file that sees spdlog: its fmt clashes with LibTorch's copy.
#include "core/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "core/error.h"
#include "core/utf8.h"

namespace convoy::log {
namespace {

spdlog::level::level_enum level_of(Level level) {
  switch (level) {
    case Level::debug:
      return spdlog::level::debug;
    case Level::info:
      return spdlog::level::info;
    case Level::warning:
      return spdlog::level::warn;
    case Level::error:
      break;
  }
  return spdlog::level::err;
}

// One per process and never destroyed: other threads may still write while the program ends.
spdlog::logger& logger() {
  static auto* const instance = [] {
    auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    auto* made = new spdlog::logger("convoy", sink);
    made->set_pattern("%Y-%m-%d %H:%M:%S.%e %l: %v");
    made->set_level(spdlog::level::info);
    made->flush_on(spdlog::level::debug);
    return made;
  }();
  return *instance;
}

}  // namespace

void set_level(Level level) { logger().set_level(level_of(level)); }

Level level_named(const std::string& name) {
  if (name == "debug") return Level::debug;
  if (name == "info") return Level::info;
  if (name == "warning") return Level::warning;
  if (name == "error") return Level::error;
  throw Error(Failure::config, str("'", name, "' is no log level; valid are debug, info, warning, error"));
}

void write(Level level, const std::string& message) {
  // As a string_view: the message is data, never a format.
  const std::string safe = terminal_safe(message);
  logger().log(level_of(level), spdlog::string_view_t(safe));
}

}  // namespace convoy::log
