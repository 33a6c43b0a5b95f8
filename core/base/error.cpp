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

std::string located(const SourceLocation& mark, const std::string& key, const std::string& reason) {
  std::string message;
  if (!mark.file.empty()) message += to_string(mark) + ": ";
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

std::string to_string(const SourceLocation& mark) {
  // A value from --set has no line.
  if (mark.line == 0) return mark.file;
  return str(mark.file, ":", mark.line, ":", mark.column);
}

ConfigError::ConfigError(const SourceLocation& mark, const std::string& key, const std::string& reason, Failure kind)
    : Error(kind, located(mark, key, reason)), mark_(mark), key_(key) {}

void check_failed(const char* condition, const char* file, int line, const std::string& message) {
  std::string what = str("defect of convoy: ", message);
  if (!message.empty()) what += " ";
  throw Error(Failure::internal, what, "(", condition, " is false at ", file, ":", line, "); please report it");
}

}  // namespace convoy
