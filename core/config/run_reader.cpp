// Reads the configuration of a run: file, overrides, types, and checks that compare values. A check here uses values of
// one top-level key only, so each key is read alone. Checks of several keys, such as planning, follow later. Exception:
// plugins may add names to other keys.
#include <arpa/inet.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "core/base/text.h"
#include "core/config/node.h"
#include "core/config/option_reader.h"
#include "core/config/program.h"
#include "core/config/reader.h"
#include "core/config/run_config.h"
#include "core/data/catalogue/declared_schema.h"

namespace convoy {
namespace {

// Returns the kinds of components that may have names from plugins; none if the run has no plugin.
std::set<std::string> kinds_left_open(const Node& root) {
  const Node* plugins = root.find("plugins");
  const Node* model = root.find("model");
  const bool some =
      (plugins != nullptr && !plugins->items.empty()) || (model != nullptr && model->find("plugin") != nullptr);
  return some ? std::set<std::string>{"model", "data", "loss", "transform"} : std::set<std::string>{};
}

void check_name(const Options& run) {
  const std::string& name = run.text("name");
  constexpr size_t longest = 128;  // file systems must allow a folder of that name plus "-2"
  if (name.empty()) run.fail("name", "is empty; it names the run's folder: write a name, such as mlp");
  if (name.size() > longest)
    run.fail("name", "has more than ", longest, " characters; it names the run's folder: shorten it");
  for (char c : name) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (letter || c == '.' || c == '_' || c == '-') continue;
    const auto byte = static_cast<unsigned char>(c);
    const char* what =
        byte < 0x20 || byte == 0x7f ? "holds a control character" : "holds a character that names may not";
    run.fail("name", "is ", shown(name), ", ", what, "; use letters, digits, '.', '_' and '-'");
  }
  if (name[0] == '.' || name[0] == '-') run.fail("name", "is ", shown(name), ", must start with a letter, digit or _");
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
      run.fail(str("plugins.", i), "is ", shown(paths[i]),
               ", must be an absolute path, so that it is clear what is loaded");
    }
  }
}

// The heartbeat must not be longer than the limit of a collective: a default one is shortened, a written one refused.
void check_limits(Json& values, const Options& launch, const SourceLocations& locations) {
  const double heartbeat = launch.real("heartbeat");
  const double collective = launch.real("collective");
  if (heartbeat <= collective) return;
  if (locations.count("launch.heartbeat") == 0) {
    values["launch"]["heartbeat"] = collective;
    return;
  }
  launch.fail("heartbeat", "is ", human_seconds(heartbeat), ", must not be longer than launch.collective, ",
              human_seconds(collective));
}

// `max_steps` without `epochs` trains that number of steps.
void check_length(Json& values, const Options& train, const SourceLocations& locations) {
  if (train.has("max_steps")) {
    if (locations.count("train.epochs") == 0) values["train"]["epochs"] = nullptr;
  } else if (!train.has("epochs")) {
    train.fail("epochs", "is empty; leave the key out for its default");
  }
}

// Metrics that train.keep_best and train.early_stop watch. Only ranks know which metrics there are.
void check_watched(const Options& train) {
  for (const char* name : {"keep_best", "early_stop"}) {
    const Options section = train.section(name);
    if (section.has("metric")) {
      const Json& interval = train.at("evaluate_every");
      if (interval.at("unit") == "never")
        section.fail("metric",
                     str("is ", section.text("metric"), ", a metric of evaluations, and train.evaluate_every ",
                         "is never; give an interval, such as 1 epoch"));
      continue;
    }
    // Without a metric, other keys must have their defaults: a resolved file contains them.
    const std::string reason = str("has no effect without a metric; add metric: loss, or leave ", name, " out");
    if (section.text("direction") != "auto") section.fail("direction", reason);
    if (section.json().contains("patience") && section.integer("patience") != default_patience)
      section.fail("patience", reason);
  }
}

// Checks the form of launch.address. Only the host itself can check if it has that address.
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
    launch.fail("address", "is ", shown(text), ", must be a numeric IPv4 or IPv6 address, such as 10.0.0.5, or a ",
                "network, such as 10.0.0.0/16; or auto");
  if (is_four ? four.s_addr == htonl(INADDR_ANY) : IN6_IS_ADDR_UNSPECIFIED(&six) != 0)
    launch.fail("address", "is ", shown(text), ", which means every interface; give the address of one, or auto");
}

