
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/config/reader.h"
#include "core/config/run_config.h"

namespace convoy {
namespace {

[[noreturn]] void refuse(const std::string& assignment, const std::string& reason) {
  throw Error(Failure::command_line, "--set ", shortened(printable(assignment)), ": ", reason,
              "; write --set KEY=VALUE, such as --set train.epochs=3");
}

// Key path and value of KEY=VALUE.
std::pair<std::vector<std::string>, std::string> parsed(const std::string& text) {
  std::vector<std::string> path;
  std::string key;
  bool quoted = false;
  size_t i = 0;
  for (; i < text.size() && (quoted || text[i] != '='); ++i) {
    if (text[i] == '"') {
      quoted = !quoted;
    } else if (text[i] == '.' && !quoted) {
      if (key.empty()) refuse(text, "an empty key before a dot");
      path.push_back(std::exchange(key, ""));
    } else {
      key += text[i];
    }
  }
  if (quoted) refuse(text, "a quote that does not end");
  if (i == text.size()) refuse(text, "no = in it");
  if (key.empty()) refuse(text, "no key before =");
  path.push_back(key);
  if (path.size() > static_cast<size_t>(max_config_depth)) refuse(text, "a path of more than 64 keys");
  return {path, text.substr(i + 1)};
}

Node& item_of(Node& list, const std::string& key, const SourceLocation& location, const std::string& path) {
  const auto index = parse_integer(key).value;
  const auto size = static_cast<int64_t>(list.items.size());
  if (!index || *index < 0 || *index > size)
    throw ConfigError(location, path, "is a list of ", size, "; name an item from 0 to ", size, " of it");
  if (*index == size) list.items.emplace_back();
  return list.items[static_cast<size_t>(*index)];
}

// Node at `key` below `parent`; creates it if it does not exist.
Node& child_of(Node& parent, const std::string& key, const SourceLocation& location, const std::string& path) {
  if (parent.kind == Node::Kind::list) return item_of(parent, key, location, path);
  if (parent.kind == Node::Kind::scalar) {
    // `strategy: ddp` is short for {name: ddp}.
    Node name = std::exchange(parent, map_node(location));
    const SourceLocation name_location = name.location;
    parent.fields.push_back({"name", name_location, std::move(name)});
  }
  if (parent.kind == Node::Kind::null) parent = map_node(location);
  if (Node* found = parent.find(key)) return *found;
  parent.fields.push_back({key, location, Node{}});
  parent.fields.back().value.location = location;
  return parent.fields.back().value;
}

void mark_overridden(Node& node) {
  node.overridden = true;
  for (Node& item : node.items) mark_overridden(item);
  for (Node::Field& field : node.fields) mark_overridden(field.value);
}

// --- ${VAR} in scalars ---

bool is_variable_name(std::string_view name) {
  if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
  for (char c : name) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    if (!letter && !(c >= '0' && c <= '9')) return false;
  }
  return true;
}

std::string expanded(const std::string& text, const SourceLocation& location, const std::string& path, size_t& budget) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (text.compare(i, 3, "$${") == 0) {
      out += "${";
      i += 3;
      continue;
    }
    if (text.compare(i, 2, "${") != 0) {
      out += text[i++];
      continue;
    }
    const size_t end = text.find('}', i);
    if (end == std::string::npos) throw ConfigError(location, path, "${ without a }; write $${ for a literal ${");
    const std::string name = text.substr(i + 2, end - i - 2);
    if (!is_variable_name(name))
      throw ConfigError(location, path, shown(name), " is no name of a variable; write $${ for a literal ${");
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) {
      throw ConfigError(location, path, "the environment variable ", name,
                        " is not set; export it, or write the value here");
    }
    const size_t length = std::strlen(value);
    if (length > budget) throw ConfigError(location, path, "more than 1 MiB of text after ${} was replaced");
    budget -= length;
    out += value;
    i = end + 1;
  }
  check_source(out, location, true);
  return out;
}

