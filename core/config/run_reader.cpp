// Reading whole runs: file, overrides, types, and what several values are only together. Nothing that is checked here
// depends on two keys of the top level (what needs more than one, such as a plan, comes later), so each is read by itself;
// but for the plugins, which leave names of other keys open.
#include <arpa/inet.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "core/config/marks.h"
#include "core/config/option_reader.h"
#include "core/config/overrides.h"
#include "core/config/pipeline_texts.h"
#include "core/config/reader.h"
#include "core/config/run_config.h"
#include "core/config/scalars.h"
#include "core/data/samples.h"
#include "core/units.h"

namespace convoy {
namespace {

// Kinds that plugins add to, where the file names any.
std::set<std::string> kinds_left_open(const Node& root) {
  const Node* plugins = root.find("plugins");
  const Node* model = root.find("model");
  const bool some =
      (plugins != nullptr && !plugins->items.empty()) || (model != nullptr && model->find("plugin") != nullptr);
  return some ? std::set<std::string>{"model", "data", "loss", "transform"} : std::set<std::string>{};
}

void check_name(const Options& run) {
  const std::string& name = run.text("name");
  constexpr size_t longest = 128;  // a folder of that name, and "-2" behind it, must be possible everywhere
  if (name.empty()) run.fail("name", "is empty; it names the run's folder");
  if (name.size() > longest) run.fail("name", str("has more than ", longest, " characters; it names the run's folder"));
  for (char c : name) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (letter || c == '.' || c == '_' || c == '-') continue;
    const auto byte = static_cast<unsigned char>(c);
    const char* what =
        byte < 0x20 || byte == 0x7f ? "holds a control character" : "holds a character that names may not";
    run.fail("name", str("is ", shown(name), ", ", what, "; use letters, digits, '.', '_' and '-'"));
  }
  if (name[0] == '.' || name[0] == '-')
    run.fail("name", str("is ", shown(name), ", must start with a letter, digit or _"));
}

void check_batch(const Options& batch) {
  if (batch.has("global") == batch.has("per_rank")) {
    batch.fail("", batch.has("global") ? "has both global and per_rank; give one of them"
                                       : "is empty; give global, the rows over all ranks, or per_rank");
  }
}

void check_plugins(const Options& run) {
  const std::vector<std::string> paths = run.texts("plugins");
  for (size_t i = 0; i < paths.size(); ++i) {
    if (paths[i].empty() || paths[i][0] != '/') {
      run.fail(str("plugins.", i),
               str("is ", shown(paths[i]), ", must be an absolute path, so that it is clear what is loaded"));
    }
  }
}

// A heartbeat that nobody wrote follows a shorter limit for collectives; one that was written must fit it.
void check_limits(Json& values, const Options& launch, const Marks& marks) {
  const double heartbeat = launch.real("heartbeat");
  const double collective = launch.real("collective");
  if (heartbeat <= collective) return;
  if (marks.count("launch.heartbeat") == 0) {
    values["launch"]["heartbeat"] = collective;
    return;
  }
  launch.fail("heartbeat", str("is ", human_seconds(heartbeat), ", must not be longer than launch.collective, ",
                               human_seconds(collective)));
}

// `max_steps` without `epochs` trains that many steps.
void check_length(Json& values, const Options& train, const Marks& marks) {
  if (train.has("max_steps")) {
    if (marks.count("train.epochs") == 0) values["train"]["epochs"] = nullptr;
  } else if (!train.has("epochs")) {
    train.fail("epochs", "is empty; leave the key out for its default");
  }
}

// What the control channel can listen on; whether it is this host's only the host can tell.
void check_address(const Options& launch) {
  if (launch.is_auto("address")) return;
  const std::string& text = launch.text("address");
  const size_t slash = text.find('/');
  const std::string address = text.substr(0, slash), prefix = slash == std::string::npos ? "" : text.substr(slash + 1);
  in_addr four{};
  in6_addr six{};
  const bool is_four = inet_pton(AF_INET, address.c_str(), &four) == 1;
  const bool known = is_four || inet_pton(AF_INET6, address.c_str(), &six) == 1;
  const bool whole = slash == std::string::npos || (!prefix.empty() && prefix.size() <= 3 &&
                                                    prefix.find_first_not_of("0123456789") == std::string::npos &&
                                                    std::stoi(prefix) > 0 && std::stoi(prefix) <= (is_four ? 32 : 128));
  if (!known || !whole)
    launch.fail("address", str("is ", shown(text), ", must be a numeric IPv4 or IPv6 address, such as 10.0.0.5, or a ",
                               "network, such as 10.0.0.0/16; or auto"));
  if (is_four ? four.s_addr == htonl(INADDR_ANY) : IN6_IS_ADDR_UNSPECIFIED(&six) != 0)
    launch.fail("address", str("is ", shown(text), ", which means every interface; give the address of one, or auto"));
}

// Which of them a host has, and what ranks there are, only planning knows.
void check_binding(const Options& launch) {
  const std::vector<std::string> cores = launch.texts("cores");
  const bool listed = launch.text("bind") == "list";
  if (listed && cores.empty())
    launch.fail("bind",
                "is list, and launch.cores names no cores; write launch.cores: [0-3, 4-7], one item for each "
                "rank of a host");
  if (!listed && !cores.empty())
    launch.fail("cores", str("is for launch.bind: list, and that is ", launch.text("bind"), "; leave one of them out"));
  for (size_t i = 0; i < cores.size(); ++i)
    if (units_from_text(cores[i]).empty())
      launch.fail(str("cores.", i), str("is ", shown(cores[i]), ", must be 0, 0-3 or 0-3+8"));
}

// A key of the top level.
struct Part {
  Json value;
  Marks marks;
  std::vector<std::string> warnings;
};

// How parts are read. With `mistakes` all of a part's are added there, and its value means nothing then.
struct Reading {
  const Catalogues& catalogues;
  std::set<std::string> open_kinds;
  const std::optional<Marks>& written;  // where defaults stand in the tree too: the marks of what somebody wrote
  std::vector<ConfigError>* mistakes = nullptr;
};

// What a part of a run says of its own options. Those of a plugin's model are not read until the library is loaded.
void check_component(const Options& run, const std::string& kind, const Reading& reading) {
  if (!run.json().at(kind).is_object()) return;
  const Options component = run.section(kind);
  if (!component.json().contains("name") || !component.has("name")) return;
  if (component.json().contains("plugin") && reading.open_kinds.count(kind) != 0) return;
  const Entry* entry = reading.catalogues.find(kind, component.text("name"));
  if (entry != nullptr && entry->check) entry->check(component);
}

// Each of these by itself, whatever the others find. `values` has the one key.
void check_part(const std::string& key, Json& values, const Marks& marks, const Reading& reading) {
  const Options run(values, marks);
  const auto attempt = [&](const auto& check) {
    try {
      check();
    } catch (const ConfigError& mistake) {
      if (reading.mistakes == nullptr) throw;
      reading.mistakes->push_back(mistake);
    }
  };
  if (key == "name") attempt([&] { check_name(run); });
  if (key == "plugins") attempt([&] { check_plugins(run); });
  if (reading.catalogues.kinds.count(key) != 0) attempt([&] { check_component(run, key, reading); });
  if (key == "train") {
    attempt([&] { check_batch(run.section("train").section("batch")); });
    attempt([&] { check_length(values, run.section("train"), marks); });
  }
  if (key == "data") attempt([&] { check_samples(run.section("data")); });
  if (key != "launch") return;
  attempt([&] { check_limits(values, run.section("launch"), marks); });
  attempt([&] { check_address(run.section("launch")); });
  attempt([&] { check_binding(run.section("launch")); });
}

// run_options(), one by one.
const std::vector<std::vector<Option>>& part_options() {
  static const std::vector<std::vector<Option>> parts = [] {
    std::vector<std::vector<Option>> all;
    for (const Option& option : run_options()) all.push_back({option});
    return all;
  }();
  return parts;
}

Part read_part(const std::vector<Option>& option, const Node& tree, const Reading& reading) {
  OptionReader reader(reading.catalogues, reading.open_kinds, reading.mistakes);
  Json values = reader.read_fields(option, tree, "");
  Part part;
  for (const auto& [key, mark] : reader.marks())
    if (!reading.written || reading.written->count(key) != 0) part.marks.emplace(key, mark);
  const std::string& key = option.front().name;
  if (reading.mistakes == nullptr || reading.mistakes->empty()) check_part(key, values, part.marks, reading);
  part.value = std::move(values[key]);
  part.warnings = reader.warnings();
  return part;
}

// The tree with nothing but the key.
Node only(const Node& root, const std::string& key) {
  Node tree = map_node(root.mark);
  for (const Node::Field& field : root.fields)
    if (field.key == key) tree.fields.push_back(field);
  return tree;
}

RunConfig checked(const Node& root, const Catalogues& catalogues, const std::set<std::string>& open_kinds,
                  const std::optional<Marks>& written = std::nullopt) {
  const Reading reading{catalogues, open_kinds, written};
  OptionReader(catalogues, open_kinds).refuse_unknown_keys(run_options(), root, "");
  Json resolved = Json::object();
  Marks marks{{"", root.mark}};
  std::vector<std::string> warnings;
  for (const std::vector<Option>& option : part_options()) {
    const std::string& key = option.front().name;
    Part part = read_part(option, only(root, key), reading);
    resolved[key] = std::move(part.value);
    marks.merge(part.marks);
    warnings.insert(warnings.end(), part.warnings.begin(), part.warnings.end());
  }
  resolved["marks"] = marks_to_json(marks);
  RunConfig config = RunConfig::from_resolved(resolved);
  config.warnings = warnings;
  return config;
}

void describe(const Mark& mark, std::string& text) {
  text += mark.file;
  text += '\0';
  text.append(reinterpret_cast<const char*>(&mark.line), sizeof mark.line);
  text.append(reinterpret_cast<const char*>(&mark.column), sizeof mark.column);
}

void describe(const std::string& value, std::string& text) {
  const size_t size = value.size();
  text.append(reinterpret_cast<const char*>(&size), sizeof size);
  text += value;
}

// Everything of it: two nodes with one description are equal.
void describe(const Node& node, std::string& text) {
  text += static_cast<char>(static_cast<int>(node.kind) * 8 + (node.quoted ? 1 : 0) + (node.overridden ? 2 : 0) +
                            (node.renamed ? 4 : 0));
  describe(node.mark, text);
  if (node.kind == Node::Kind::scalar) return describe(node.text, text);
  const size_t count = node.items.size() + node.fields.size();
  text.append(reinterpret_cast<const char*>(&count), sizeof count);
  for (const Node& item : node.items) describe(item, text);
  for (const Node::Field& field : node.fields) {
    describe(field.key, text);
    describe(field.mark, text);
    describe(field.value, text);
  }
}

}  // namespace

