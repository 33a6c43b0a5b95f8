// Compares two resolved configurations.

#include <algorithm>
#include <functional>

#include "core/config/node.h"
#include "core/config/run_config.h"

namespace convoy {
namespace {

bool covers(const std::string& prefix, const std::string& path) {
  return path == prefix ||
         (path.size() > prefix.size() && path.compare(0, prefix.size(), prefix) == 0 && path[prefix.size()] == '.');
}

bool is_ignored(const std::string& path, const std::vector<std::string>& ignored) {
  return std::any_of(ignored.begin(), ignored.end(), [&](const std::string& prefix) { return covers(prefix, path); });
}

// Null and empty lists equal a missing key: older versions did not have it, newer ones fill it in.
bool is_unset(const Json& value) { return value.is_null() || (value.is_array() && value.empty()); }

// Called with a key and its two values; null for a missing one.
using Visit = std::function<void(const std::string&, const Json* a, const Json* b)>;

void walk(const Json& a, const Json& b, const std::string& path, const std::vector<std::string>& ignored,
          const Visit& visit) {
  if (is_ignored(path, ignored) || a == b) return;
  // An interval is one value for the user, although it has two fields.
  if (a.is_object() && b.is_object() && !is_interval(a)) {
    for (const auto& entry : a.items()) {
      const std::string key = below(path, entry.key());
      if (b.contains(entry.key()))
        walk(entry.value(), b[entry.key()], key, ignored, visit);
      else if (!is_ignored(key, ignored) && !is_unset(entry.value()))
        visit(key, &entry.value(), nullptr);
    }
    for (const auto& entry : b.items()) {
      const std::string key = below(path, entry.key());
      if (!a.contains(entry.key()) && !is_ignored(key, ignored) && !is_unset(entry.value()))
        visit(key, nullptr, &entry.value());
    }
    return;
  }
  if (a.is_array() && b.is_array() && a.size() == b.size()) {
    for (size_t i = 0; i < a.size(); ++i) walk(a[i], b[i], below(path, str(i)), ignored, visit);
    return;
  }
  visit(path, &a, &b);
}

bool is_written(const SourceLocations& locations, const std::string& key) {
  const auto found = locations.lower_bound(key);
  return found != locations.end() && covers(key, found->first);
}

// True if a section around the key has another name now: its options belong to another component.
bool name_differs(const Json& was, const Json& is, const std::string& key) {
  const Json *before = &was, *now = &is;
  std::vector<std::string> parts = split(key, '.');
  parts.pop_back();
  for (const std::string& part : parts) {
    if (!before->is_object() || !now->is_object() || !before->contains(part) || !now->contains(part)) return false;
    before = &(*before)[part];
    now = &(*now)[part];
    if (before->is_object() && now->is_object() && before->contains("name") && now->contains("name") &&
        (*before)["name"] != (*now)["name"])
      return true;
  }
  return false;
}

std::string value_text(const Json& value) {
  if (value.is_null()) return "none";
  if (is_interval(value)) return interval_text(value);
  return shortened(value.is_string() ? value.get<std::string>()
                                     : value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

void flatten(const Json& map, const std::string& prefix, Json& into) {
  for (const auto& [key, value] : map.items())
    if (value.is_object() && !value.empty())
      flatten(value, below(prefix, key), into);
    else
      into[below(prefix, key)] = value;
}

// The configuration without locations, and with key paths in a farm's grid, which may have key paths or maps.
Json comparable(const Json& resolved) {
  Json copy = without_locations(resolved);
  const Json::json_pointer grid("/strategy/grid");
  if (!copy.is_object() || !copy.contains(grid) || !copy[grid].is_object()) return copy;
  Json flat = Json::object();
  flatten(copy[grid], "", flat);
  copy[grid] = std::move(flat);
  return copy;
}

}  // namespace

Json without_locations(const Json& resolved) {
  Json copy = resolved;
  if (copy.is_object()) copy.erase("marks");
  return copy;
}

std::string first_difference(const Json& a, const Json& b, const std::vector<std::string>& ignored) {
  std::string first;
  walk(comparable(a), comparable(b), "", ignored, [&](const std::string& key, const Json*, const Json*) {
    if (first.empty()) first = key;
  });
  return first;
}

std::vector<Difference> differences(const Json& was, const Json& is, const std::vector<std::string>& ignored) {
  const bool marked = is.is_object() && is.contains("marks");
  const SourceLocations locations = marked ? locations_of(is) : SourceLocations();
  std::vector<Difference> found;
  walk(comparable(was), comparable(is), "", ignored, [&](const std::string& key, const Json* a, const Json* b) {
    const bool is_default = b != nullptr && marked && !is_written(locations, key);
    if (a == nullptr && (b->is_null() || is_default)) return;
    if (b == nullptr && (a->is_null() || name_differs(was, is, key))) return;
    found.push_back({key, a != nullptr ? *a : Json(), b != nullptr ? *b : Json()});
  });
  return found;
}

std::string to_string(const Difference& difference) {
  const std::string was = value_text(difference.was), is = value_text(difference.is);
  // The text "none" and a missing value look equal, so both sides are quoted.
  if (was == "none" && is == "none") return str(difference.key, ": ", difference.was, " -> ", difference.is);
  return str(difference.key, ": ", was, " -> ", is);
}

const std::vector<std::string>& resumable_keys() {
  static const std::vector<std::string> keys = split(
      "launch backend device log profile data.path data.changed data.item_features.path data.user_features.path "
      "data.prefetch "
      "program.0 strategy.overlap train.epochs train.max_steps train.checkpoint_every train.pause_after "
      "train.keep_last "
      "train.checkpoint_async train.on_save_error train.keep_best "
      "train.early_stop train.resume train.log_every",
      ' ');
  return keys;
}

}  // namespace convoy
