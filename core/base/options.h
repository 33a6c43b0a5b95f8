// Options that a user can write, each described once. Reading, checking, `convoy list`, --help and docs/config.md all
// use these descriptions. Without LibTorch.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"

namespace convoy {

// JSON that keeps the order of keys, so that resolved files are stable.
using Json = nlohmann::ordered_json;

// Conversions between a struct and a JSON object with its members as keys, in this order.
#define CONVOY_JSON(Type, ...)                                                          \
  inline void to_json(::convoy::Json& nlohmann_json_j, const Type& nlohmann_json_t) {   \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NLOHMANN_JSON_TO, __VA_ARGS__))            \
  }                                                                                     \
  inline void from_json(const ::convoy::Json& nlohmann_json_j, Type& nlohmann_json_t) { \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NLOHMANN_JSON_FROM, __VA_ARGS__))          \
  }

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
  any         // several types; the component that owns the option checks it
};

struct Option {
  std::string name;
  OptionType type = OptionType::text;
  std::string help;         // one line, for `convoy list` and the reference page
  Json fallback = nullptr;  // default value, in the form of `type`; null: none
  bool required = false;
  bool nullable = false;          // may be written as ~ / null, meaning "not set"
  std::string unit;               // "rows", "MiB", …
  std::optional<double> minimum;  // inclusive
  std::optional<double> maximum;  // inclusive
  bool exclusive_minimum = false;
  std::vector<std::string> choices;
  bool also_auto = false;  // `auto` is valid too; the value is then the string "auto"
  std::string catalogue;   // component: "model", "data", …; text: the value is a name from that catalogue
  std::string types = "";  // any: the types that it takes, such as "number or list of numbers"
  // section: its keys. list, map: exactly one option that describes an item. component: keys that all entries share.
  std::vector<Option> options;
};

// Source location of a key path, or of the nearest section around it.
SourceLocation location_of(const std::map<std::string, SourceLocation>& marks, std::string path);

// Values of one component, section or file: checked against its options, with every default filled in. Values of a
// component include its "name". An omitted value without a default is null.
// Getters do not fail for options that are read as described. Otherwise they throw ConfigError at the component, for
// its author.
class Options {
 public:
  Options() = default;
  explicit Options(Json values, std::map<std::string, SourceLocation> marks = {}, std::string path = "");

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

  // Source location of a key (path below this object), or of its parent.
  SourceLocation mark(const std::string& name) const;
  const std::map<std::string, SourceLocation>& marks() const { return marks_; }
  const std::string& path() const { return path_; }
  // Throws ConfigError at that key, for checks beyond the type ("dropout must be below 1 if …").
  [[noreturn]] void fail(const std::string& name, const std::string& reason) const;

 private:
  Json values_ = Json::object();
  std::map<std::string, SourceLocation> marks_;  // by key path "a.b.2"; "" is the object itself
  std::string path_;                             // key path of this object in the file, for messages
};

// Entry of a catalogue: a name and its options. Folders extend it (strategies add plan and cost).
struct Entry {
  std::string name;
  std::string help;
  std::vector<Option> options;
  // Finds options that contradict each other. Throws ConfigError (Options::fail). Null: no check.
  std::function<void(const Options&)> check = nullptr;
};

}  // namespace convoy
