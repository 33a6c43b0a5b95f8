// Grid of a farm: the names and values of its points, and values added later.
#include <algorithm>
#include <filesystem>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "core/base/hash.h"
#include "core/base/text.h"
#include "core/config/reader.h"
#include "launch/farm/config/farm.h"
#include "launch/farm/run/farm.h"

namespace convoy {
namespace {

void flatten(const Node& map, const std::string& prefix, Node& into, std::vector<Node::Field>& twice) {
  for (const Node::Field& field : map.fields) {
    const std::string key = below(prefix, field.key);
    // {from, to} is a range of a search, not a deeper key.
    if (field.value.kind == Node::Kind::map && !field.value.fields.empty() && field.value.find("from") == nullptr) {
      flatten(field.value, key, into, twice);
    } else if (Node* known = into.find(key); known == nullptr) {
      into.fields.push_back({key, field.location, field.value});
    } else if (field.value.overridden) {
      *known = field.value;
    } else {
      twice.push_back({key, field.location, field.value});
    }
  }
}

constexpr char strategy_grid[] = "strategy.grid";
constexpr char names_key[] = "strategy.names";

std::string in_a_name(const std::string& text) {
  std::string safe;
  for (char c : text) {
    if (c == '+') continue;  // "1e+3" must not become "1e-3"
    const bool kept =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
    safe += kept ? c : '-';
  }
  return safe;
}

constexpr size_t longest_value = 40, longest_name = 100;  // characters

// Text of a value in a name: a component's name, else the contents of a map or list.
std::string text_of(const Node& value) {
  std::vector<std::string> parts;
  switch (value.kind) {
    case Node::Kind::scalar:
      return value.text;
    case Node::Kind::null:
      return "none";
    case Node::Kind::list:
      for (const Node& item : value.items) parts.push_back(text_of(item));
      break;
    case Node::Kind::map:
      if (const Node* name = value.find("name"); name != nullptr && name->kind == Node::Kind::scalar) return name->text;
      for (const Node::Field& field : value.fields) parts.push_back(field.key + "-" + text_of(field.value));
      break;
  }
  return parts.empty() ? "none" : join(parts, "-");
}

// Texts of the values of a key. Later values with an equal text get a number.
std::vector<std::string> texts_of(const Node& values) {
  std::vector<std::string> texts;
  std::unordered_set<std::string> known;
  std::unordered_map<std::string, int> next;  // number to try for a text that is taken
  for (const Node& value : values.items) {
    const std::string text = in_a_name(text_of(value)).substr(0, longest_value);
    std::string unique = text;
    int& number = next.emplace(text, 2).first->second;
    while (!known.insert(unique).second) unique = str(text, "-", number++);
    texts.push_back(unique);
  }
  return texts;
}

std::string bounded(const std::string& name) {
  if (name.size() <= longest_name) return name;
  return name.substr(0, longest_name) + "-" + hash_hex(name.data(), name.size()).substr(0, 8);
}

std::string last_part(const std::string& path) {
  const size_t dot = path.rfind('.');
  return dot == std::string::npos ? path : path.substr(dot + 1);
}

struct Coordinate {
  const Node::Field* axis;
  size_t index;
  const std::vector<std::string>* texts;  // texts of all values of the axis
  const Node& value() const { return axis->value.items[index]; }
  const std::string& text() const { return (*texts)[index]; }
};

// Name of a trial, such as "trial-07" of 100; "" without trials.
std::string trial_name(size_t trial, size_t trials) {
  if (trials == 0) return "";
  const std::string number = str(trial), last = str(trials - 1);
  return str("trial-", std::string(last.size() - number.size(), '0'), number);
}

std::string default_name(const std::string& trial, const std::vector<Coordinate>& point) {
  std::vector<std::string> parts;
  if (!trial.empty()) parts.push_back(trial);
  for (const Coordinate& at : point) parts.push_back(last_part(at.axis->key) + "-" + at.text());
  return join(parts, "_");
}

std::string patterned_name(const std::string& pattern, const SourceLocation& location,
                           const std::vector<Coordinate>& point, size_t number, const std::string& trial) {
  std::string name;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '{') {
      name += pattern[i];
      continue;
    }
    const size_t end = pattern.find('}', i);
    if (end == std::string::npos) throw ConfigError(location, names_key, "has a { without a }");
    const std::string key = pattern.substr(i + 1, end - i - 1);
    const auto found =
        std::find_if(point.begin(), point.end(), [&](const Coordinate& at) { return at.axis->key == key; });
    if (key == "trial" && !trial.empty()) {
      name += trial.substr(trial.find('-') + 1);
      i = end;
      continue;
    }
    if (key != "index" && found == point.end()) {
      std::vector<std::string> keys{"index"};
      if (!trial.empty()) keys.push_back("trial");
      for (const Coordinate& at : point) keys.push_back(at.axis->key);
      const std::string near = nearest(key, keys);
      throw ConfigError(location, names_key, "{", printable(key), "} is no key of the grid; ",
                        near.empty() ? "valid are {" + join(keys, "}, {") + "}" : "did you mean {" + near + "}?");
    }
    name += key == "index" ? str(number) : found->text();
    i = end;
  }
  return name;
}

