#include <cmath>
#include <cstring>
#include <set>

#include "core/base/text.h"
#include "core/config/option_reader.h"
#include "core/config/program.h"
#include "launch/farm/config/farm.h"
#include "launch/generate/generate.h"

namespace convoy {
namespace {

// The reader replaces ${VAR} in every value, so a text with one is valid in place of any value.
constexpr const char* variable = R"(\$\{)";
constexpr const char* number = R"([-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?)";
constexpr const char* duration_units = "us|ms|s|sec|seconds?|m|min|minutes?|h|hours?|d|days?";
constexpr const char* byte_units = "[kKMGT]?B|[KMGT]iB";

// Kinds whose names a plugin may add; see kinds_left_open in core/config/run_reader.cpp.
const std::set<std::string> kinds_of_plugins{"model", "data", "loss", "transform"};

Json reference(const std::string& name) { return {{"$ref", "#/definitions/" + name}}; }
Json constant(const Json& value) { return {{"const", value}}; }
Json list_of(Json item) { return {{"type", "array"}, {"items", std::move(item)}}; }

// {"if": condition, "then": consequence, "else": alternative}; an empty alternative is left out.
Json choice_of(Json condition, Json consequence, Json alternative = Json::object()) {
  Json rule{{"if", std::move(condition)}, {"then", std::move(consequence)}};
  if (!alternative.empty()) rule["else"] = std::move(alternative);
  return rule;
}

Json has_key(const std::string& key) { return {{"type", "object"}, {"required", Json::array({key})}}; }

// A map with this name, or the name alone.
Json is_named(const std::string& name) {
  Json map = has_key("name");
  map["properties"] = {{"name", constant(name)}};
  return {{"anyOf", {constant(name), map}}};
}

Json shortest_number(double value) {
  if (std::floor(value) == value && std::fabs(value) < 1e15) return static_cast<int64_t>(value);
  return value;
}

// A choice that YAML reads as a boolean or a number is that value.
Json choices_of(const std::vector<std::string>& words, bool also_auto) {
  Json values = Json::array();
  if (also_auto) values.push_back("auto");
  for (const std::string& word : words) {
    const Json read = parsed_json(word);
    values.push_back(read.is_boolean() || read.is_number() ? read : Json(word));
  }
  return {{"anyOf", {{{"enum", values}}, {{"type", "string"}, {"pattern", variable}}}}};
}

bool may_be_null(const Option& option) {
  if (option.nullable) return true;
  const Json& fallback = option.fallback.json();
  if (option.required || option.type == OptionType::section) return false;
  return fallback.is_null() || (option.type == OptionType::list && fallback.empty());
}

// A type of OptionType::any as its description names it: "list of numbers", "map", or a word that is valid itself.
Json type_named(const std::string& text) {
  const Json numbers{
      {"integer", {{"type", "integer"}}}, {"number", {{"type", "number"}}}, {"map", {{"type", "object"}}}};
  if (numbers.contains(text)) return numbers[text];
  if (text == "list of integers") return list_of({{"type", {"integer", "string"}}});
  if (text == "list of numbers") return list_of({{"type", {"number", "string"}}});
  if (begins_with(text, "list of ")) return list_of({{"type", {"string", "number", "boolean"}}});
  if (text == "true" || text == "false") return constant(text == "true");
  if (text == "path" || begins_with(text, "name of ")) return {{"type", "string"}};
  return constant(text);
}

// "integer, or list of integers": the alternatives.
std::vector<std::string> alternatives_of(std::string text) {
  for (const char* word : {", or ", " or "})
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word))
      text.replace(at, strlen(word), ", ");
  std::vector<std::string> words;
  for (const std::string& word : split(text, ',')) words.push_back(word.substr(word.find_first_not_of(' ')));
  return words;
}

Json any_of_types(const Option& option) {
  Json all = Json::array();
  for (const std::string& word : alternatives_of(option.types)) {
    if (word == "value" || word.empty()) return Json::object();
    all.push_back(type_named(word));
  }
  all.push_back({{"type", "string"}, {"pattern", variable}});
  return {{"anyOf", all}};
}

Json plugin_path() { return {{"type", "string"}, {"pattern", str("^/|", variable)}}; }

class SchemaWriter {
 public:
  explicit SchemaWriter(const Catalogues& catalogues) : catalogues_(catalogues) {}

