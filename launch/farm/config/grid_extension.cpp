#include "launch/farm/config/grid_extension.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/config/node.h"
#include "core/config/overrides.h"
#include "core/config/pipeline_texts.h"
#include "core/config/reader.h"
#include "launch/farm/run/journal.h"

namespace convoy {
namespace {

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
    throw ConfigError(twice.front().mark, grid_key + twice.front().key,
                      "is given twice, as a key path and as maps; keep one of them");
  return flat;
}

// The farm's file as it was started, with a flat grid.
Node started_file(const std::string& folder) {
  const std::string path = folder + "/config.yaml";
  std::error_code none;
  if (!fs::exists(path, none))
    throw Error(Failure::command_line, str(path, ": is not there; --set adds to the grid of a farm that was started"));
  Node root = read_yaml_file(path);
  unquote_numbers(root);
  Node* strategy = root.find("strategy");
  Node* grid = strategy == nullptr ? nullptr : strategy->find("grid");
  if (grid == nullptr || grid->kind != Node::Kind::map)
    throw Error(Failure::command_line,
                str(folder, ": has no grid to which --set can add values; give the file of a pipeline: convoy add ",
                    folder, " FILE"));
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
      throw Error(Failure::command_line, str("--set ", printable(assignment),
                                             ": only keys of the farm's grid can get more values, as in --set ",
                                             grid_key, grid.fields.empty() ? "seed" : grid.fields.front().key, "=[…]"));
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
      throw ConfigError(field.value.mark, path, str("is no key of this farm's grid, which has ", join(keys, ", ")));
    }
    if (field.value.kind != Node::Kind::list || field.value.items.empty())
      throw ConfigError(field.value.mark, path,
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
    for (const auto& [key, value] : pipeline.grid.items()) fresh = fresh || !has_value(*before.find(key), value);
    if (fresh) extension.pipelines.push_back(pipeline);
  }
  if (extension.pipelines.empty())
    throw Error(Failure::config, str(folder, ": has all these points of the grid already; nothing was added"));
  rename_taken(folder, extension.pipelines);
  return extension;
}

}  // namespace convoy