void expand(Node& node, const std::string& path, size_t& budget) {
  const std::string prefix = path.empty() ? "" : path + ".";
  if (node.kind == Node::Kind::scalar && node.text.find("${") != std::string::npos) {
    // Inside { } and [ ], YAML requires quotes around ${VAR}; these quotes do not turn a number into text.
    const std::string before = std::exchange(node.text, expanded(node.text, node.location, path, budget));
    if (before.find("$${") == std::string::npos) node.quoted = false;
  }
  for (size_t i = 0; i < node.items.size(); ++i) expand(node.items[i], str(prefix, i), budget);
  for (Node::Field& field : node.fields) expand(field.value, prefix + printable(field.key), budget);
}

// --- Resolved data as YAML that reads back as the same data ---

bool is_plain(const std::string& text) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto more = [&](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '.' || c == '/' || c == '-'; };
  if (text.empty() || !(letter(text[0]) || text[0] == '/')) return false;
  if (!std::all_of(text.begin(), text.end(), more)) return false;
  std::string lower;
  for (char c : text) lower += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  for (const char* word : {"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
    if (lower == word) return false;
  return true;
}

// ${VAR} is replaced in values, not in keys.
enum class ScalarRole { key, value };

std::string text_of(const std::string& text, ScalarRole role) {
  if (is_plain(text)) return text;
  std::string out = "\"";
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"' || c == '\\') out += '\\';
    if (role == ScalarRole::value && c == '$' && i + 1 < text.size() && text[i + 1] == '{') out += '$';
    out += printable(std::string(1, c));
  }
  return out + "\"";
}

bool is_scalar(const Json& value) { return !value.is_structured() || value.empty() || is_interval(value); }

std::string scalar_of(const Json& value) {
  if (value.is_null()) return "~";
  if (value.is_string()) return text_of(value.get_ref<const std::string&>(), ScalarRole::value);
  if (value.is_object() && !value.empty()) return interval_text(value);
  return value.dump();  // numbers, booleans, {} and []
}

void emit_map(const Json& map, const std::string& indent, std::string& out);

// Text after "key:" or "-".
void emit_value(const Json& value, const std::string& indent, std::string& out) {
  if (is_scalar(value)) {
    out += " " + scalar_of(value) + "\n";
    return;
  }
  if (value.is_object()) {
    out += "\n";
    emit_map(value, indent + "  ", out);
    return;
  }
  if (std::all_of(value.begin(), value.end(), is_scalar)) {
    out += " [";
    for (size_t i = 0; i < value.size(); ++i) out += (i == 0 ? "" : ", ") + scalar_of(value[i]);
    out += "]\n";
    return;
  }
  out += "\n";
  for (const Json& item : value) {
    if (item.is_object() && !is_scalar(item)) {
      // The first key follows the dash on the same line.
      std::string map;
      emit_map(item, indent + "    ", map);
      out += indent + "  - " + map.substr(indent.size() + 4);
      continue;
    }
    out += indent + "  -";
    emit_value(item, indent + "  ", out);
  }
}

void emit_entry(const std::string& key, const Json& value, const std::string& indent, std::string& out) {
  out += indent + text_of(key, ScalarRole::key) + ":";
  emit_value(value, indent, out);
}

void emit_map(const Json& map, const std::string& indent, std::string& out) {
  for (const auto& entry : map.items()) emit_entry(entry.key(), entry.value(), indent, out);
}

}  // namespace

void apply_override(Node& root, const std::string& assignment) {
  const auto [keys, text] = parsed(assignment);
  // Shortened, because every value of a long list keeps a copy.
  const SourceLocation location{"--set " + shortened(printable(assignment)), 0, 0};
  Node* node = &root;
  std::string path;
  for (const std::string& key : keys) {
    node->overridden = true;
    node = &child_of(*node, key, location, path);
    path += (path.empty() ? "" : ".") + printable(key);
  }
  Node value = read_yaml_value(text, location);
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

void expand_environment(Node& node) {
  size_t budget = max_config_bytes;
  expand(node, "", budget);
}

std::string to_yaml(const Json& resolved) {
  std::string out;
  for (const auto& entry : resolved.items())
    if (entry.key() != "marks") emit_entry(entry.key(), entry.value(), "", out);
  return out;
}

}  // namespace convoy
