// Names of failure kinds and the common form of messages.
#include "core/base/error.h"

#include <array>
#include <utility>

namespace convoy {
namespace {

constexpr std::array<std::pair<Failure, const char*>, 16> names{{
    {Failure::config, "config"},
    {Failure::command_line, "command_line"},
    {Failure::corrupt_data, "corrupt_data"},
    {Failure::device_missing, "device_missing"},
    {Failure::training, "training"},
    {Failure::out_of_memory, "out_of_memory"},
    {Failure::output, "output"},
    {Failure::io, "io"},
    {Failure::rendezvous, "rendezvous"},
    {Failure::disagreement, "disagreement"},
    {Failure::refused, "refused"},
    {Failure::no_progress, "no_progress"},
    {Failure::hang, "hang"},
    {Failure::peer_lost, "peer_lost"},
    {Failure::stopped, "stopped"},
    {Failure::internal, "internal"},
}};

std::string message_with_location(const SourceLocation& location, const std::string& key, const std::string& reason) {
  std::string message;
  if (!location.file.empty()) message += to_string(location) + ": ";
  if (!key.empty()) message += key + ": ";
  return message + reason;
}

}  // namespace

const char* name_of(Failure kind) {
  for (const auto& entry : names) {
    if (entry.first == kind) return entry.second;
  }
  return "internal";
}

Failure failure_named(const std::string& name) {
  for (const auto& entry : names) {
    if (name == entry.second) return entry.first;
  }
  return Failure::internal;
}

std::string to_string(const SourceLocation& location) {
  // A value from --set has no line.
  if (location.line == 0) return location.file;
  return str(location.file, ":", location.line, ":", location.column);
}

ConfigError::ConfigError(const SourceLocation& location, const std::string& key, const std::string& reason,
                         Failure kind)
    : Error(kind, message_with_location(location, key, reason)), location_(location), key_(key), reason_(reason) {}

void check_failed(const char* condition, const char* file, int line, const std::string& message) {
  std::string what = str("defect of convoy: ", message);
  if (!message.empty()) what += " ";
  throw Error(Failure::internal, what, "(", condition, " is false at ", file, ":", line, "); please report it");
}

}  // namespace convoy