  Json write() {
    for (const Option& option : run_options()) definitions_["key-" + option.name] = value(option);
    for (const auto& [kind, entries] : catalogues_.kinds)
      for (const Entry& entry : entries) definitions_[kind + "-" + entry.name] = entry_fields(kind, entry);
    definitions_["run"] = one_run();
    definitions_["program"] = fields(program_options(), true);
    definitions_["program"]["required"] = Json::array({"program"});  // its file may supply the name
    definitions_["farm"] = farm();
    definitions_["added-pipeline"] = added_pipeline();
    Json named_run = Json::object();
    named_run["allOf"] = Json::array({reference("run"), has_key("name")});
    Json not_a_run{{"anyOf", {has_key("model"), has_key("strategy")}}};
    Json pipeline = has_key("config");
    pipeline["not"] = not_a_run;
    Json strategy = has_key("strategy");
    strategy["properties"] = {{"strategy", is_named(farm_strategy)}};
    return {
        {"$schema", "http://json-schema.org/draft-07/schema#"},
        {"$comment", "Made by `convoy list --json-schema > configs/schema.json` from the options that check the file."},
        {"title", "convoy"},
        {"description", "Configuration of convoy: a run, a farm, or a pipeline for `convoy add`"},
        {"type", "object"},
        {"if", pipeline},
        {"then", reference("added-pipeline")},
        {"else",
         choice_of(strategy, reference("farm"), choice_of(has_key("program"), reference("program"), named_run))},
        {"definitions", definitions_}};
  }

 private:
  // The schema of a value, without required keys of components and of sections of the file. `required_in` adds those,
  // because the keys that pipelines of a farm share may lack them.
  Json value(const Option& option) const {
    Json schema = Json::object();
    const std::string unit = option.unit.empty() ? "" : " (" + option.unit + ")";
    if (!option.help.empty()) schema["description"] = option.help + unit;
    if (!option.fallback.json().is_null()) schema["default"] = option.fallback.json();
    schema.update(type_of(option));
    if (!may_be_null(option)) return schema;
    if (schema.contains("type")) {
      if (!schema["type"].is_array()) schema["type"] = Json::array({schema["type"]});
      schema["type"].push_back("null");
    } else if (schema.contains("anyOf")) {
      schema["anyOf"].push_back({{"type", "null"}});
    }
    return schema;
  }

  Json type_of(const Option& option) const {
    const std::string auto_pattern = option.also_auto ? "^auto$|" : "";
    const auto quantity = [&](Json types, const std::string& pattern) {
      types.push_back("string");
      Json schema{{"type", types}, {"pattern", auto_pattern + pattern}};
      if (option.minimum)
        schema[option.exclusive_minimum ? "exclusiveMinimum" : "minimum"] = shortest_number(*option.minimum);
      if (option.maximum) schema["maximum"] = shortest_number(*option.maximum);
      return schema;
    };
    const auto with_units = [&](const char* units) {
      return quantity(Json::array({"number"}), str("^", number, " *(", units, ")?$|", variable));
    };
    switch (option.type) {
      case OptionType::boolean:
        return {{"type", {"boolean", "string"}}, {"pattern", auto_pattern + variable}};
      case OptionType::integer:
        return quantity(Json::array({"integer"}), variable);
      case OptionType::real:
        return quantity(Json::array({"number"}), variable);
      case OptionType::duration:
        return with_units(duration_units);
      case OptionType::bytes:
        return with_units(byte_units);
      case OptionType::interval:
        return {{"type", "string"}, {"pattern", str("^never$|^[1-9][0-9]* *(steps?|epochs?)$|", variable)}};
      case OptionType::text:
        if (option.catalogue.empty()) return {{"type", {"string", "number", "boolean"}}};
        return choices_of(catalogues_.names(option.catalogue), option.also_auto);
      case OptionType::choice:
        return choices_of(option.choices, option.also_auto);
      case OptionType::list:
        return list_type(option);
      case OptionType::map:
        return map_type(option);
      case OptionType::section:
        return section(option);
      case OptionType::component:
        return component(option);
      default:
        return any_of_types(option);
    }
  }

  Json list_type(const Option& option) const {
    Json schema = list_of(option.options.empty() ? Json::object() : value(option.options.front()));
    if (!option.also_auto) return schema;
    schema["type"] = {"array", "string"};
    schema["pattern"] = str("^auto$|", variable);
    return schema;
  }

  // Keys are key paths, also written as nested maps.
  Json map_type(const Option& option) const {
    Json item = value(option.options.front());
    if (item.value("type", Json()) == "array") item["type"] = {"array", "object"};
    return {{"type", "object"}, {"additionalProperties", item}};
  }

  // Keys of a map, and no others.
  Json fields(const std::vector<Option>& options, bool with_required) const {
    Json properties = Json::object(), required = Json::array();
    for (const Option& option : options) {
      properties[option.name] = value(option);
      if (option.required) required.push_back(option.name);
    }
    Json schema{{"type", "object"}, {"properties", properties}, {"additionalProperties", false}};
    if (with_required && !required.empty()) schema["required"] = required;
    return schema;
  }

  Json section(const Option& option) const {
    const bool of_the_file = &option >= run_options().data() && &option < run_options().data() + run_options().size();
    Json schema = fields(option.options, !of_the_file);
    if (option.types.empty()) return schema;
    schema["type"] = {"object", "string"};  // `init_from: PATH`
    if (schema.contains("required")) schema.erase("required");
    return schema;
  }

