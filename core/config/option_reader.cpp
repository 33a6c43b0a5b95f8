// Types, ranges and defaults of fields, lists and maps. Components: component_reader.cpp.
#include "core/config/option_reader.h"

#include <algorithm>
#include <utility>

#include "core/config/scalars.h"

namespace convoy {
namespace {

std::string below(const std::string& path, const std::string& key) { return path.empty() ? key : path + "." + key; }

const char* kind_text(Node::Kind kind) {
  switch (kind) {
    case Node::Kind::null:
      return "nothing";
    case Node::Kind::scalar:
      return "a single value";
    case Node::Kind::list:
      return "a list";
    case Node::Kind::map:
      break;
  }
  return "a map";
}

[[noreturn]] void wrong_kind(const Option& option, const Node& node, const std::string& path) {
  std::string reason = str("must be ", type_with_article(option), ", not ", kind_text(node.kind));
  if (option.type == OptionType::list && node.kind == Node::Kind::scalar) {
    reason += str("; did you mean [", printable(node.text), "]?");
  }
  throw ConfigError(node.mark, path, reason);
}

// Reports a mistake in an entry, which a plugin's author may have written.
[[noreturn]] void wrongly_described(const std::string& path, const std::string& reason) {
  throw Error(Failure::config, str("option '", path, "' is described wrongly in its entry: ", reason));
}

std::vector<std::string> names_of(const std::vector<Option>& options) {
  std::vector<std::string> names;
  for (const Option& option : options) names.push_back(option.name);
  return names;
}

// A key that stands one level too high: `epochs` for `train.epochs`.
std::string in_a_section(const std::string& key, const std::vector<Option>& options) {
  for (const Option& option : options) {
    if (option.type != OptionType::section) continue;
    for (const Option& inner : option.options) {
      if (inner.name == key) return option.name + "." + key;
    }
  }
  return "";
}

}  // namespace

OptionReader::OptionReader(const Catalogues& catalogues, std::set<std::string> open_kinds,
                           std::vector<ConfigError>* mistakes)
    : catalogues_(catalogues), open_kinds_(std::move(open_kinds)), mistakes_(mistakes) {}

template <class Read>
Json OptionReader::gathered(const Read& read) {
  if (mistakes_ == nullptr || in_default_ > 0) return read();
  try {
    return read();
  } catch (const ConfigError& mistake) {
    mistakes_->push_back(mistake);
    return nullptr;
  }
}

void OptionReader::remember(const std::string& path, const Mark& mark) {
  if (in_default_ == 0) marks_[path] = mark;
}

void OptionReader::remember_all(const Node& node, const std::string& path) {
  remember(path, node.mark);
  for (size_t i = 0; i < node.items.size(); ++i) remember_all(node.items[i], below(path, str(i)));
  for (const Node::Field& field : node.fields) remember_all(field.value, below(path, field.key));
}

void OptionReader::refuse_unknown_keys(const std::vector<Option>& options, const Node& node, const std::string& path) {
  for (const Node::Field& field : node.fields) {
    if (std::any_of(options.begin(), options.end(), [&](const Option& option) { return option.name == field.key; }))
      continue;
    const std::vector<std::string> valid = names_of(options);
    const std::string key = below(path, printable(field.key));
    if (in_renamed_ > 0 && !field.value.overridden) {
      warnings_.push_back(str(to_string(field.mark), ": ", key, ": left out, as what --set chose does not take it"));
      continue;
    }
    std::string near = nearest(field.key, valid);
    if (near.empty()) near = in_a_section(field.key, options);
    const Mark& mark = field.value.overridden ? field.value.mark : field.mark;
    gathered([&]() -> Json {
      throw ConfigError(
          mark, key,
          near.empty() ? "unknown key; valid here: " + join(valid, ", ") : "unknown key; did you mean " + near + "?");
    });
  }
}

Json OptionReader::read_fields(const std::vector<Option>& options, const Node& node, const std::string& path) {
  refuse_unknown_keys(options, node, path);
  Json values = Json::object();
  for (const Option& option : options) {
    const Node* field = node.find(option.name);
    const std::string key = below(path, option.name);
    values[option.name] =
        gathered([&] { return field != nullptr ? read(option, *field, key) : fallback(option, node, key); });
  }
  return values;
}

Json OptionReader::fallback(const Option& option, const Node& parent, const std::string& path) {
  if (option.required) {
    std::string reason = "is missing and required";
    if (!option.help.empty()) reason += ": " + option.help;
    throw ConfigError(parent.mark, path, reason);
  }
  if (option.fallback.is_null()) {
    if (option.type == OptionType::section && !option.nullable) {
      return read_fields(option.options, map_node(parent.mark), path);
    }
    return nullptr;
  }
  if (option.type == OptionType::any) return option.fallback;
  ++in_default_;
  Json value;
  try {
    value = read(option, node_of(option.fallback, {{"", parent.mark}}), path);
  } catch (const ConfigError& error) {
    wrongly_described(path, str("its default does not fit: ", error.what()));
  }
  --in_default_;
  return value;
}

Json OptionReader::read(const Option& option, const Node& node, const std::string& path) {
  remember(path, node.mark);
  if (node.kind == Node::Kind::null) {
    if (option.nullable || (!option.required && option.fallback.is_null() && option.type != OptionType::section)) {
      return nullptr;
    }
    throw ConfigError(node.mark, path,
                      option.required ? "is empty and required" : "is empty; leave the key out for its default");
  }
  if (option.also_auto && node.kind == Node::Kind::scalar && node.text == "auto") return "auto";
  return read_value(option, node, path);
}

Json OptionReader::read_value(const Option& option, const Node& node, const std::string& path) {
  switch (option.type) {
    case OptionType::any:
      remember_all(node, path);
      return untyped(node, false);
    case OptionType::list:
      return read_list(option, node, path);
    case OptionType::map:
      return read_map(option, node, path);
    case OptionType::component:
      return read_component(option, node, path);
    case OptionType::section:
      if (node.kind != Node::Kind::map) wrong_kind(option, node, path);
      return read_fields(option.options, node, path);
    default:
      break;
  }
  if (node.kind != Node::Kind::scalar) wrong_kind(option, node, path);
  return read_scalar(option, node, path);
}

Json OptionReader::read_list(const Option& option, const Node& node, const std::string& path) {
  if (node.kind != Node::Kind::list) wrong_kind(option, node, path);
  if (option.options.size() != 1) wrongly_described(path, "a list describes exactly one item");
  Json list = Json::array();
  for (size_t i = 0; i < node.items.size(); ++i) {
    const std::string item = below(path, str(i));
    list.push_back(gathered([&] {
      if (node.items[i].kind == Node::Kind::null && !option.options.front().nullable)
        throw ConfigError(node.items[i].mark, item, "is empty; give a value or leave the item out");
      return read(option.options.front(), node.items[i], item);
    }));
  }
  return list;
}

Json OptionReader::read_map(const Option& option, const Node& node, const std::string& path) {
  if (node.kind != Node::Kind::map) wrong_kind(option, node, path);
  if (option.options.size() != 1) wrongly_described(path, "a map describes exactly one value");
  Json map = Json::object();
  for (const Node::Field& field : node.fields) {
    map[field.key] =
        gathered([&] { return read(option.options.front(), field.value, below(path, printable(field.key))); });
  }
  return map;
}

Json OptionReader::read_text(const Option& option, const Node& node, const std::string& path) {
  const bool choice = option.type == OptionType::choice;
  if (!choice && option.catalogue.empty()) return node.text;
  std::vector<std::string> valid = choice ? option.choices : catalogues_.names(option.catalogue);
  if (std::find(valid.begin(), valid.end(), node.text) != valid.end()) return node.text;
  if (option.also_auto) valid.insert(valid.begin(), "auto");
  const std::string near = nearest(node.text, valid);
  const std::string what = choice ? "is " + shown(node.text) + ", must be one of " + join(valid, ", ")
                                  : "unknown " + option.catalogue + " " + shown(node.text);
  if (!near.empty()) throw ConfigError(node.mark, path, what + "; did you mean " + near + "?");
  throw ConfigError(node.mark, path, choice ? what : what + "; valid are " + join(valid, ", "));
}

Json OptionReader::read_scalar(const Option& option, const Node& node, const std::string& path) {
  const auto refuse = [&](std::string reason) {
    if (option.also_auto && reason.find(';') == std::string::npos) reason += ", or auto";
    throw ConfigError(node.mark, path, str("is ", shown(node.text), ", ", reason));
  };
  const auto unless_quoted = [&](const auto& parsed) {
    if (!parsed.value) refuse(parsed.reason);
    if (node.quoted) {
      throw ConfigError(node.mark, path,
                        str("is text in quotes, must be ", type_with_article(option), "; leave the quotes out"));
    }
    return *parsed.value;
  };
  const auto in_range = [&](auto value) {
    check_range(option, static_cast<double>(value), node, path);
    return Json(value);
  };
  const auto parsed_or_refuse = [&](const auto& parsed) {
    if (!parsed.value) refuse(parsed.reason);
    return *parsed.value;
  };
  switch (option.type) {
    case OptionType::boolean:
      return unless_quoted(parse_boolean(node.text));
    case OptionType::integer:
      return in_range(unless_quoted(parse_integer(node.text)));
    case OptionType::real:
      return in_range(unless_quoted(parse_real(node.text)));
    case OptionType::duration:
      return in_range(parsed_or_refuse(parse_duration(node.text)));
    case OptionType::bytes:
      return in_range(parsed_or_refuse(parse_bytes(node.text)));
    case OptionType::interval:
      return parsed_or_refuse(parse_interval(node.text));
    default:
      return read_text(option, node, path);
  }
}

void OptionReader::check_range(const Option& option, double value, const Node& node, const std::string& path) const {
  if (in_default_ > 0) return;
  const bool low = option.minimum && (option.exclusive_minimum ? value <= *option.minimum : value < *option.minimum);
  const bool high = option.maximum && value > *option.maximum;
  if (!low && !high) return;
  const std::string unit = option.unit.empty() ? "" : " " + option.unit;
  throw ConfigError(node.mark, path, str("is ", printable(node.text), ", must be ", range_text(option), unit));
}

}  // namespace convoy
