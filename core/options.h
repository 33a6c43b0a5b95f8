// Options: what a user can write, described once. Reading, checking, `convoy list`, --help and docs/config.md all come
// from these descriptions. Without LibTorch.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"

namespace convoy {

// Values keep the order in which they were described, so that resolved files are stable.
using Json = nlohmann::ordered_json;

enum class OptionType {
  boolean,
  integer,
  real,
  text,
  choice,     // one of `choices`
  duration,   // "90s", "1.5 min", "2h"; value in seconds as real
  bytes,      // "512 MiB", "2GB"; value in bytes as integer
  interval,   // "100 steps", "1 epoch", "never"; value as {"every": n, "unit": "steps"|"epochs"|"never"}
  list,       // of `items`
  section,    // a map of `options`
  component,  // a map {name: X, …options of X}, X from the catalogue `catalogue`
  map,        // free keys, each value as `items`
  any         // checked by its owner
};

struct Option {
  std::string name;
  OptionType type = OptionType::text;
  std::string help;         // one line, shown by `convoy list` and the reference page
  Json fallback = nullptr;  // default value, already in the form of `type`; null: none
  bool required = false;
  bool nullable = false;          // may be written as ~ / null, meaning "not set"
  std::string unit;               // "rows", "MiB", …
  std::optional<double> minimum;  // inclusive
  std::optional<double> maximum;  // inclusive
  bool exclusive_minimum = false;
  std::vector<std::string> choices;
  bool also_auto = false;  // the word `auto` is valid beside the type; value is the string "auto"
  std::string catalogue;   // component: "model", "data", …; text: the value is a name from that catalogue
  // section: its keys. list, map: exactly one, describing an item. component: keys that every entry takes beside its own.
  std::vector<Option> options;
};

// Values of one component, section or file, checked against its options and with every default filled in. Those of a
// component hold its "name" too. What was left out and has no default is null.
// Getters never fail for options read as they are described; else ConfigError at the component, for its author.
class Options {
 public:
  Options() = default;
  explicit Options(Json values, std::map<std::string, Mark> marks = {}, std::string path = "");

  bool has(const std::string& name) const;  // present and not null
  bool is_auto(const std::string& name) const;
  bool boolean(const std::string& name) const;
  int64_t integer(const std::string& name) const;
  double real(const std::string& name) const;
  const std::string& text(const std::string& name) const;
  std::vector<int64_t> integers(const std::string& name) const;
  std::vector<double> reals(const std::string& name) const;
  std::vector<std::string> texts(const std::string& name) const;
  Options section(const std::string& name) const;                // a map or component; empty when null
  std::vector<Options> sections(const std::string& name) const;  // a list of maps
  const Json& json() const { return values_; }
  const Json& at(const std::string& name) const;

  // Where the user wrote it (key path below this object), or where its parent stands.
  Mark mark(const std::string& name) const;
  const std::map<std::string, Mark>& marks() const { return marks_; }
  const std::string& path() const { return path_; }
  // For checks that go beyond a type ("dropout must be below 1 when …"): throws ConfigError at that key.
  [[noreturn]] void fail(const std::string& name, const std::string& reason) const;

 private:
  Json values_ = Json::object();
  std::map<std::string, Mark> marks_;  // key path "a.b.2" → mark; "" is the object itself
  std::string path_;                   // of this object within the file, for messages
};

// What a folder offers by one name. Folders extend it (strategies add plan and cost).
struct Entry {
  std::string name;
  std::string help;
  std::vector<Option> options;
  // What no option can tell alone: those that contradict each other. Throws ConfigError (Options::fail). Null: nothing.
  std::function<void(const Options&)> check = nullptr;
};

}  // namespace convoy
