#include "core/config/pipeline_texts.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/base/describe.h"
#include "core/config/reader.h"

namespace convoy {
namespace {

constexpr int64_t largest_priority = 1'000'000;
constexpr double longest = 365 * 86400.0;  // seconds
constexpr int most_devices = 65536;

using describe::OptionBuilder;

OptionBuilder duration(const std::string& name, const std::string& help, Json fallback = nullptr) {
  return describe::option(OptionType::duration, name, help, std::move(fallback)).at_most(longest).in("seconds");
}

OptionBuilder devices(const std::string& name, const std::string& help) {
  return describe::any(name, "integer, or list of integers and ranges", help).may_be_null();
}

struct Devices {
  int count = 0;
  std::vector<int> list;
};

// Reads a count, or a list of numbers and ranges such as [0, 2-3].
Devices devices_of(const Options& written, const std::string& name, const char* what) {
  Devices devices;
  const Json& value = written.at(name);
  const std::string form = str("must be a count, such as 2, or a list of ", what, ", such as [0, 2-3]");
  if (value.is_number_integer()) {
    if (value.get<int64_t>() < (name == "gpus" ? 0 : 1) || value.get<int64_t>() > most_devices)
      written.fail(name, str("is ", value.dump(), ", ", form));
    devices.count = value.get<int>();
    return devices;
  }
  if (!value.is_array() || value.empty()) written.fail(name, str("is ", shown(value.dump()), ", ", form));
  std::set<int> seen;
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string text = value[i].is_string() ? value[i].get<std::string>() : value[i].dump();
    const std::vector<int> units = hardware_threads_from_text(text);
    if (units.empty()) written.fail(str(name, ".", i), str("is ", shown(text), ", must be 0, 0-3 or 0-3+8"));
    for (int unit : units) {
      if (!seen.insert(unit).second) written.fail(str(name, ".", i), str("names ", unit, " twice"));
      devices.list.push_back(unit);
    }
  }
  devices.count = static_cast<int>(devices.list.size());
  return devices;
}

// Name of a component: `ddp`, or {name: ddp, …}.
const Node* component_name(const Node& node) {
  if (node.kind == Node::Kind::scalar) return &node;
  if (node.kind != Node::Kind::map) return nullptr;
  const Node* name = node.find("name");
  return name != nullptr && name->kind == Node::Kind::scalar ? name : nullptr;
}

bool other_component(const Node& base, const Node& over) {
  const Node* before = component_name(base);
  const Node* after = component_name(over);
  const bool plugin = over.find("plugin") != nullptr && base.find("plugin") == nullptr;
  return plugin || (before != nullptr && after != nullptr && before->text != after->text);
}

Node* child(Node& parent, const std::string& key) {
  if (parent.kind == Node::Kind::map) return parent.find(key);
  const auto index = parse_integer(key).value;
  if (parent.kind != Node::Kind::list || !index || *index < 0 || *index >= static_cast<int64_t>(parent.items.size()))
    return nullptr;
  return &parent.items[static_cast<size_t>(*index)];
}

// Removes the value at a key path from the tree; returns false if there is none. Keys may contain dots.
bool remove_at(Node& node, const std::vector<std::string>& keys, size_t first) {
  std::string key;
  for (size_t last = first; last < keys.size(); ++last) {
    key += (last == first ? "" : ".") + keys[last];
    Node* found = child(node, key);
    if (found == nullptr) continue;
    if (last + 1 < keys.size()) return remove_at(*found, keys, last + 1);
    if (node.kind == Node::Kind::list)
      node.items.erase(node.items.begin() + (found - node.items.data()));
    else
      node.fields.erase(std::find_if(node.fields.begin(), node.fields.end(),
                                     [&](const Node::Field& field) { return field.key == key; }));
    return true;
  }
  return false;
}

// True if `key` is `other` or a section around it: removing `other` may then have caused the mistake.
bool is_at_or_above(const std::string& key, const std::string& other) {
  return key.empty() || key == other || other.rfind(key + ".", 0) == 0;
}

void flatten(const Node& map, const std::string& prefix, Node& into, std::vector<Node::Field>& twice) {
  for (const Node::Field& field : map.fields) {
    const std::string key = below(prefix, field.key);
    if (field.value.kind == Node::Kind::map && !field.value.fields.empty()) {
      flatten(field.value, key, into, twice);
    } else if (Node* known = into.find(key); known == nullptr) {
      into.fields.push_back({key, field.mark, field.value});
    } else if (field.value.overridden) {
      *known = field.value;
    } else {
      twice.push_back({key, field.mark, field.value});
    }
  }
}

}  // namespace

