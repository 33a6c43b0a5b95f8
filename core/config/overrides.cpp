// --set.
#include "core/config/overrides.h"

#include <utility>
#include <vector>

#include "core/config/reader.h"
#include "core/config/scalars.h"

namespace convoy {
namespace {

[[noreturn]] void refuse(const std::string& assignment, const std::string& reason) {
  throw Error(Failure::command_line, str("--set ", printable(assignment), ": ", reason,
                                         "; write --set KEY=VALUE, such as --set train.epochs=3"));
}

struct Assignment {
  std::vector<std::string> path;
  std::string value;
};

Assignment parsed(const std::string& text) {
  Assignment result;
  std::string key;
  bool quoted = false;
  size_t i = 0;
  for (; i < text.size() && (quoted || text[i] != '='); ++i) {
    if (text[i] == '"') {
      quoted = !quoted;
    } else if (text[i] == '.' && !quoted) {
      if (key.empty()) refuse(text, "an empty key before a dot");
      result.path.push_back(std::exchange(key, ""));
    } else {
      key += text[i];
    }
  }
  if (quoted) refuse(text, "a quote that does not end");
  if (i == text.size()) refuse(text, "no = in it");
  if (key.empty()) refuse(text, "no key before =");
  result.path.push_back(key);
  if (result.path.size() > static_cast<size_t>(max_config_depth)) refuse(text, "a path of more than 64 keys");
  result.value = text.substr(i + 1);
  return result;
}

Node& item_of(Node& list, const std::string& key, const Mark& mark, const std::string& path) {
  const auto index = parse_integer(key).value;
  const auto size = static_cast<int64_t>(list.items.size());
  if (!index || *index < 0 || *index > size) {
    throw ConfigError(mark, path, str("is a list of ", size, "; name an item from 0 to ", size, " of it"));
  }
  if (*index == size) list.items.emplace_back();
  return list.items[static_cast<size_t>(*index)];
}

// The node below `parent` at `key`, made when it is not there.
Node& child_of(Node& parent, const std::string& key, const Mark& mark, const std::string& path) {
  if (parent.kind == Node::Kind::list) return item_of(parent, key, mark, path);
  if (parent.kind == Node::Kind::scalar) {
    // `strategy: ddp` is short for {name: ddp}.
    Node name = std::exchange(parent, map_node(mark));
    const Mark place = name.mark;
    parent.fields.push_back({"name", place, std::move(name)});
  }
  if (parent.kind == Node::Kind::null) parent = map_node(mark);
  if (Node* found = parent.find(key)) return *found;
  parent.fields.push_back({key, mark, Node{}});
  parent.fields.back().value.mark = mark;
  return parent.fields.back().value;
}

void mark_overridden(Node& node) {
  node.overridden = true;
  for (Node& item : node.items) mark_overridden(item);
  for (Node::Field& field : node.fields) mark_overridden(field.value);
}

}  // namespace

void apply_override(Node& root, const std::string& assignment) {
  const Assignment wanted = parsed(assignment);
  const Mark mark{"--set " + printable(assignment), 0, 0};
  Node* node = &root;
  std::string path;
  for (const std::string& key : wanted.path) {
    node->overridden = true;
    node = &child_of(*node, key, mark, path);
    path += (path.empty() ? "" : ".") + printable(key);
  }
  Node value = read_yaml_value(wanted.value, mark);
  mark_overridden(value);
  const bool scalars = node->kind == Node::Kind::scalar && value.kind == Node::Kind::scalar;
  value.renamed = node->renamed || (scalars && node->text != value.text);
  *node = std::move(value);
}

Node read_yaml_file(const std::string& path, const std::vector<std::string>& overrides) {
  Node root = path.empty() ? map_node({}) : read_yaml_file(path);
  for (const std::string& assignment : overrides) apply_override(root, assignment);
  return root;
}

}  // namespace convoy
