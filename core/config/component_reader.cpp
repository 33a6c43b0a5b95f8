// Components: a name from a catalogue, and the options of what bears it.
#include <algorithm>

#include "core/config/option_reader.h"
#include "core/config/scalars.h"

namespace convoy {
namespace {

Option name_option() {
  Option option;
  option.name = "name";
  option.required = true;
  return option;
}

// Names are text, also where YAML would read a number.
std::string name_in(const Node& name, const std::string& kind, const std::string& path) {
  if (name.kind != Node::Kind::scalar) throw ConfigError(name.mark, path, str("must be the name of one ", kind));
  return name.text;
}

std::string unknown_name(const std::string& kind, const std::string& name, const std::vector<std::string>& valid) {
  const std::string what = "unknown " + kind + " " + shown(name);
  const std::string near = nearest(name, valid);
  if (!near.empty()) return what + "; did you mean " + near + "?";
  return valid.empty() ? what + "; this build has none" : what + "; valid are " + join(valid, ", ");
}

}  // namespace

Json OptionReader::read_plugin_model(const Node& node, const std::string& path) {
  const Node& plugin = *node.find("plugin");
  const std::string key = path + ".plugin";
  if (plugin.kind != Node::Kind::scalar || plugin.text.empty()) {
    throw ConfigError(plugin.mark, key, "must be the absolute path of a shared library");
  }
  if (plugin.text.front() != '/') {
    throw ConfigError(plugin.mark, key,
                      str("must be an absolute path, so that it is clear what is loaded; is ", shown(plugin.text)));
  }
  remember_all(node, path);
  Json values{{"plugin", plugin.text}};
  const Json written = untyped(node, true);
  for (const auto& entry : written.items()) {
    if (entry.key() != "plugin") values[entry.key()] = entry.value();
  }
  if (const Node* name = node.find("name")) values["name"] = name_in(*name, "model", path + ".name");
  return values;
}

Json OptionReader::read_component(const Option& option, const Node& node, const std::string& path) {
  const std::string& kind = option.catalogue;
  Node written = node;
  if (node.kind == Node::Kind::scalar) {  // strategy: ddp
    written = map_node(node.mark);
    written.fields.push_back({"name", node.mark, node});
  }
  if (written.kind != Node::Kind::map) {
    throw ConfigError(node.mark, path, str("must be the name of a ", kind, " or a map with one, not a list"));
  }
  const bool plugin = kind == "model" && written.find("plugin") != nullptr;
  const Node* name = written.find("name");
  if (plugin && (name == nullptr || open_kinds_.count(kind) != 0)) return read_plugin_model(written, path);
  if (name == nullptr) {
    throw ConfigError(
        node.mark, path + ".name",
        str("is missing and required: which ", kind, "; valid are ", join(catalogues_.names(kind), ", ")));
  }
  const std::string name_path = path + ".name";
  const std::string named = name_in(*name, kind, name_path);
  const Entry* entry = catalogues_.find(kind, named);
  if (entry == nullptr) {
    if (open_kinds_.count(kind) != 0) {
      remember_all(written, path);
      Json values = untyped(written, true);
      values["name"] = named;
      return values;
    }
    throw ConfigError(name->mark, node.kind == Node::Kind::scalar ? path : name_path,
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
