// The log of one process. core/log.cpp alone knows spdlog.
//
// Role: rank processes write to stderr (the launcher stores it in logs/rankN.log and forwards it, prefixed host:rank);
// `convoy` writes to its own stderr. Thread-safe. Lines carry time and level; nothing is written below the set level.
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
