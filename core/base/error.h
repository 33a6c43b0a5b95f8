// Errors. Every message states what failed, where (file, host, rank, tensor, step), why, and what to type next.
//
// Errors come from the user (ConfigError and other Errors), from a peer (CommError) or from a defect of convoy
// (CONVOY_CHECK). The kind, not the class, decides the exit code: see core/control/exit_codes.h.
#pragma once
#include <stdexcept>
#include <string>
#include <type_traits>

#include "core/base/text.h"

namespace convoy {

// Kind of failure. Each has an exit code (core/control/exit_codes.h).
enum class Failure {
  config,          // 78
  command_line,    // 64
  corrupt_data,    // 65
  device_missing,  // 69
  training,        // 70: an exception or a non-finite loss in training
  out_of_memory,   // 71
  output,          // 73: directory locked or unwritable
  io,              // 74
  rendezvous,      // 75
  disagreement,    // 76: ranks differ in parameters or collectives
  refused,         // 77: for security
  no_progress,     // 93
  hang,            // 110: a time limit passed
  peer_lost,       // never a cause: this rank only noticed that a peer is gone
  stopped,         // 143: ended by a request to stop
  internal         // 70: a CONVOY_CHECK failed
};

const char* name_of(Failure kind);
Failure failure_named(const std::string& name);  // inverse of name_of; `internal` for an unknown name

class Error : public std::runtime_error {
 public:
  // The message consists of the parts, as `str` joins them.
  template <class First, class... Parts>
  Error(Failure kind, const First& first, const Parts&... parts)
      : std::runtime_error(convoy::str(first, parts...)), kind_(kind) {}
  Failure kind() const { return kind_; }

 private:
  Failure kind_;
};

// Position in the user's text. Line and column count from 1; 0 is unknown. `file` may be "--set".
struct SourceLocation {
  std::string file;
  int line = 0;
  int column = 0;
};
std::string to_string(const SourceLocation& location);  // "file:line:column"

// what() is "file:line:column: key: reason". It ends with "; did you mean X?" if a valid name is near.
class ConfigError : public Error {
 public:
  ConfigError(const SourceLocation& location, const std::string& key, const std::string& reason,
              Failure kind = Failure::config);
  // The reason consists of the parts, as `str` joins them.
  template <
      class First, class Second, class... Rest,
      class = std::enable_if_t<!std::disjunction_v<std::is_same<Second, Failure>, std::is_same<Rest, Failure>...>>>
  ConfigError(const SourceLocation& location, const std::string& key, const First& first, const Second& second,
              const Rest&... rest)
      : ConfigError(location, key, convoy::str(first, second, rest...)) {}
  const SourceLocation& location() const { return location_; }
  const std::string& key() const { return key_; }
  const std::string& reason() const { return reason_; }  // what() without location and key

 private:
  SourceLocation location_;
  std::string key_, reason_;
};

// A peer is gone, was too slow, or called another collective. `rank` is the peer's rank if known, else -1.
class CommError : public Error {
 public:
  template <class... Parts>
  CommError(Failure kind, int rank, const Parts&... parts) : Error(kind, parts...), rank_(rank) {}
  int rank() const { return rank_; }

 private:
  int rank_;
};

[[noreturn]] void check_failed(const char* condition, const char* file, int line, const std::string& message);

}  // namespace convoy

// Checks an invariant. A failure is a defect of convoy, never a mistake in the user's input.
#define CONVOY_CHECK(condition, ...)                                                                      \
  do {                                                                                                    \
    if (!(condition)) ::convoy::check_failed(#condition, __FILE__, __LINE__, ::convoy::str(__VA_ARGS__)); \
  } while (false)
