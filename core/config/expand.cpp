// ${VAR} in scalars.
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/config/reader.h"
#include "core/config/scalars.h"

namespace convoy {
namespace {

bool is_variable_name(std::string_view name) {
  if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
  for (char c : name) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    if (!letter && !(c >= '0' && c <= '9')) return false;
  }
  return true;
}

std::string expanded(const std::string& text, const Mark& mark, const std::string& path, size_t& budget) {
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
    if (end == std::string::npos) throw ConfigError(mark, path, "${ without a }; write $${ for a literal ${");
    const std::string name = text.substr(i + 2, end - i - 2);
    if (!is_variable_name(name)) {
      throw ConfigError(mark, path, str(shown(name), " is no name of a variable; write $${ for a literal ${"));
    }
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) {
      throw ConfigError(mark, path,
                        str("the environment variable ", name, " is not set; export it, or write the value here"));
    }
    const size_t length = std::strlen(value);
    if (length > budget) throw ConfigError(mark, path, "more than 1 MiB of text after ${} was replaced");
    budget -= length;
    out += value;
    i = end + 1;
  }
  check_source(out, mark, true);
  return out;
}

void expand(Node& node, const std::string& path, size_t& budget) {
  const std::string prefix = path.empty() ? "" : path + ".";
  if (node.kind == Node::Kind::scalar && node.text.find("${") != std::string::npos) {
    // Between { } and [ ] YAML wants ${VAR} in quotes: they do not make text of a number.
    const std::string before = std::exchange(node.text, expanded(node.text, node.mark, path, budget));
    if (before.find("$${") == std::string::npos) node.quoted = false;
  }
  for (size_t i = 0; i < node.items.size(); ++i) expand(node.items[i], str(prefix, i), budget);
  for (Node::Field& field : node.fields) expand(field.value, prefix + printable(field.key), budget);
}

}  // namespace

void expand_environment(Node& node) {
  size_t budget = max_config_bytes;
  expand(node, "", budget);
}

}  // namespace convoy