RunConfig read_run_config(const ReadRequest& request, const Catalogues& catalogues) {
  return read_run_tree(read_yaml_file(request.path, request.overrides), catalogues);
}

RunConfig read_run_tree(const Node& root, const Catalogues& catalogues) {
  return checked(root, catalogues, kinds_left_open(root));
}

RunConfig check_resolved(const Json& resolved, const Catalogues& catalogues, const std::string& plugin_model) {
  Node root = node_of(without_marks(resolved), marks_of(resolved));
  Node* model = root.find("model");
  if (model != nullptr && model->find("plugin") != nullptr && model->find("name") == nullptr && !plugin_model.empty()) {
    const Mark mark = model->find("plugin")->mark;
    model->fields.push_back({"name", mark, scalar_node(plugin_model, mark, true)});
  }
  return checked(root, catalogues, {}, marks_of(resolved));
}

struct RunTreesReader::Inner {
  struct Known {
    bool wrong = false;
    Part part;
  };

  const Known& part_of(const Node& root, size_t index, const std::set<std::string>& open_kinds);
  void tell(const std::vector<ConfigError>& found);

  const Catalogues& catalogues;
  std::unordered_map<std::string, Known> parts;  // by the key and all that it may be made of
  std::vector<ConfigError> mistakes;
  std::set<std::string> told;
};