void check_log(const Options& log) {
  if (log.has("histograms") && !log.boolean("tensorboard"))
    log.fail("histograms", "has no effect with tensorboard: false, because histograms are part of the event files");
}

void check_profile(const Options& profile) {
  constexpr int64_t most_traced = 1000;  // a step is some kilobytes of each rank's memory
  if (!profile.has("steps")) return;
  const ProfileConfig steps = traced_steps(profile.text("steps"));
  if (steps.first == 0)
    profile.fail("steps", "is ", shown(profile.text("steps")),
                 ", must be a step or the first and last one, counted from 1: 12, or 10-12");
  if (steps.last - steps.first >= most_traced)
    profile.fail("steps", "has ", steps.last - steps.first + 1, " steps, must have at most ", most_traced);
}

// Another host may lack the file, so the agent of that host looks for it.
void check_program(const Options& run) {
  const std::vector<std::string> words = run.texts("program");
  if (words.empty()) run.fail("program", "is empty; write program: [./mine, argument, …], or leave the key out");
  if (words.front().empty()) run.fail("program.0", "is empty; it names the program");
}

// Planning checks later if the host has these cores, and how many ranks there are.
void check_binding(const Options& launch) {
  const std::vector<std::string> cores = launch.texts("cores");
  const bool listed = launch.text("bind") == "list";
  if (listed && cores.empty())
    launch.fail("bind",
                "is list, but launch.cores names no cores; write launch.cores: [0-3, 4-7], one item for each "
                "rank of a host");
  if (!listed && !cores.empty())
    launch.fail("cores", "needs launch.bind: list, but launch.bind is ", launch.text("bind"),
                "; leave one of them out");
  for (size_t i = 0; i < cores.size(); ++i)
    if (hardware_threads_from_text(cores[i]).empty())
      launch.fail(str("cores.", i), "is ", shown(cores[i]), ", must be 0, 0-3 or 0-3+8");
}

// Result of reading one top-level key.
struct KeyResult {
  Json value;
  SourceLocations locations;
  std::vector<std::string> warnings;
  std::set<std::string> meant;  // OptionReader::meant
};

// Inputs of reading a key. All mistakes are added to `mistakes`; the value is undefined if there are any.
struct Reading {
  const Catalogues& catalogues;
  const std::set<std::string>& open_kinds;
  const std::optional<SourceLocations>& written;  // locations of written keys, if the tree contains defaults too
  std::vector<ConfigError>& mistakes;
};

// Runs the check of a component. Options of a plugin's model are checked after the library is loaded.
void check_component(const Options& run, const std::string& kind, const Reading& reading) {
  if (!run.json().at(kind).is_object()) return;
  const Options component = run.section(kind);
  if (!component.json().contains("name") || !component.has("name")) return;
  if (component.json().contains("plugin") && reading.open_kinds.count(kind) != 0) return;
  const Entry* entry = reading.catalogues.find(kind, component.text("name"));
  if (entry != nullptr && entry->check) entry->check(component);
}

// Runs all checks of a key, each independently. `values` has only this key.
void check_key(const std::string& key, Json& values, const SourceLocations& locations, const Reading& reading) {
  const Options run(values, locations);
  const auto attempt = [&](const auto& check) {
    try {
      check();
    } catch (const ConfigError& mistake) {
      reading.mistakes.push_back(mistake);
    }
  };
  if (key == "name") attempt([&] { check_name(run); });
  if (key == "plugins") attempt([&] { check_plugins(run); });
  if (key == "program") attempt([&] { check_program(run); });
  if (reading.catalogues.kinds.count(key) != 0) attempt([&] { check_component(run, key, reading); });
  if (key == "train" && values["train"].contains("batch")) {
    attempt([&] { check_batch(run.section("train").section("batch")); });
    attempt([&] { check_length(values, run.section("train"), locations); });
    attempt([&] { check_watched(run.section("train")); });
  }
  if (key == "data") attempt([&] { check_samples(run.section("data")); });
  if (key == "log") attempt([&] { check_log(run.section("log")); });
  if (key == "profile") attempt([&] { check_profile(run.section("profile")); });
  if (key != "launch") return;
  attempt([&] { check_limits(values, run.section("launch"), locations); });
  attempt([&] { check_address(run.section("launch")); });
  attempt([&] { check_binding(run.section("launch")); });
}