// Number of points. Throws for too many before any is made.
int64_t count_points(const Node& grid, size_t trials) {
  int64_t count = std::max<int64_t>(1, static_cast<int64_t>(trials));
  for (const Node::Field& axis : grid.fields) {
    const std::string path = str(strategy_grid, ".", axis.key);
    if (axis.value.kind != Node::Kind::list) throw ConfigError(axis.value.location, path, "must be a list of values");
    if (axis.value.items.empty()) throw ConfigError(axis.value.location, path, "is an empty list; give it a value");
    count *= static_cast<int64_t>(axis.value.items.size());
    if (count > most_grid_points)
      throw ConfigError(grid.location, strategy_grid, "has more than ", most_grid_points,
                        " combinations; leave out keys or values");
  }
  return count;
}

namespace fs = std::filesystem;

constexpr char grid_key[] = "strategy.grid.";

// config.yaml quotes numbers to keep their spelling, such as 1.0e-3.
void unquote_numbers(Node& node) {
  if (node.kind == Node::Kind::scalar && node.quoted && parse_real(node.text).value) node.quoted = false;
  for (Node& item : node.items) unquote_numbers(item);
  for (Node::Field& field : node.fields) unquote_numbers(field.value);
}

// The grid with key paths. Throws ConfigError for a key that is given twice.
Node checked_flat_grid(const Node& grid) {
  std::vector<Node::Field> twice;
  Node flat = flat_grid(grid, twice);
  if (!twice.empty())
    throw ConfigError(twice.front().location, grid_key + twice.front().key,
                      "is given twice, as a key path and as maps; keep one of them");
  return flat;
}

// The farm's file as it was started, with a flat grid.
Node started_file(const std::string& folder) {
  const std::string path = folder + "/config.yaml";
  std::error_code none;
  if (!fs::exists(path, none))
    throw Error(Failure::command_line, path,
                ": does not exist; convoy add --set extends the grid of a farm that has started");
  Node root = read_yaml_file(path);
  unquote_numbers(root);
  Node* strategy = root.find("strategy");
  Node* grid = strategy == nullptr ? nullptr : strategy->find("grid");
  if (grid == nullptr || grid->kind != Node::Kind::map)
    throw Error(Failure::command_line, folder,
                ": its farm has no grid, so --set cannot add values; add the file of a pipeline: convoy "
                "add ",
                folder, " FILE");
  *grid = checked_flat_grid(*grid);
  return root;
}

bool has_value(const Node& list, const Json& value) {
  return std::any_of(list.items.begin(), list.items.end(),
                     [&](const Node& item) { return untyped(item, false) == value; });
}

// Adds the values of earlier additions.
void add_taken(Node& grid, const std::string& folder) {
  std::vector<std::string> paths = Inbox(folder).taken();
  for (const std::string& path : Inbox(folder).arrived()) paths.push_back(path);
  for (const std::string& path : paths) {
    Node root = read_yaml_file(path);
    unquote_numbers(root);
    const Node* point = root.find("grid");
    if (point == nullptr) continue;
    for (const Node::Field& field : point->fields)
      if (Node* list = grid.find(field.key); list != nullptr && !has_value(*list, untyped(field.value, false)))
        list->items.push_back(field.value);
  }
}

// Lists of new values by key, as typed.
Node typed_grid(const std::vector<std::string>& overrides, const Node& grid) {
  Node typed = map_node({});
  for (const std::string& assignment : overrides) {
    if (assignment.rfind(grid_key, 0) != 0)
      throw Error(Failure::command_line, "--set ", printable(assignment),
                  ": convoy add --set adds values to keys of the farm's grid only, as in --set ", grid_key,
                  grid.fields.empty() ? "seed" : grid.fields.front().key, "=[…]");
    apply_override(typed, assignment);
  }
  return checked_flat_grid(*typed.find("strategy")->find("grid"));
}

void extend_grid(Node& grid, const Node& typed) {
  for (const Node::Field& field : typed.fields) {
    const std::string path = grid_key + field.key;
    Node* list = grid.find(field.key);
    if (list == nullptr) {
      std::vector<std::string> keys;
      for (const Node::Field& known : grid.fields) keys.push_back(known.key);
      throw ConfigError(field.value.location, path, "is no key of this farm's grid, which has ", join(keys, ", "));
    }
    if (field.value.kind != Node::Kind::list || field.value.items.empty())
      throw ConfigError(field.value.location, path,
                        field.value.kind != Node::Kind::list ? "must be a list of the values to add"
                                                             : "is an empty list; give the values to add");
    for (const Node& value : field.value.items)
      if (!has_value(*list, untyped(value, false))) list->items.push_back(value);
  }
}

