#include "core/config/pipeline_texts.h"

#include <algorithm>
#include <utility>

#include "core/config/reader.h"
#include "core/config/scalars.h"

namespace convoy {
namespace {

// What a component is called: `ddp`, or {name: ddp, …}.
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

std::vector<std::string> keys_of(const std::string& path) {
  std::vector<std::string> keys{""};
  for (char c : path) {
    if (c == '.')
      keys.emplace_back();
    else
      keys.back() += c;
  }
  return keys;
}

Node* child(Node& parent, const std::string& key) {
  if (parent.kind == Node::Kind::map) return parent.find(key);
  const auto index = parse_integer(key).value;
  if (parent.kind != Node::Kind::list || !index || *index < 0 || *index >= static_cast<int64_t>(parent.items.size()))
    return nullptr;
  return &parent.items[static_cast<size_t>(*index)];
}

// Takes the value at a key path out of the tree; false where there is none. Keys may hold dots themselves.
bool take_out(Node& node, const std::vector<std::string>& keys, size_t first) {
  std::string key;
  for (size_t last = first; last < keys.size(); ++last) {
    key += (last == first ? "" : ".") + keys[last];
    Node* found = child(node, key);
    if (found == nullptr) continue;
    if (last + 1 < keys.size()) return take_out(*found, keys, last + 1);
    if (node.kind == Node::Kind::list)
      node.items.erase(node.items.begin() + (found - node.items.data()));
    else
      node.fields.erase(std::find_if(node.fields.begin(), node.fields.end(),
                                     [&](const Node::Field& field) { return field.key == key; }));
    return true;
  }
  return false;
}

// Whether `key` is `other` or a section around it: then its mistake may be our own doing.
bool around(const std::string& key, const std::string& other) {
  return key.empty() || key == other || other.rfind(key + ".", 0) == 0;
}

}  // namespace

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
    // `strategy: ddp` laid on {name: ddp, bucket_cap_mb: 1} says nothing new.
    const bool same = field.value.kind == Node::Kind::scalar && found->value.kind == Node::Kind::map &&
                      component_name(found->value) != nullptr && !other_component(found->value, field.value);
    if (!same) *found = {field.key, field.mark, merged(found->value, field.value)};
  }
  return result;
}

namespace {

void flatten(const Node& map, const std::string& prefix, Node& into, std::vector<Node::Field>& twice) {
  for (const Node::Field& field : map.fields) {
    const std::string key = prefix.empty() ? field.key : str(prefix, ".", field.key);
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

Node flat_grid(const Node& grid, std::vector<Node::Field>& twice) {
  Node flat = grid;
  flat.fields.clear();
  flatten(grid, "", flat, twice);
  return flat;
}

void put_at(Node& root, const std::string& path, const Node& value) {
  Node* node = &root;
  const std::vector<std::string> keys = keys_of(path);
  for (const std::string& key : keys) {
    if (key.empty()) throw ConfigError(value.mark, path, "is no key path; write it as in optimizer.lr");
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
  // What belongs to the one that it replaces is left out, as it is for --set.
  node->renamed = other;
}

bool holds_text_of(const Node& node, const std::string& file) {
  return node.mark.file == file ||
         std::any_of(node.items.begin(), node.items.end(), [&](const Node& n) { return holds_text_of(n, file); }) ||
         std::any_of(node.fields.begin(), node.fields.end(),
                     [&](const Node::Field& field) { return holds_text_of(field.value, file); });
}

bool is_typed(const Mark& mark) { return mark.file.rfind("--set ", 0) == 0; }

std::vector<ConfigError> all_mistakes(Node root, const ReadTree& read) {
  std::vector<ConfigError> mistakes;
  std::vector<std::string> taken;
  for (bool again = true; again;) {
    std::vector<ConfigError> found;
    try {
      read(root, found);
    } catch (const ConfigError& mistake) {
      found.push_back(mistake);
    }
    found.erase(std::remove_if(found.begin(), found.end(),
                               [&](const ConfigError& mistake) {
                                 return std::any_of(taken.begin(), taken.end(), [&](const std::string& gone) {
                                   return around(mistake.key(), gone);
                                 });
                               }),
                found.end());
    again = false;
    // Items of a list from its end: what is left keeps its number.
    for (auto mistake = found.rbegin(); mistake != found.rend(); ++mistake) {
      taken.push_back(mistake->key());
      again = (!mistake->key().empty() && take_out(root, keys_of(mistake->key()), 0)) || again;
    }
    mistakes.insert(mistakes.end(), found.begin(), found.end());
  }
  return mistakes;
}

}  // namespace convoy