bool has_program(const Node& root) {
  const Node* program = root.find("program");
  return program != nullptr && program->kind != Node::Kind::null;
}

// Options of a tree, each in a separate list. Trees without `program` get no default for it.
const std::vector<std::vector<Option>>& options_by_key(bool of_program) {
  static const auto each = [](const std::vector<Option>& options, const std::string& but) {
    std::vector<std::vector<Option>> all;
    for (const Option& option : options)
      if (option.name != but) all.push_back({option});
    return all;
  };
  static const std::vector<std::vector<Option>> with_model = each(run_options(), "program");
  static const std::vector<std::vector<Option>> with_program = each(program_options(), "");
  return of_program ? with_program : with_model;
}

KeyResult read_key(const std::vector<Option>& option, const Node& tree, const Reading& reading) {
  OptionReader reader(reading.catalogues, reading.open_kinds, &reading.mistakes);
  Json values = reader.read_fields(option, tree, "");
  KeyResult result;
  for (const auto& [key, location] : reader.locations())
    if (!reading.written || reading.written->count(key) != 0) result.locations.emplace(key, location);
  const std::string& key = option.front().name;
  if (reading.mistakes.empty()) check_key(key, values, result.locations, reading);
  result.value = std::move(values[key]);
  result.warnings = reader.warnings();
  result.meant = reader.meant();
  return result;
}

// The tree with this key only.
Node only(const Node& root, const std::string& key) {
  Node tree = map_node(root.location);
  for (const Node::Field& field : root.fields)
    if (field.key == key) tree.fields.push_back(field);
  return tree;
}

// Removes the value at a key path from the tree; returns false if there is none. Keys may contain dots.
bool remove_at(Node& node, const std::vector<std::string>& keys, size_t first) {
  std::string key;
  for (size_t last = first; last < keys.size(); ++last) {
    key += (last == first ? "" : ".") + keys[last];
    Node* found = node.child(key);
    if (found == nullptr) continue;
    if (last + 1 < keys.size()) return remove_at(*found, keys, last + 1);
    if (node.kind == Node::Kind::list)
      node.items.erase(node.items.begin() + (found - node.items.data()));
    else
      node.fields.erase(std::find_if(node.fields.begin(), node.fields.end(),
                                     [&](const Node::Field& field) { return field.key == key; }));
    return true;
  }
  return false;
}

// True if `key` is `other` or a section around it: removing `other` may then have caused the mistake.
bool is_at_or_above(const std::string& key, const std::string& other) {
  return key.empty() || key == other || other.rfind(key + ".", 0) == 0;
}

void append_text(const SourceLocation& location, std::string& text) {
  text += location.file;
  text += '\0';
  text.append(reinterpret_cast<const char*>(&location.line), sizeof location.line);
  text.append(reinterpret_cast<const char*>(&location.column), sizeof location.column);
}

void append_text(const std::string& value, std::string& text) {
  const size_t size = value.size();
  text.append(reinterpret_cast<const char*>(&size), sizeof size);
  text += value;
}

// Appends all properties of a node: two nodes are equal if their texts are.
void append_text(const Node& node, std::string& text) {
  text += static_cast<char>(static_cast<int>(node.kind) * 8 + (node.quoted ? 1 : 0) + (node.overridden ? 2 : 0) +
                            (node.renamed ? 4 : 0));
  append_text(node.location, text);
  if (node.kind == Node::Kind::scalar) return append_text(node.text, text);
  const size_t count = node.items.size() + node.fields.size();
  text.append(reinterpret_cast<const char*>(&count), sizeof count);
  for (const Node& item : node.items) append_text(item, text);
  for (const Node::Field& field : node.fields) {
    append_text(field.key, text);
    append_text(field.location, text);
    append_text(field.value, text);
  }
}

class TreesReader {
 public:
  explicit TreesReader(const Catalogues& catalogues, std::optional<SourceLocations> written = std::nullopt)
      : catalogues_(catalogues), written_(std::move(written)) {}
  // Returns null if there are mistakes. Adds the warnings to `warnings`, unless it is null.
  Json read(const Node& root, const std::set<std::string>& open_kinds, std::vector<std::string>* warnings = nullptr);
  void check(const Node& root, const std::set<std::string>& open_kinds) { results_of(root, open_kinds); }
  RunConfig read_one(const Node& root, const std::set<std::string>& open_kinds);
  const std::vector<ConfigError>& mistakes() const { return mistakes_; }

