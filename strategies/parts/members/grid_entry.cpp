#include "strategies/parts/members/grid_entry.h"

#include <algorithm>

#include "core/config/scalars.h"
#include "core/hash.h"

namespace convoy {
namespace {

constexpr char grid_key[] = "strategy.grid";
constexpr char names_key[] = "strategy.names";

std::string in_a_name(const std::string& text) {
  std::string safe;
  for (char c : text) {
    const bool kept =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
    safe += kept ? c : '-';
  }
  return safe;
}

constexpr size_t longest_value = 40, longest_name = 100;  // characters

// A component by its name, any other map and list by what it holds.
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

// The values of a key as names have them; a later one that reads like an earlier one is numbered.
std::vector<std::string> texts_of(const Node& values) {
  std::vector<std::string> texts;
  for (const Node& value : values.items) {
    const std::string text = in_a_name(text_of(value)).substr(0, longest_value);
    std::string unique = text;
    for (int number = 2; std::find(texts.begin(), texts.end(), unique) != texts.end(); ++number)
      unique = str(text, "-", number);
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
  const std::vector<std::string>* texts;  // of all values of the axis
  const Node& value() const { return axis->value.items[index]; }
  const std::string& text() const { return (*texts)[index]; }
};

std::string default_name(const std::vector<Coordinate>& point) {
  std::vector<std::string> parts;
  for (const Coordinate& at : point) parts.push_back(last_part(at.axis->key) + "-" + at.text());
  return join(parts, "_");
}

std::string patterned_name(const std::string& pattern, const Mark& mark, const std::vector<Coordinate>& point,
                           size_t number) {
  std::string name;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '{') {
      name += pattern[i];
      continue;
    }
    const size_t end = pattern.find('}', i);
    if (end == std::string::npos) throw ConfigError(mark, names_key, "has a { without its }");
    const std::string key = pattern.substr(i + 1, end - i - 1);
    const auto found =
        std::find_if(point.begin(), point.end(), [&](const Coordinate& at) { return at.axis->key == key; });
    if (key != "index" && found == point.end()) {
      std::vector<std::string> keys{"index"};
      for (const Coordinate& at : point) keys.push_back(at.axis->key);
      const std::string near = nearest(key, keys);
      throw ConfigError(mark, names_key,
                        str("names {", printable(key), "}, which is no key of the grid; ",
                            near.empty() ? "there are {" + join(keys, "}, {") + "}" : "did you mean {" + near + "}?"));
    }
    name += key == "index" ? str(number) : found->text();
    i = end;
  }
  return name;
}

// How many points there are; throws for too many before any is made.
int64_t count_points(const Node& grid) {
  int64_t count = 1;
  for (const Node::Field& axis : grid.fields) {
    const std::string path = str(grid_key, ".", axis.key);
    if (axis.value.kind != Node::Kind::list)
      throw ConfigError(axis.value.mark, path, "must be a list of the values that the key is to take");
    if (axis.value.items.empty()) throw ConfigError(axis.value.mark, path, "is an empty list; give it a value");
    count *= static_cast<int64_t>(axis.value.items.size());
    if (count > most_grid_points)
      throw ConfigError(grid.mark, grid_key,
                        str("has more than ", most_grid_points, " combinations; leave out keys or values"));
  }
  return count;
}

}  // namespace

std::vector<GridPoint> grid_points(const Node& grid, const std::string& pattern, const Mark& pattern_mark) {
  std::vector<GridPoint> points;
  const int64_t count = count_points(grid);
  std::vector<std::vector<std::string>> texts;
  for (const Node::Field& axis : grid.fields) texts.push_back(texts_of(axis.value));
  for (int64_t number = 0; number < count; ++number) {
    std::vector<Coordinate> at(grid.fields.size());
    int64_t rest = number;
    for (size_t i = grid.fields.size(); i-- > 0;) {
      const auto size = static_cast<int64_t>(grid.fields[i].value.items.size());
      at[i] = {&grid.fields[i], static_cast<size_t>(rest % size), &texts[i]};
      rest /= size;
    }
    GridPoint point;
    point.name = bounded(in_a_name(
        pattern.empty() ? default_name(at) : patterned_name(pattern, pattern_mark, at, static_cast<size_t>(number))));
    for (const Coordinate& coordinate : at) point.values.emplace_back(coordinate.axis->key, &coordinate.value());
    points.push_back(std::move(point));
  }
  return points;
}

std::vector<GridPoint> grid_values(const Node& grid) {
  GridPoint first;
  for (const Node::Field& axis : grid.fields)
    if (!axis.value.items.empty()) first.values.emplace_back(axis.key, &axis.value.items.front());
  std::vector<GridPoint> points;
  for (size_t i = 0; i < first.values.size(); ++i) {
    const Node& values = *grid.find(first.values[i].first);
    // The first value of all is one point.
    for (size_t j = i == 0 ? 0 : 1; j < values.items.size(); ++j) {
      if (points.size() == static_cast<size_t>(most_grid_points)) return points;
      points.push_back(first);
      points.back().name = str("point-", points.size());
      points.back().values[i].second = &values.items[j];
    }
  }
  return points;
}

}  // namespace convoy
