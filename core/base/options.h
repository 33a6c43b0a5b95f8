// Options that a user can write, each described once. The reader, `convoy list`, --help and docs/config.md all use
// these descriptions. Without LibTorch.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "core/base/error.h"

namespace convoy {

// True for the JSON type of core/base/json.h.
template <class T>
struct IsJson : std::false_type {};

// A value of a configuration: null, a boolean, a number, a text, a list or a map. Immutable; copies share it.
class OptionValue {
 public:
  OptionValue(std::nullptr_t = nullptr);
  OptionValue(const char* text);
  OptionValue(const std::string& text);
  OptionValue(std::initializer_list<OptionValue> list);
  template <class Number, std::enable_if_t<std::is_arithmetic_v<Number>, int> = 0>
  OptionValue(Number number) : held_(hold(static_cast<Widest<Number>>(number))) {}
  template <class J, class = std::enable_if_t<IsJson<J>::value>>
  OptionValue(J json);

  // Declared here only: core/base/json.h has the type and the definition.
  decltype(auto) json() const;

 private:
  struct Held;
  template <class Number>
  using Widest =
      std::conditional_t<std::is_same_v<Number, bool>, bool,
                         std::conditional_t<std::is_floating_point_v<Number>, double,
                                            std::conditional_t<std::is_unsigned_v<Number>, uint64_t, int64_t>>>;
  template <class Number>
  static std::shared_ptr<const Held> hold(Number number);  // bool, int64_t, uint64_t, double

  std::shared_ptr<const Held> held_;
};

enum class OptionType {
  boolean,
  integer,
  real,
  text,
  choice,     // one of `choices`
  duration,   // "90s", "1.5 min", "2h"; value in seconds as real
  bytes,      // "512 MiB", "2GB"; value in bytes as integer
  interval,   // "100 steps", "1 epoch", "never"; value as {"every": n, "unit": "steps"|"epochs"|"never"}
  list,       // list; `options` describes an element
  section,    // a map of `options`
  component,  // a map {name: X, …options of X}, X from the catalogue `catalogue`
  map,        // free keys; `options` describes a value
  any         // several types; the component that has the option checks it
};

struct Option {
  std::string name;
  OptionType type = OptionType::text;
  std::string help;      // one line, for `convoy list` and the reference page
  OptionValue fallback;  // default value, in the form of `type`; null: none
  bool required = false;
  bool nullable = false;          // may be written as ~ / null, meaning "not set"
  std::string unit;               // "rows", "MiB", …
  std::optional<double> minimum;  // inclusive
  std::optional<double> maximum;  // inclusive
  bool exclusive_minimum = false;
  std::vector<std::string> choices;
  bool also_auto = false;  // `auto` is valid too; the value is then the string "auto"
  std::string catalogue;   // component: "model", "data", …; text: the value is a name from that catalogue
  std::string types = "";  // any: its types, "number or list"; section: the key of a value that is no map
  // section: its keys. list, map: one option that describes an item. component: keys that all entries share.
  std::vector<Option> options;
};

// Source location of a key path, or of the nearest section around it.
SourceLocation location_of(const std::map<std::string, SourceLocation>& locations, std::string path);

// Values of one component, section or file: checked against its options, with every default filled in. Values of a
// component include its "name". An omitted value without a default is null.
// Getters throw ConfigError at the component if the code reads an option against its description. That is a defect of
// the component, so the message is for its author.
class Options {
 public:
  Options();
  explicit Options(OptionValue values, std::map<std::string, SourceLocation> locations = {}, std::string path = "");

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
  // Declared here only: core/base/json.h has the type and the definitions.
  decltype(auto) json() const;
  decltype(auto) at(const std::string& name) const;

  // Returns the source location of a key (path below this object), or of its parent.
  SourceLocation location(const std::string& name) const;
  const std::map<std::string, SourceLocation>& locations() const { return locations_; }
  const std::string& path() const { return path_; }
  // Throws ConfigError at that key. Use it for checks beyond the type ("dropout must be below 1 if …").
  [[noreturn]] void fail(const std::string& name, const std::string& reason) const;
  // The reason consists of the parts, as `str` joins them.
  template <class First, class Second, class... Rest>
  [[noreturn]] void fail(const std::string& name, const First& first, const Second& second, const Rest&... rest) const {
    fail(name, convoy::str(first, second, rest...));
  }
  // Returns the result of `read`. Its errors become ConfigErrors at that key.
  template <class Read>
  auto located(const std::string& name, const Read& read) const {
    try {
      return read();
    } catch (const ConfigError&) {
      throw;
    } catch (const Error& error) {
      fail(name, error.what());
    }
  }

 private:
  OptionValue values_;                               // a map
  std::map<std::string, SourceLocation> locations_;  // by key path "a.b.2"; "" is the object itself
  std::string path_;                                 // key path of this object in the file, for messages
};

// --- Keys without effect in combination with other keys ---
//
// A key that the user wrote is refused if it has no effect; a default is not.

// Throws ConfigError at `key`, or at the first key below it, if the file or --set contains it. `reason`: the purpose of
// the key, and what to do. Does nothing if every key of the section is written, as in the resolved file of a run
// folder.
// `because`: source locations of the keys that remove its effect. If --set gave one of them and the file gave the key,
// the user tries the same file with a different option. Then nothing is thrown; `ignored`, if given, receives a line
// which reports that the key is ignored.
void refuse_without_effect(const Options& section, const std::string& key, const std::string& reason,
                           const std::vector<SourceLocation>& because = {},
                           std::vector<std::string>* ignored = nullptr);

bool is_typed(const SourceLocation& location);  // the key comes from --set

// --- Catalogues ---

// Entry of a catalogue: a name and its options. Folders extend it (strategies add plan and cost).
struct Entry {
  std::string name;
  std::string help;
  std::vector<Option> options;
  // Finds options that contradict each other. Throws ConfigError (Options::fail). Null: no check.
  std::function<void(const Options&)> check = nullptr;
};

// All catalogues of a build, by kind ("model", "data", "optimizer", "schedule", "strategy", "backend", "loss",
// "transform"). The reading program fills it (launch/prepare/describe.h, tests); core does not know the entries.
struct Catalogues {
  std::map<std::string, std::vector<Entry>> kinds;
  const Entry* find(const std::string& kind, const std::string& name) const;  // null when absent
  std::vector<std::string> names(const std::string& kind) const;
};

}  // namespace convoy