// True if a pipeline of that name exists or waits in the inbox.
bool is_taken(const std::string& folder, const std::string& name) {
  std::error_code none;
  const std::string waiting = str(folder, "/inbox/", name, ".yaml");
  return fs::exists(str(folder, "/pipelines/", name), none) || fs::exists(waiting, none) ||
         fs::exists(waiting + ".taken", none);
}

void rename_taken(const std::string& folder, std::vector<Pipeline>& pipelines) {
  std::set<std::string> names;
  for (Pipeline& pipeline : pipelines) {
    const std::string wanted = pipeline.name;
    for (int number = 2; is_taken(folder, pipeline.name) || names.count(pipeline.name) > 0; ++number)
      pipeline.name = str(wanted, "-", number);
    names.insert(pipeline.name);
    pipeline.config["name"] = pipeline.name;
  }
}

}  // namespace

Node flat_grid(const Node& grid, std::vector<Node::Field>& twice) {
  Node flat = grid;
  flat.fields.clear();
  flatten(grid, "", flat, twice);
  return flat;
}

std::vector<GridPoint> grid_points(const Node& grid, const std::string& pattern, const SourceLocation& pattern_location,
                                   const Node& trials) {
  std::vector<GridPoint> points;
  const size_t trial_count = trials.fields.empty() ? 0 : trials.fields.front().value.items.size();
  const int64_t count = count_points(grid, trial_count);
  std::vector<std::vector<std::string>> texts, trial_texts;
  for (const Node::Field& axis : grid.fields) texts.push_back(texts_of(axis.value));
  for (const Node::Field& axis : trials.fields) {
    // Equal values of two trials may have equal texts, because names contain the number of the trial.
    trial_texts.emplace_back();
    for (const Node& value : axis.value.items)
      trial_texts.back().push_back(in_a_name(text_of(value)).substr(0, longest_value));
  }
  for (int64_t number = 0; number < count; ++number) {
    std::vector<Coordinate> at(grid.fields.size());
    int64_t rest = number;
    for (size_t i = grid.fields.size(); i-- > 0;) {
      const auto size = static_cast<int64_t>(grid.fields[i].value.items.size());
      at[i] = {&grid.fields[i], static_cast<size_t>(rest % size), &texts[i]};
      rest /= size;
    }
    const auto trial = static_cast<size_t>(rest);
    const std::string called = trial_name(trial, trial_count);
    const std::string fallback = default_name(called, at);
    std::vector<Coordinate> all;
    for (size_t i = 0; i < trials.fields.size(); ++i) all.push_back({&trials.fields[i], trial, &trial_texts[i]});
    all.insert(all.end(), at.begin(), at.end());
    GridPoint point;
    point.name = bounded(in_a_name(
        pattern.empty() ? fallback
                        : patterned_name(pattern, pattern_location, all, static_cast<size_t>(number), called)));
    for (const Coordinate& coordinate : all) point.values.emplace_back(coordinate.axis->key, &coordinate.value());
    points.push_back(std::move(point));
  }
  return points;
}

std::vector<GridPoint> grid_values(const Node& grid) {
  constexpr size_t most_checked = 1'000;  // keeps the refusal below a second
  GridPoint first;
  for (const Node::Field& axis : grid.fields)
    if (!axis.value.items.empty()) first.values.emplace_back(axis.key, &axis.value.items.front());
  std::vector<GridPoint> points;
  for (size_t i = 0; i < first.values.size(); ++i) {
    const Node& values = *grid.find(first.values[i].first);
    // The first values of all keys are one point, which is added once.
    for (size_t j = i == 0 ? 0 : 1; j < values.items.size(); ++j) {
      if (points.size() == most_checked) return points;
      points.push_back(first);
      points.back().name = str("point-", points.size());
      points.back().values[i].second = &values.items[j];
    }
  }
  return points;
}

GridExtension extended(const std::string& folder, const std::vector<std::string>& overrides) {
  RunArguments arguments;
  arguments.config = folder + "/config.yaml";
  arguments.output = folder;
  const LaunchedAs alone;
  Node root = started_file(folder);
  GridExtension extension;
  extension.farm = *read_farm(root, arguments, current_variables(), alone);
  extension.farm.grows = true;
  Node& grid = *root.find("strategy")->find("grid");
  add_taken(grid, folder);
  const Node before = grid;
  extend_grid(grid, typed_grid(overrides, grid));
  const FarmRun larger = *read_farm(root, arguments, {}, alone);
  refuse_all(larger.mistakes);
  for (const Pipeline& pipeline : larger.farm.pipelines) {
    bool fresh = false;
    for (const auto& [key, value] : pipeline.grid.items()) {
      const Node* const known = before.find(key);  // null: a key of the search, which has no new values
      fresh = fresh || (known != nullptr && !has_value(*known, value));
    }
    if (fresh) extension.pipelines.push_back(pipeline);
  }
  if (extension.pipelines.empty())
    throw Error(Failure::config, folder, ": already has all these points of the grid; nothing was added");
  rename_taken(folder, extension.pipelines);
  return extension;
}

}  // namespace convoy
