// The only file that includes spdlog: its copy of fmt clashes with LibTorch's.
#include "core/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "core/base/error.h"
#include "core/base/text.h"

namespace convoy::log {
namespace {

spdlog::level::level_enum level_of(Level level) {
  static constexpr spdlog::level::level_enum levels[] = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn,
                                                         spdlog::level::err};
  return levels[static_cast<size_t>(level)];
}

// One per process, never destroyed: other threads may still write at exit.
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
  throw Error(Failure::config, "'", name, "' is no log level; valid are debug, info, warning, error");
}

void write(Level level, const std::string& message) {
  // Pass the message as an argument, never as a format.
  const std::string safe = terminal_safe(message);
  logger().log(level_of(level), spdlog::string_view_t(safe));
}

}  // namespace convoy::log