 private:
  struct Known {
    bool wrong = false;
    KeyResult result;
  };
  const Known& result_of(const Node& root, size_t index, const std::set<std::string>& open_kinds);
  // Returns the result of each key, in the order of the options; none if there are mistakes.
  std::vector<const Known*> results_of(const Node& root, const std::set<std::string>& open_kinds);
  void report(const std::vector<ConfigError>& found);

  const Catalogues& catalogues_;
  const std::optional<SourceLocations> written_;    // locations of written keys, if the trees contain defaults too
  std::unordered_map<std::string, Known> results_;  // by the key and all inputs of its result
  std::vector<ConfigError> mistakes_;
  std::set<std::string> reported_;
};

void TreesReader::report(const std::vector<ConfigError>& found) {
  for (const ConfigError& mistake : found)
    if (reported_.insert(mistake.what()).second) mistakes_.push_back(mistake);
}

const TreesReader::Known& TreesReader::result_of(const Node& root, size_t index,
                                                 const std::set<std::string>& open_kinds) {
  const std::vector<Option>& option = options_by_key(has_program(root))[index];
  const std::string& key = option.front().name;
  std::string description = str(index, open_kinds.empty() ? "" : "open", has_program(root) ? "program" : "");
  const Node* value = root.find(key);
  if (value == nullptr) {
    append_text(root.location, description);
  } else {
    const auto field = std::find_if(root.fields.begin(), root.fields.end(),
                                    [&](const Node::Field& written) { return written.key == key; });
    append_text(field->location, description);
    append_text(*value, description);
  }
  const auto [entry, fresh] = results_.try_emplace(std::move(description));
  Known& known = entry->second;
  if (!fresh) return known;
  std::set<std::string> meant;
  std::vector<ConfigError> found =
      all_mistakes(only(root, key), [&](const Node& tree, std::vector<ConfigError>& mistakes) {
        known.result = read_key(option, tree, {catalogues_, open_kinds, written_, mistakes});
        meant.merge(known.result.meant);
      });
  // A misspelt key is one mistake, so the intended key is not reported as missing.
  found.erase(std::remove_if(found.begin(), found.end(),
                             [&](const ConfigError& mistake) { return meant.count(mistake.key()) > 0; }),
              found.end());
  known.wrong = !found.empty();
  report(found);
  return known;
}

std::vector<const TreesReader::Known*> TreesReader::results_of(const Node& given,
                                                               const std::set<std::string>& open_kinds) {
  const bool of_program = has_program(given);
  std::vector<ConfigError> unknown;
  std::optional<Node> changed;
  if (of_program) {
    changed = without_excluded_keys(given, unknown);
    add_program_name(*changed);
  }
  const Node& root = changed ? *changed : given;
  OptionReader reader(catalogues_, open_kinds, &unknown);
  reader.refuse_unknown_keys(run_options(), root, "");
  report(unknown);
  bool wrong = !unknown.empty();
  std::vector<const Known*> known;
  const std::vector<std::vector<Option>>& options = options_by_key(of_program);
  for (size_t i = 0; i < options.size(); ++i) {
    if (reader.meant().count(options[i].front().name) > 0) continue;  // misspelt, not missing
    known.push_back(&result_of(root, i, open_kinds));
    wrong = wrong || known.back()->wrong;
  }
  if (wrong) known.clear();
  return known;
}

Json TreesReader::read(const Node& root, const std::set<std::string>& open_kinds, std::vector<std::string>* warnings) {
  const std::vector<const Known*> known = results_of(root, open_kinds);
  if (known.empty()) return nullptr;
  const std::vector<std::vector<Option>>& options = options_by_key(has_program(root));
  Json resolved = Json::object();
  SourceLocationWriter locations;
  locations.add("", root.location);
  for (size_t i = 0; i < known.size(); ++i) {
    const KeyResult& result = known[i]->result;
    resolved[options[i].front().name] = result.value;
    for (const auto& [key, location] : result.locations) locations.add(key, location);
    if (warnings != nullptr) warnings->insert(warnings->end(), result.warnings.begin(), result.warnings.end());
  }
  resolved["marks"] = locations.json();
  return resolved;
}

