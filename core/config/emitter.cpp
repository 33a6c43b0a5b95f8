// Resolved data as YAML that reads back as the same data.
#include <algorithm>

#include "core/config/run_config.h"
#include "core/config/scalars.h"

namespace convoy {
namespace {

bool is_plain(const std::string& text) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto more = [&](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '.' || c == '/' || c == '-'; };
  if (text.empty() || !(letter(text[0]) || text[0] == '/')) return false;
  if (!std::all_of(text.begin(), text.end(), more)) return false;
  std::string lower;
  for (char c : text) lower += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  for (const char* word : {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}) {
    if (lower == word) return false;
  }
  return true;
}

// Values are searched for ${VAR} when read, keys are not.
enum class Place { key, value };

std::string text_of(const std::string& text, Place place) {
  if (is_plain(text)) return text;
  std::string out = "\"";
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"' || c == '\\') out += '\\';
    if (place == Place::value && c == '$' && i + 1 < text.size() && text[i + 1] == '{') out += '$';
    out += printable(std::string(1, c));
  }
  return out + "\"";
}

bool is_scalar(const Json& value) { return !value.is_structured() || value.empty() || is_interval(value); }

std::string scalar_of(const Json& value) {
  if (value.is_null()) return "~";
  if (value.is_string()) return text_of(value.get_ref<const std::string&>(), Place::value);
  if (value.is_object() && !value.empty()) return interval_text(value);
  return value.dump();  // numbers, booleans, {} and []
}

void emit_map(const Json& map, const std::string& indent, std::string& out);

// What follows "key:" or "-".
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
      // The first key stands beside the dash.
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
  out += indent + text_of(key, Place::key) + ":";
  emit_value(value, indent, out);
}

void emit_map(const Json& map, const std::string& indent, std::string& out) {
  for (const auto& entry : map.items()) emit_entry(entry.key(), entry.value(), indent, out);
}

}  // namespace

std::string to_yaml(const Json& resolved) {
  std::string out;
  for (const auto& entry : resolved.items())
    if (entry.key() != "marks") emit_entry(entry.key(), entry.value(), "", out);
  return out;
}

}  // namespace convoy
