#include "core/config/program.h"

#include <algorithm>

#include "core/base/describe.h"
#include "core/config/node.h"
#include "core/config/reader.h"

namespace convoy {
namespace {

const std::vector<std::string>& keys_of_programs() {
  static const std::vector<std::string> keys{"name",  "seed",   "device", "program", "backend",
                                             "train", "launch", "log",    "profile"};
  return keys;
}

const std::vector<std::string>& train_keys_of_programs() {
  static const std::vector<std::string> keys{"checkpoint_every", "keep_last", "checkpoint_async",
                                             "on_save_error",    "resume",    "log_every"};
  return keys;
}

bool is_one_of(const std::string& key, const std::vector<std::string>& keys) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

// Keeps the options with these names, in their order.
std::vector<Option> only_named(const std::vector<Option>& options, const std::vector<std::string>& names) {
  std::vector<Option> kept;
  for (const Option& option : options)
    if (is_one_of(option.name, names)) kept.push_back(option);
  return kept;
}

std::vector<Option> described_program() {
  std::vector<Option> options = only_named(run_options(), keys_of_programs());
  for (Option& option : options) {
    if (option.name == "program") option.required = true;
    if (option.name != "train") continue;
    option.required = false;
    option.options = only_named(option.options, train_keys_of_programs());
  }
  return options;
}

// Removes the keys of `known` that are not in `kept`, and adds a mistake for each.
void refuse_all_but(Node& map, const std::string& path, const std::vector<Option>& known,
                    const std::vector<std::string>& kept, std::vector<ConfigError>& mistakes) {
  std::vector<Node::Field> fields;
  for (Node::Field& field : map.fields) {
    const bool exists = std::any_of(known.begin(), known.end(), [&](const Option& o) { return o.name == field.key; });
    if (!exists || is_one_of(field.key, kept)) {
      fields.push_back(std::move(field));
      continue;
    }
    mistakes.emplace_back(field.value.overridden ? field.value.location : field.location, below(path, field.key),
                          "does not apply to a run with a program, whose own code decides it; leave one of them out");
  }
  map.fields = std::move(fields);
}

// Replaces characters that a name may not have.
std::string name_from(const std::string& path) {
  std::string name = path.substr(path.rfind('/') + 1);
  for (char& c : name) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!letter && c != '.' && c != '_' && c != '-') c = '_';
  }
  if (!name.empty() && (name[0] == '.' || name[0] == '-')) name[0] = '_';
  constexpr size_t longest = 100;
  name.resize(std::min(name.size(), longest));
  return name.empty() ? "program" : name;
}

}  // namespace

const std::vector<Option>& program_options() {
  static const std::vector<Option> options = described_program();
  return options;
}

Node without_excluded_keys(Node root, std::vector<ConfigError>& mistakes) {
  refuse_all_but(root, "", run_options(), keys_of_programs(), mistakes);
  if (Node* train = root.find("train"))
    for (const Option& option : run_options())
      if (option.name == "train") refuse_all_but(*train, "train", option.options, train_keys_of_programs(), mistakes);
  return root;
}

void add_program_name(Node& root) {
  if (root.find("name") != nullptr) return;
  const Node& program = *root.find("program");
  const std::string name = name_from(program.items.empty() ? "" : program.items.front().text);
  root.fields.push_back({"name", program.location, scalar_node(name, program.location, true)});
}

Node program_tree(const std::vector<std::string>& words, const std::vector<std::string>& overrides,
                  const SourceLocation& location) {
  Node root = map_node(location);
  Node list;
  list.kind = Node::Kind::list;
  list.location = location;
  for (const std::string& word : words) list.items.push_back(scalar_node(word, location, true));
  root.fields.push_back({"program", location, std::move(list)});
  for (const std::string& override_text : overrides) apply_override(root, override_text);
  return root;
}

}  // namespace convoy