RunConfig TreesReader::read_one(const Node& root, const std::set<std::string>& open_kinds) {
  std::vector<std::string> warnings;
  const Json resolved = read(root, open_kinds, &warnings);
  refuse_all(mistakes_);
  RunConfig config = RunConfig::from_resolved(resolved);
  config.warnings = std::move(warnings);
  return config;
}

}  // namespace

RunConfig read_run_tree(const Node& root, const Catalogues& catalogues) {
  return TreesReader(catalogues).read_one(root, kinds_left_open(root));
}

std::vector<Json> read_run_trees(const std::vector<const Node*>& roots, const Catalogues& catalogues,
                                 std::vector<ConfigError>& mistakes) {
  // After this time a farm with mistakes is refused with those found so far: it may have very many runs.
  constexpr std::chrono::milliseconds most{700};
  const auto start = std::chrono::steady_clock::now();
  TreesReader reader(catalogues);
  const auto ends = [&] { return !reader.mistakes().empty() && std::chrono::steady_clock::now() - start > most; };
  for (const Node* root : roots)
    if (root != nullptr && !ends()) reader.check(*root, kinds_left_open(*root));
  std::vector<Json> configs;
  for (const Node* root : roots)
    configs.push_back(root != nullptr && !ends() ? reader.read(*root, kinds_left_open(*root)) : Json());
  mistakes.insert(mistakes.end(), reader.mistakes().begin(), reader.mistakes().end());
  return configs;
}

RunConfig check_resolved(const Json& resolved, const Catalogues& catalogues, const std::string& plugin_model) {
  Node root = node_of(without_locations(resolved), locations_of(resolved));
  Node* model = root.find("model");
  if (model != nullptr && model->find("plugin") != nullptr && model->find("name") == nullptr && !plugin_model.empty()) {
    const SourceLocation location = model->find("plugin")->location;
    model->fields.push_back({"name", location, scalar_node(plugin_model, location, true)});
  }
  return TreesReader(catalogues, locations_of(resolved)).read_one(root, {});
}

std::vector<ConfigError> all_mistakes(Node root, const ReadTree& read) {
  std::vector<ConfigError> mistakes;
  std::vector<std::string> removed;
  for (bool again = true; again;) {
    std::vector<ConfigError> found;
    try {
      read(root, found);
    } catch (const ConfigError& mistake) {
      found.push_back(mistake);
    }
    found.erase(std::remove_if(found.begin(), found.end(),
                               [&](const ConfigError& mistake) {
                                 return std::any_of(removed.begin(), removed.end(), [&](const std::string& gone) {
                                   return is_at_or_above(mistake.key(), gone);
                                 });
                               }),
                found.end());
    again = false;
    // Remove list items from the end, so that the others keep their index.
    for (auto mistake = found.rbegin(); mistake != found.rend(); ++mistake) {
      removed.push_back(mistake->key());
      again = (!mistake->key().empty() && remove_at(root, split(mistake->key(), '.'), 0)) || again;
    }
    mistakes.insert(mistakes.end(), found.begin(), found.end());
  }
  return mistakes;
}

void refuse_all(const std::vector<ConfigError>& mistakes) {
  constexpr size_t most_shown = 50;
  if (mistakes.empty()) return;
  if (mistakes.size() == 1) throw mistakes.front();
  std::vector<std::string> lines;
  std::set<std::string> shown_lines;
  for (const ConfigError& mistake : mistakes)
    if (shown_lines.insert(mistake.what()).second) lines.push_back(mistake.what());
  const size_t count = lines.size();
  if (count > most_shown) lines.resize(most_shown);
  if (count > most_shown) lines.push_back(str("and ", count - most_shown, " more"));
  // If all mistakes are of one kind, such as a missing device, the error is of this kind too.
  const Failure kind = mistakes.front().kind();
  const bool same = std::all_of(mistakes.begin(), mistakes.end(), [&](const auto& m) { return m.kind() == kind; });
  throw Error(same ? kind : Failure::config, join(lines, "\n"), count > 1 ? str("\n", count, " mistakes") : "");
}

}  // namespace convoy