RunTreesReader::RunTreesReader(const Catalogues& catalogues) : inner_(new Inner{catalogues, {}, {}, {}}) {}
RunTreesReader::~RunTreesReader() = default;

const std::vector<ConfigError>& RunTreesReader::mistakes() const { return inner_->mistakes; }

void RunTreesReader::Inner::tell(const std::vector<ConfigError>& found) {
  for (const ConfigError& mistake : found)
    if (told.insert(mistake.what()).second) mistakes.push_back(mistake);
}

const RunTreesReader::Inner::Known& RunTreesReader::Inner::part_of(const Node& root, size_t index,
                                                                   const std::set<std::string>& open_kinds) {
  const std::vector<Option>& option = part_options()[index];
  const std::string& key = option.front().name;
  std::string description = str(index, open_kinds.empty() ? "" : "open");
  const Node* value = root.find(key);
  if (value == nullptr) {
    describe(root.mark, description);
  } else {
    const auto field = std::find_if(root.fields.begin(), root.fields.end(),
                                    [&](const Node::Field& written) { return written.key == key; });
    describe(field->mark, description);
    describe(*value, description);
  }
  const auto [known, fresh] = parts.try_emplace(std::move(description));
  if (!fresh) return known->second;
  const std::optional<Marks> all_written;
  const std::vector<ConfigError> found =
      all_mistakes(only(root, key), [&](const Node& tree, std::vector<ConfigError>& mistakes) {
        known->second.part = read_part(option, tree, {catalogues, open_kinds, all_written, &mistakes});
      });
  known->second.wrong = !found.empty();
  tell(found);
  return known->second;
}

Json RunTreesReader::read(const Node& root) {
  const std::set<std::string> open_kinds = kinds_left_open(root);
  std::vector<ConfigError> unknown;
  OptionReader(inner_->catalogues, open_kinds, &unknown).refuse_unknown_keys(run_options(), root, "");
  inner_->tell(unknown);
  bool wrong = !unknown.empty();
  std::vector<const Inner::Known*> parts;
  for (size_t i = 0; i < part_options().size(); ++i) {
    parts.push_back(&inner_->part_of(root, i, open_kinds));
    wrong = wrong || parts.back()->wrong;
  }
  if (wrong) return nullptr;
  Json resolved = Json::object();
  MarksWriter marks;
  marks.add("", root.mark);
  for (size_t i = 0; i < parts.size(); ++i) {
    resolved[part_options()[i].front().name] = parts[i]->part.value;
    for (const auto& [key, mark] : parts[i]->part.marks) marks.add(key, mark);
  }
  resolved["marks"] = marks.json();
  return resolved;
}

}  // namespace convoy
