// Reads fields, lists, maps and components: types, ranges, defaults.

#include "core/config/option_reader.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/config/node.h"

namespace convoy {
namespace {

const char* kind_text(Node::Kind kind) {
  static const char* const texts[] = {"nothing", "a single value", "a list", "a map"};  // in the enum's order
  return texts[static_cast<size_t>(kind)];
}

[[noreturn]] void wrong_kind(const Option& option, const Node& node, const std::string& path) {
  std::string reason = str("must be ", type_with_article(option), ", not ", kind_text(node.kind));
  if (option.type == OptionType::list && node.kind == Node::Kind::scalar)
    reason += str("; did you mean [", printable(node.text), "]?");
  throw ConfigError(node.location, path, reason);
}

// Throws for a mistake in an entry; a plugin's author may have written it.
[[noreturn]] void wrongly_described(const std::string& path, const std::string& reason) {
  throw Error(Failure::config, "option '", path, "' is described wrongly in its entry: ", reason);
}

std::vector<std::string> names_of(const std::vector<Option>& options) {
  std::vector<std::string> names;
  for (const Option& option : options) names.push_back(option.name);
  return names;
}

// Suggests the full path for a key that is one level too high: `epochs` for `train.epochs`.
std::string in_a_section(const std::string& key, const std::vector<Option>& options) {
  for (const Option& option : options) {
    if (option.type != OptionType::section) continue;
    for (const Option& inner : option.options)
      if (inner.name == key) return option.name + "." + key;
  }
  return "";
}

std::string number_text(double value) {
  if (value == std::floor(value) && std::fabs(value) < 1e15) return str(static_cast<int64_t>(value));
  return Json(value).dump();
}

std::string plural(const Option& option);  // "integers"

std::string plain_type(const Option& option) {
  static const char* const simple[] = {// In the enum's order
                                       "true or false", "integer", "number", "text", "",    "duration", "size in bytes",
                                       "interval",      "list",    "map",    "",     "map", "anything"};
  switch (option.type) {
    case OptionType::text:
      if (!option.catalogue.empty()) return "name of a " + option.catalogue;
      break;
    case OptionType::choice:
      return "one of " + join(option.choices, ", ");
    case OptionType::component:
      return option.catalogue + " component";
    case OptionType::list:
    case OptionType::map:
      if (option.options.empty()) break;
      return (option.type == OptionType::list ? "list of " : "map from names to ") + plural(option.options.front());
    default:
      if (!option.types.empty())
        return option.type == OptionType::section ? "map, or its " + option.types : option.types;
  }
  return simple[static_cast<size_t>(option.type)];
}

std::string plural(const Option& option) {
  const std::string type = type_text(option);
  switch (option.type) {
    case OptionType::boolean:
    case OptionType::choice:
      return "values, each " + type;
    case OptionType::list:
      return "lists" + type.substr(4);
    default:
      return type + "s";
  }
}

Option name_option() {
  Option option;
  option.name = "name";
  option.required = true;
  return option;
}

// Names are text, even if YAML would read a number.
std::string name_in(const Node& name, const std::string& kind, const std::string& path) {
  if (name.kind != Node::Kind::scalar) throw ConfigError(name.location, path, "must be the name of one ", kind);
  return name.text;
}

std::string unknown_name(const std::string& kind, const std::string& name, const std::vector<std::string>& valid) {
  const std::string what = "unknown " + kind + " " + shown(name);
  const std::string near = nearest(name, valid);
  if (!near.empty()) return what + "; did you mean " + near + "?";
  return valid.empty() ? what + "; this build has none" : what + "; valid are " + join(valid, ", ");
}

}  // namespace

OptionReader::OptionReader(const Catalogues& catalogues, std::set<std::string> open_kinds,
                           std::vector<ConfigError>* mistakes)
    : catalogues_(catalogues), open_kinds_(std::move(open_kinds)), mistakes_(mistakes) {}

template <class Read>
Json OptionReader::collect_mistakes(const Read& read) {
  if (mistakes_ == nullptr || in_default_ > 0) return read();
  try {
    return read();
  } catch (const ConfigError& mistake) {
    mistakes_->push_back(mistake);
    return nullptr;
  }
}

void OptionReader::add_location(const std::string& path, const SourceLocation& location) {
  if (in_default_ == 0) locations_[path] = location;
}

void OptionReader::add_locations_below(const Node& node, const std::string& path) {
  add_location(path, node.location);
  for (size_t i = 0; i < node.items.size(); ++i) add_locations_below(node.items[i], below(path, str(i)));
  for (const Node::Field& field : node.fields) add_locations_below(field.value, below(path, field.key));
}

void OptionReader::refuse_unknown_keys(const std::vector<Option>& options, const Node& node, const std::string& path) {
  for (const Node::Field& field : node.fields) {
    if (std::any_of(options.begin(), options.end(), [&](const Option& option) { return option.name == field.key; }))
      continue;
    const std::vector<std::string> valid = names_of(options);
    const std::string key = below(path, printable(field.key));
    if (in_renamed_ > 0 && !field.value.overridden) {
      warnings_.push_back(
          str(to_string(field.location), ": ", key, ": ignored, because the component from --set has no such option"));
      continue;
    }
    std::string near = nearest(field.key, valid);
    if (!near.empty() && node.find(near) == nullptr) meant_.insert(below(path, near));
    if (near.empty()) near = in_a_section(field.key, options);
    const SourceLocation& location = field.value.overridden ? field.value.location : field.location;
    collect_mistakes([&]() -> Json {
      throw ConfigError(
          location, key,
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
        collect_mistakes([&] { return field != nullptr ? read(option, *field, key) : fallback(option, node, key); });
  }
  return values;
}

Json OptionReader::fallback(const Option& option, const Node& parent, const std::string& path) {
  if (option.required) {
    std::string reason = "is missing and required";
    if (!option.help.empty()) reason += ": " + option.help;
    throw ConfigError(parent.location, path, reason);
  }
  if (option.fallback.json().is_null()) {
    if (option.type == OptionType::section && !option.nullable)
      return read_fields(option.options, map_node(parent.location), path);
    return nullptr;
  }
  if (option.type == OptionType::any) return option.fallback.json();
  ++in_default_;
  Json value;
  try {
    value = read(option, node_of(option.fallback.json(), {{"", parent.location}}), path);
  } catch (const ConfigError& error) {
    wrongly_described(path, str("its default does not fit: ", error.what()));
  }
  --in_default_;
  return value;
}

Json OptionReader::read(const Option& option, const Node& node, const std::string& path) {
  // Null equals an absent key where absence is the default.
  const bool no_default =
      option.fallback.json().is_null() || (option.type == OptionType::list && option.fallback.json().empty());
  const bool unset = node.kind == Node::Kind::null && no_default && !option.required;
  if (!unset) add_location(path, node.location);
  if (node.kind == Node::Kind::null) {
    if (option.nullable || (!option.required && option.fallback.json().is_null() && option.type != OptionType::section))
      return nullptr;
    if (unset && option.type == OptionType::list) return option.fallback.json();
    throw ConfigError(node.location, path,
                      option.required ? "is empty and required" : "is empty; leave the key out for its default");
  }
  if (option.also_auto && node.kind == Node::Kind::scalar && node.text == "auto") return "auto";
  return read_value(option, node, path);
}

Json OptionReader::read_value(const Option& option, const Node& node, const std::string& path) {
  switch (option.type) {
    case OptionType::any:
      add_locations_below(node, path);
      return untyped(node, false);
    case OptionType::list:
      return read_list(option, node, path);
    case OptionType::map:
      return read_map(option, node, path);
    case OptionType::component:
      return read_component(option, node, path);
    case OptionType::section:
      return read_section(option, node, path);
    default:
      break;
  }
  if (node.kind != Node::Kind::scalar) wrong_kind(option, node, path);
  return read_scalar(option, node, path);
}

Json OptionReader::read_section(const Option& option, const Node& node, const std::string& path) {
  if (node.kind == Node::Kind::map && option.types.empty()) return read_fields(option.options, node, path);
  Node written = node;
  if (node.kind == Node::Kind::scalar && !option.types.empty()) {  // init_from: PATH
    written = map_node(node.location);
    written.fields.push_back({option.types, node.location, node});
  }
  if (written.kind != Node::Kind::map) wrong_kind(option, node, path);
  // --set KEY.OTHER=… has made {name: PATH, other: …} of KEY: PATH.
  for (Node::Field& field : written.fields)
    if (field.key == "name" && written.find(option.types) == nullptr) field.key = option.types;
  return read_fields(option.options, written, path);
}

Json OptionReader::read_list(const Option& option, const Node& node, const std::string& path) {
  if (node.kind != Node::Kind::list) wrong_kind(option, node, path);
  if (option.options.size() != 1) wrongly_described(path, "a list describes exactly one item");
  Json list = Json::array();
  for (size_t i = 0; i < node.items.size(); ++i) {
    const std::string item = below(path, str(i));
    list.push_back(collect_mistakes([&] {
      if (node.items[i].kind == Node::Kind::null && !option.options.front().nullable)
        throw ConfigError(node.items[i].location, item, "is empty; give a value or leave the item out");
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
        collect_mistakes([&] { return read(option.options.front(), field.value, below(path, printable(field.key))); });
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
  if (!near.empty()) throw ConfigError(node.location, path, what + "; did you mean " + near + "?");
  throw ConfigError(node.location, path, choice ? what : what + "; valid are " + join(valid, ", "));
}

Json OptionReader::read_scalar(const Option& option, const Node& node, const std::string& path) {
  const auto refuse = [&](std::string reason) {
    if (option.also_auto && reason.find(';') == std::string::npos) reason += ", or auto";
    throw ConfigError(node.location, path, "is ", shown(node.text), ", ", reason);
  };
  const auto unless_quoted = [&](const auto& parsed) {
    if (!parsed.value) refuse(parsed.reason);
    if (node.quoted) {
      throw ConfigError(node.location, path, "is text in quotes, must be ", type_with_article(option),
                        "; leave the quotes out");
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
    case OptionType::real: {
      const double value = unless_quoted(parse_real(node.text));
      check_range(option, value, node, path);
      // A larger one would become infinite in a tensor of fp32.
      if (std::abs(value) > std::numeric_limits<float>::max())
        refuse("must be within ±3.4e38, the range of 32-bit floating point");
      return value;
    }
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
  throw ConfigError(node.location, path, "is ", printable(node.text), ", must be ", range_text(option), unit);
}

// --- Texts of types ---

std::string type_text(const Option& option) { return plain_type(option) + (option.also_auto ? ", or auto" : ""); }

std::string type_with_article(const Option& option) {
  switch (option.type) {
    case OptionType::boolean:
    case OptionType::choice:
    case OptionType::any:
      return type_text(option);
    case OptionType::text:
      return option.catalogue.empty() ? type_text(option) : "the " + type_text(option);
    case OptionType::integer:
    case OptionType::interval:
      return "an " + type_text(option);
    default:
      return "a " + type_text(option);
  }
}

std::string range_text(const Option& option) {
  std::vector<std::string> parts;
  if (option.minimum)
    parts.push_back((option.exclusive_minimum ? "above " : "at least ") + number_text(*option.minimum));
  if (option.maximum) parts.push_back("at most " + number_text(*option.maximum));
  return join(parts, ", ");
}

// --- Components: a name from a catalogue, and the options of its entry ---

Json OptionReader::read_plugin_model(const Node& node, const std::string& path) {
  const Node& plugin = *node.find("plugin");
  const std::string key = path + ".plugin";
  if (plugin.kind != Node::Kind::scalar || plugin.text.empty())
    throw ConfigError(plugin.location, key, "must be the absolute path of a shared library");
  if (plugin.text.front() != '/') {
    if (node.find("name") == nullptr) meant_.insert(below(path, "name"));  // not missing: the library supplies it
    throw ConfigError(plugin.location, key, "must be an absolute path, so that it is clear what is loaded; is ",
                      shown(plugin.text));
  }
  add_locations_below(node, path);
  Json values{{"plugin", plugin.text}};
  const Json written = untyped(node, true);
  for (const auto& entry : written.items())
    if (entry.key() != "plugin") values[entry.key()] = entry.value();
  if (const Node* name = node.find("name")) values["name"] = name_in(*name, "model", path + ".name");
  return values;
}

Json OptionReader::read_component(const Option& option, const Node& node, const std::string& path) {
  const std::string& kind = option.catalogue;
  Node written = node;
  if (node.kind == Node::Kind::scalar) {  // strategy: ddp
    written = map_node(node.location);
    written.fields.push_back({"name", node.location, node});
  }
  if (written.kind != Node::Kind::map)
    throw ConfigError(node.location, path, "must be the name of a ", kind, " or a map with one, not a list");
  const bool plugin = kind == "model" && written.find("plugin") != nullptr;
  const Node* name = written.find("name");
  if (plugin && (name == nullptr || open_kinds_.count(kind) != 0)) return read_plugin_model(written, path);
  if (name == nullptr) {
    throw ConfigError(node.location, path + ".name", "is missing and required: which ", kind, "; valid are ",
                      join(catalogues_.names(kind), ", "));
  }
  const std::string name_path = path + ".name";
  const std::string named = name_in(*name, kind, name_path);
  const Entry* entry = catalogues_.find(kind, named);
  if (entry == nullptr) {
    if (open_kinds_.count(kind) != 0) {
      add_locations_below(written, path);
      Json values = untyped(written, true);
      values["name"] = named;
      return values;
    }
    throw ConfigError(name->location, node.kind == Node::Kind::scalar ? path : name_path,
                      unknown_name(kind, named, catalogues_.names(kind)));
  }
  std::vector<Option> all{name_option()};
  if (plugin) {
    all.push_back(name_option());
    all.back().name = "plugin";
  }
  all.insert(all.end(), entry->options.begin(), entry->options.end());
  all.insert(all.end(), option.options.begin(), option.options.end());
  const int renamed = name->renamed ? 1 : 0;
  in_renamed_ += renamed;
  Json values = read_fields(all, written, path);
  in_renamed_ -= renamed;
  return values;
}

}  // namespace convoy