  // Keys of one entry of a catalogue, without those that it requires.
  Json entry_fields(const std::string& kind, const Entry& entry) const {
    std::vector<Option> options = entry.options;
    for (const Option& option : common_options_of(kind)) options.push_back(option);
    Json schema = fields(options, false);
    schema["description"] = entry.help;
    schema["properties"]["name"] = constant(entry.name);
    if (kind == "model") schema["properties"]["plugin"] = plugin_path();
    return schema;
  }

  static std::vector<Option> common_options_of(const std::string& kind) {
    for (const Option& option : run_options())
      if (option.type == OptionType::component && option.catalogue == kind) return option.options;
    return {};
  }

  // A component: the keys of the entry that its name selects. Unknown names are valid here; see names().
  Json component(const Option& option) const {
    const std::string& kind = option.catalogue;
    Json rules = Json::array(), names = Json::array();
    for (const std::string& name : catalogues_.names(kind)) {
      Json condition = has_key("name");
      condition["properties"] = {{"name", constant(name)}};
      if (kind == "model") condition["not"] = {{"required", Json::array({"plugin"})}};
      rules.push_back(choice_of(condition, reference(kind + "-" + name)));
      names.push_back(name);
    }
    if (kinds_of_plugins.count(kind) == 0) rules.push_back(this->names(kind));
    Json properties{{"name", {{"description", option.help}, {"examples", names}}}};
    if (kind == "model") properties["plugin"] = plugin_path();
    return {{"type", {"object", "string"}}, {"properties", properties}, {"allOf", rules}};
  }

  // Only names of the catalogue.
  Json names(const std::string& kind) const {
    const Json valid = choices_of(catalogues_.names(kind), false);
    return choice_of({{"type", "object"}}, {{"properties", {{"name", valid}}}}, choice_of({{"type", "string"}}, valid));
  }

  // Keys that a component requires.
  Json required_in(const Option& option) const {
    const std::string& kind = option.catalogue;
    Json rules = Json::array();
    for (const std::string& name : catalogues_.names(kind)) {
      Json required = Json::array({"name"});
      for (const Option& one : catalogues_.find(kind, name)->options)
        if (one.required) required.push_back(one.name);
      if (required.size() > 1) rules.push_back(choice_of(is_named(name), {{"type", "object"}, {"required", required}}));
    }
    Json map = has_key("name");
    if (kind == "model") map = {{"anyOf", {has_key("name"), has_key("plugin")}}};
    rules.push_back(choice_of({{"type", "object"}}, map));
    const Json strict{{"allOf", rules}};
    return kind == "model" ? choice_of(has_key("plugin"), Json::object(), strict) : strict;
  }

  Json references_to_keys() const {
    Json properties = Json::object();
    for (const Option& option : run_options()) properties[option.name] = reference("key-" + option.name);
    return properties;
  }

  Json one_run() const {
    // `name` is not required here: a pipeline for `convoy add` may have it outside `config`.
    Json required = Json::array(), complete = Json::object(), known = Json::object();
    for (const Option& option : run_options()) {
      if (option.required && option.name != "name") required.push_back(option.name);
      if (option.type == OptionType::component) {
        complete[option.name] = required_in(option);
        if (kinds_of_plugins.count(option.catalogue) != 0) known[option.name] = names(option.catalogue);
        for (const Option& inner : option.options)
          if (inner.type == OptionType::list && kinds_of_plugins.count(inner.options.front().catalogue) != 0)
            known[option.name] = {{"allOf", {known[option.name], items_named(inner)}}};
      }
      if (option.type == OptionType::section) {
        const Json whole = fields(option.options, true);
        if (whole.contains("required")) complete[option.name] = {{"required", whole["required"]}};
      }
    }
    Json plugins = has_key("plugins");
    plugins["properties"] = {{"plugins", {{"minItems", 1}}}};
    Json own_model = has_key("model");
    own_model["properties"] = {{"model", has_key("plugin")}};
    return {{"type", "object"},
            {"properties", references_to_keys()},
            {"additionalProperties", false},
            {"required", required},
            {"allOf",
             {{{"properties", complete}},
              choice_of({{"anyOf", {plugins, own_model}}}, Json::object(), {{"properties", known}})}}};
  }

  // A map whose list `option` has only names of the catalogue.
  Json items_named(const Option& option) const {
    return {{"properties", {{option.name, {{"items", names(option.options.front().catalogue)}}}}}};
  }

  Json farm() const {
    return {{"type", "object"},
            {"properties", references_to_keys()},
            {"additionalProperties", false},
            {"required", {"name", "strategy"}}};
  }

  Json added_pipeline() const {
    Json schema = fields(added_pipeline_options(), true);
    schema["properties"]["config"] = {{"description", "a file, or the keys of a whole run"},
                                      {"type", {"object", "string"}},
                                      {"if", {{"type", "object"}}},
                                      {"then", choice_of(has_key("program"), reference("program"), reference("run"))}};
    return schema;
  }

  const Catalogues& catalogues_;
  Json definitions_ = Json::object();
};

}  // namespace

Json json_schema(const Catalogues& catalogues) { return SchemaWriter(catalogues).write(); }

}  // namespace convoy
