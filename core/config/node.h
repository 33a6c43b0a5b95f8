// YAML as read: a tree of texts with their source locations. Nodes have no types; options define them.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/json.h"

namespace convoy {

// --- Source locations of a resolved configuration, stored in its hidden key "marks" ---

using SourceLocations = std::map<std::string, SourceLocation>;  // by key path; "" is the whole file

// Writes {"files": [F, …], "at": {KEY: [index into files, line, column], …}} key by key; add each key once.
class SourceLocationWriter {
 public:
  void add(const std::string& key, const SourceLocation& location);
  Json json();  // call it once

 private:
  std::vector<std::string> files_;
  Json::object_t at_;
};
SourceLocations locations_of(const Json& resolved);  // empty if it has none

struct Node {
  enum class Kind { null, scalar, list, map };
  struct Field;

  Kind kind = Kind::null;
  std::string text;         // text of a scalar
  bool quoted = false;      // quoted text is never a number or a boolean
  bool overridden = false;  // --set gave this node, or a node below it
  bool renamed = false;     // --set replaced the scalar of the file by this one
  SourceLocation location;
  std::vector<Node> items;    // items of a list
  std::vector<Field> fields;  // fields of a map, in the order written; keys are unique

  Node* find(const std::string& key);
  const Node* find(const std::string& key) const;
  Node* child(const std::string& key);  // child of a map by key, of a list by number; null: none
};

struct Node::Field {
  std::string key;
  SourceLocation location;  // location of the key
  Node value;
};

Node scalar_node(const std::string& text, const SourceLocation& location, bool quoted = false);
Node map_node(const SourceLocation& location);

// Returns the value of a node that no option describes. A plain scalar becomes a boolean, an integer or a finite real
// if it has that form; otherwise text. With `keep_spelling`, a number becomes one only if it is written back unchanged.
// So text such as 1.10 stays text.
Json untyped(const Node& node, bool keep_spelling);

// Converts data to a node, for defaults and resolved data. `locations`: source locations by key path.
Node node_of(const Json& value, const std::map<std::string, SourceLocation>& locations, const std::string& path = "");

// --- Strict scalars: one spelling for booleans, no octal numbers, no silent rounding, finite numbers only ---

// Limits beyond every use, and small enough that products of epochs, steps and rows fit into 64 bits.
constexpr int64_t most_epochs = 100'000'000;
constexpr int64_t most_rows = 1'000'000'000;  // rows of a batch
constexpr int64_t most_steps = 1'000'000'000'000;
constexpr int64_t most_bytes = int64_t(1) << 60;

// A value, or the reason why the text is invalid ("must be …", without the text itself).
template <class T>
struct Parsed {
  std::optional<T> value;
  std::string reason;
};

Parsed<bool> parse_boolean(const std::string& text);
Parsed<int64_t> parse_integer(const std::string& text);  // -?(0|[1-9][0-9]*)
Parsed<double> parse_real(const std::string& text);      // decimal, with or without point and exponent; finite
Parsed<double> parse_duration(const std::string& text);  // seconds
Parsed<int64_t> parse_bytes(const std::string& text);
Parsed<Json> parse_interval(const std::string& text);  // {"every": n, "unit": "steps"|"epochs"|"never"}

bool is_interval(const Json& value);              // has exactly the form of parse_interval
std::string interval_text(const Json& interval);  // "100 steps", "1 epoch", "never"

// Returns the key path of `key` within the section at `path`; "" is the whole file.
inline std::string below(const std::string& path, const std::string& key) {
  return path.empty() ? key : path + "." + key;
}

}  // namespace convoy