std::vector<Option> queue_options(bool defaults) {
  std::vector<Option> options{
      describe::integer("priority",
                        "position in the queue, larger first; for equal priorities by `estimate`, longest first", 0)
          .between(-static_cast<double>(largest_priority), static_cast<double>(largest_priority)),
      describe::boolean(
          "preempt",
          "may preempt running pipelines of lower priority: they save a checkpoint after their step and resume later",
          false),
      describe::integer("retries", "number of retries after failures, each from the newest checkpoint", 0)
          .between(0, 1000),
      duration("backoff", "delay before the first retry; doubled for each further one, up to 10 minutes", 1)
          .at_least(0),
      duration("timeout", "time limit of an attempt; default: none").above(0).may_be_null(),
      describe::option(
          OptionType::bytes, "memory",
          "limit of anonymous memory of all its processes together (mapped files do not count); a pipeline "
          "above it is ended")
          .between(1, most_bytes)
          .in("bytes")
          .may_be_null(),
      describe::option(
          OptionType::bytes, "gpu_memory",
          "limit of tensor memory on each of its GPUs; LibTorch's allocator enforces it, and other GPU memory is "
          "checked once a second")
          .between(1, most_bytes)
          .in("bytes")
          .may_be_null(),
      describe::integer("nice", "niceness added to its processes; a larger value yields CPU time to others", 0)
          .between(0, 19),
      devices("cores", "number of cores, or a list: [0, 2-3]; default: one for each of its ranks"),
      devices("gpus", "number of GPUs, or a list: [0]; default: one for each of its ranks, if the host has GPUs"),
      describe::real("share", "part of these cores and GPUs that it uses; other pipelines may use the rest", 1)
          .above(0)
          .at_most(1),
      duration("estimate", "expected duration, to order the queue").above(0).may_be_null(),
  };
  if (!defaults)
    for (Option& option : options) option.fallback = nullptr;
  return options;
}

std::vector<Option> added_pipeline_options() {
  std::vector<Option> options{
      describe::text("name", "name of the pipeline and its folder; default: the name in its configuration")
          .may_be_null(),
      describe::any("config", "path, or map", "a file, or the keys of a whole run").must(),
      describe::any("grid", "map", "values by key path, for a point of the farm's grid; `add --set` writes it")
          .may_be_null()};
  for (const Option& option : queue_options(true)) options.push_back(option);
  return options;
}

QueueOptions with_queue_options(QueueOptions queue, const Options& written) {
  if (written.has("priority")) queue.priority = written.integer("priority");
  if (written.has("preempt")) queue.preempt = written.boolean("preempt");
  if (written.has("retries")) queue.retries = written.integer("retries");
  if (written.has("backoff")) queue.backoff = written.real("backoff");
  if (written.has("timeout")) queue.timeout = written.real("timeout");
  if (written.has("memory")) queue.memory = written.integer("memory");
  if (written.has("gpu_memory")) queue.gpu_memory = written.integer("gpu_memory");
  if (written.has("nice")) queue.nice = static_cast<int>(written.integer("nice"));
  if (written.has("share")) queue.share = written.real("share");
  if (written.has("estimate")) queue.estimate = written.real("estimate");
  if (written.has("cores")) {
    const Devices found = devices_of(written, "cores", "hardware threads");
    queue.cores = found.count;
    queue.core_list = found.list;
  }
  if (written.has("gpus")) {
    const Devices found = devices_of(written, "gpus", "GPUs");
    queue.gpus = found.count;
    queue.gpu_list = found.list;
    // For a whole farm, some pipelines may have their own GPUs.
    if (found.count == 0 && written.has("gpu_memory") && written.path() != "strategy")
      written.fail("gpu_memory", "limits each of its GPUs, but gpus is 0; leave one of them out");
  }
  return queue;
}

