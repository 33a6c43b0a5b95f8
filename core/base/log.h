// The log of one process. Only core/base/log.cpp includes spdlog.
// Rank processes write to stderr: the supervisor stores it in logs/rankN.log and forwards it with the prefix
// host:rank. `convoy` writes to stderr.
// Thread-safe. Each line has its time and level. Messages below the set level are dropped.
#pragma once
#include <string>

namespace convoy::log {

enum class Level { debug, info, warning, error };

void set_level(Level level);
Level level_named(const std::string& name);  // throws Error(config) with the valid names
void write(Level level, const std::string& message);

inline void debug(const std::string& message) { write(Level::debug, message); }
inline void info(const std::string& message) { write(Level::info, message); }
inline void warning(const std::string& message) { write(Level::warning, message); }
inline void error(const std::string& message) { write(Level::error, message); }

}  // namespace convoy::log
