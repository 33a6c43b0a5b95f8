// Two resolved configurations against each other.
#include <algorithm>

#include "core/config/run_config.h"

namespace convoy {
namespace {

std::string below(const std::string& path, const std::string& key) { return path.empty() ? key : path + "." + key; }

bool is_ignored(const std::string& path, const std::vector<std::string>& ignored) {
  return std::any_of(ignored.begin(), ignored.end(), [&](const std::string& prefix) {
    return path == prefix ||
           (path.size() > prefix.size() && path.compare(0, prefix.size(), prefix) == 0 && path[prefix.size()] == '.');
  });
}

// `100 steps`: one value to a user, though it has two parts.
bool is_interval(const Json& value) {
  return value.is_object() && value.size() == 2 && value.contains("every") && value.contains("unit");
}

std::string difference(const Json& a, const Json& b, const std::string& path, const std::vector<std::string>& ignored) {
  if (is_ignored(path, ignored) || a == b) return "";
  if (a.is_object() && b.is_object() && !is_interval(a)) {
    for (const auto& entry : a.items()) {
      const std::string key = below(path, entry.key());
      if (!b.contains(entry.key()) && !is_ignored(key, ignored)) return key;
      if (!b.contains(entry.key())) continue;
      const std::string found = difference(entry.value(), b[entry.key()], key, ignored);
      if (!found.empty()) return found;
    }
    for (const auto& entry : b.items()) {
      const std::string key = below(path, entry.key());
      if (!a.contains(entry.key()) && !is_ignored(key, ignored)) return key;
    }
    return "";  // equal but for order or for what is ignored
  }
  if (a.is_array() && b.is_array() && a.size() == b.size()) {
    for (size_t i = 0; i < a.size(); ++i) {
      const std::string found = difference(a[i], b[i], below(path, str(i)), ignored);
      if (!found.empty()) return found;
    }
    return "";
  }
  return path;
}

}  // namespace

Json without_marks(const Json& resolved) {
  Json copy = resolved;
  if (copy.is_object()) copy.erase("marks");
  return copy;
}

std::string first_difference(const Json& a, const Json& b, const std::vector<std::string>& ignored) {
  return difference(without_marks(a), without_marks(b), "", ignored);
}

}  // namespace convoy