Json to_json(const QueueOptions& queue) {
  return {{"priority", queue.priority},
          {"preempt", queue.preempt},
          {"retries", queue.retries},
          {"backoff", queue.backoff},
          {"timeout", queue.timeout > 0 ? Json(queue.timeout) : Json()},
          {"memory", queue.memory > 0 ? Json(queue.memory) : Json()},
          {"gpu_memory", queue.gpu_memory > 0 ? Json(queue.gpu_memory) : Json()},
          {"nice", queue.nice},
          {"cores", !queue.core_list.empty() ? Json(queue.core_list)
                    : queue.cores > 0        ? Json(queue.cores)
                                             : Json()},
          {"gpus", !queue.gpu_list.empty() ? Json(queue.gpu_list)
                   : queue.gpus >= 0       ? Json(queue.gpus)
                                           : Json()},
          {"share", queue.share},
          {"estimate", queue.estimate > 0 ? Json(queue.estimate) : Json()}};
}

Node merged(const Node& base, const Node& over) {
  if (base.kind != Node::Kind::map || over.kind != Node::Kind::map || other_component(base, over)) return over;
  Node result = base;
  for (const Node::Field& field : over.fields) {
    auto found = std::find_if(result.fields.begin(), result.fields.end(),
                              [&](const Node::Field& known) { return known.key == field.key; });
    if (found == result.fields.end()) {
      result.fields.push_back(field);
      continue;
    }
    // `strategy: ddp` over {name: ddp, bucket_cap_mb: 1} changes nothing.
    const bool same = field.value.kind == Node::Kind::scalar && found->value.kind == Node::Kind::map &&
                      component_name(found->value) != nullptr && !other_component(found->value, field.value);
    if (!same) *found = {field.key, field.mark, merged(found->value, field.value)};
  }
  return result;
}

Node flat_grid(const Node& grid, std::vector<Node::Field>& twice) {
  Node flat = grid;
  flat.fields.clear();
  flatten(grid, "", flat, twice);
  return flat;
}

void put_at(Node& root, const std::string& path, const Node& value) {
  Node* node = &root;
  const std::vector<std::string> keys = split(path, '.');
  for (const std::string& key : keys) {
    if (key.empty()) throw ConfigError(value.mark, path, "is no key path; write one such as optimizer.lr");
    if (node->kind == Node::Kind::scalar) {
      Node name = std::exchange(*node, map_node(value.mark));  // `strategy: ddp` is short for {name: ddp}
      node->fields.push_back({"name", name.mark, std::move(name)});
    }
    if (node->kind == Node::Kind::null) *node = map_node(value.mark);
    Node* found = child(*node, key);
    if (found == nullptr && node->kind == Node::Kind::list)
      throw ConfigError(value.mark, path, str("there is no item ", shown(key), " in a list of ", node->items.size()));
    if (found == nullptr) {
      node->fields.push_back({key, value.mark, Node{}});
      found = &node->fields.back().value;
    }
    node = found;
  }
  const bool other = component_name(*node) != nullptr && value.kind == Node::Kind::scalar && keys.back() == "name" &&
                     component_name(*node)->text != value.text;
  *node = value;
  // Options of the replaced component are dropped, as for --set.
  node->renamed = other;
}

bool holds_text_of(const Node& node, const std::string& file) {
  return node.mark.file == file ||
         std::any_of(node.items.begin(), node.items.end(), [&](const Node& n) { return holds_text_of(n, file); }) ||
         std::any_of(node.fields.begin(), node.fields.end(),
                     [&](const Node::Field& field) { return holds_text_of(field.value, file); });
}

bool is_typed(const SourceLocation& mark) { return mark.file.rfind("--set ", 0) == 0; }

std::vector<ConfigError> all_mistakes(Node root, const ReadTree& read) {
  std::vector<ConfigError> mistakes;
  std::vector<std::string> removed;
  for (bool again = true; again;) {
    std::vector<ConfigError> found;
    try {
      read(root, found);
    } catch (const ConfigError& mistake) {
      found.push_back(mistake);
    }
    found.erase(std::remove_if(found.begin(), found.end(),
                               [&](const ConfigError& mistake) {
                                 return std::any_of(removed.begin(), removed.end(), [&](const std::string& gone) {
                                   return is_at_or_above(mistake.key(), gone);
                                 });
                               }),
                found.end());
    again = false;
    // Remove list items from the end, so that the others keep their index.
    for (auto mistake = found.rbegin(); mistake != found.rend(); ++mistake) {
      removed.push_back(mistake->key());
      again = (!mistake->key().empty() && remove_at(root, split(mistake->key(), '.'), 0)) || again;
    }
    mistakes.insert(mistakes.end(), found.begin(), found.end());
  }
  return mistakes;
}

}  // namespace convoy
