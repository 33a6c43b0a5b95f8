// Failures. Every message says what, where (file, host, rank, tensor, step), why, and what to type next.
//
// Three kinds of failure exist: the user's (ConfigError and other Errors with a kind of their own), a peer's (CommError),
// and ours (CONVOY_CHECK). The kind, not the class, decides the exit code: see launch/exit_codes.h.
#pragma once
#include <stdexcept>
#include <string>

#include "core/text.h"

namespace convoy {

// What failed. One exit code each (launch/exit_codes.h).
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
  peer_lost,       // never a cause: this rank only noticed that another went away
  stopped,         // 143: asked to stop
  internal         // 70: a CONVOY_CHECK failed
};

const char* name_of(Failure kind);
Failure failure_named(const std::string& name);  // inverse of name_of; `internal` for an unknown name

class Error : public std::runtime_error {
 public:
  Error(Failure kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  Failure kind() const { return kind_; }

 private:
  Failure kind_;
};

// Where in the user's text something stands. line and column count from 1; 0 is unknown. `file` may be "--set".
struct Mark {
  std::string file;
  int line = 0;
  int column = 0;
};
std::string to_string(const Mark& mark);  // "file:line:column"

// what() is "file:line:column: key: reason", and ends with "; did you mean X?" where there is a near valid one.
class ConfigError : public Error {
 public:
  ConfigError(const Mark& mark, const std::string& key, const std::string& reason, Failure kind = Failure::config);
  const Mark& mark() const { return mark_; }
  const std::string& key() const { return key_; }

 private:
  Mark mark_;
  std::string key_;
};

// A peer went away, was too slow, or called something else. `rank` is the peer's where known, else -1.
class CommError : public Error {
 public:
  CommError(Failure kind, int rank, const std::string& message) : Error(kind, message), rank_(rank) {}
  int rank() const { return rank_; }

 private:
  int rank_;
};

[[noreturn]] void check_failed(const char* condition, const char* file, int line, const std::string& message);

}  // namespace convoy

// An invariant of our own. Failing it is a defect of convoy, never of the user's input.
#define CONVOY_CHECK(condition, ...)                                                                      \
  do {                                                                                                    \
    if (!(condition)) ::convoy::check_failed(#condition, __FILE__, __LINE__, ::convoy::str(__VA_ARGS__)); \
  } while (false)
