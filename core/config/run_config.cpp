// Reading a whole run: file, overrides, types, and what only the whole can tell; and its typed view.
#include "core/config/run_config.h"

#include <arpa/inet.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "core/config/option_reader.h"
#include "core/config/overrides.h"
#include "core/config/reader.h"
#include "core/config/scalars.h"
#include "core/units.h"

namespace convoy {
namespace {

using Marks = std::map<std::string, Mark>;

// {"files": [F, …], "at": {KEY: [index into files, line, column], …}}
Json marks_to_json(const Marks& marks) {
  std::vector<std::string> files;
  Json at = Json::object();
  for (const auto& [key, mark] : marks) {
    auto found = std::find(files.begin(), files.end(), mark.file);
    const auto index = found - files.begin();
    if (found == files.end()) files.push_back(mark.file);
    at[key] = {index, mark.line, mark.column};
  }
  return {{"files", files}, {"at", at}};
}

Marks marks_of(const Json& resolved) {
  Marks marks;
  if (!resolved.contains("marks")) return marks;
  const Json& files = resolved["marks"]["files"];
  for (const auto& entry : resolved["marks"]["at"].items()) {
    const Json& place = entry.value();
    marks[entry.key()] = {files.at(place.at(0).get<size_t>()), place.at(1), place.at(2)};
  }
  return marks;
}

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
void check_limits(Json& resolved, const Options& launch, const Marks& marks) {
  const double heartbeat = launch.real("heartbeat");
  const double collective = launch.real("collective");
  if (heartbeat <= collective) return;
  if (marks.count("launch.heartbeat") == 0) {
    resolved["launch"]["heartbeat"] = collective;
    return;
  }
  launch.fail("heartbeat", str("is ", human_seconds(heartbeat), ", must not be longer than launch.collective, ",
                               human_seconds(collective)));
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

// What the parts of a run say of their own options.
void check_components(const Options& run, const Catalogues& catalogues) {
  for (const auto& [kind, entries] : catalogues.kinds) {
    if (!run.json().contains(kind) || !run.json().at(kind).is_object()) continue;
    const Options component = run.section(kind);
    if (!component.json().contains("name") || !component.has("name")) continue;
    const Entry* entry = catalogues.find(kind, component.text("name"));
    if (entry != nullptr && entry->check) entry->check(component);
  }
}

// `written`: of what is resolved already, the marks of what somebody wrote; there the defaults stand in the tree too.
RunConfig checked(const Node& root, const Catalogues& catalogues, std::set<std::string> open_kinds,
                  const std::optional<Marks>& written = std::nullopt) {
  OptionReader reader(catalogues, std::move(open_kinds));
  Json resolved = reader.read_fields(run_options(), root, "");
  Marks marks;
  for (const auto& [key, mark] : reader.marks())
    if (!written || written->count(key) != 0) marks.emplace(key, mark);
  marks[""] = root.mark;
  const Options run(resolved, marks);
  check_name(run);
  check_plugins(run);
  check_components(run, catalogues);
  check_batch(run.section("train").section("batch"));
  check_limits(resolved, run.section("launch"), marks);
  check_address(run.section("launch"));
  check_binding(run.section("launch"));
  resolved["marks"] = marks_to_json(marks);
  RunConfig config = RunConfig::from_resolved(resolved);
  config.warnings = reader.warnings();
  return config;
}

Component component_of(const Options& run, const std::string& key) {
  if (!run.has(key)) return {};
  Component component{"", run.section(key)};
  const bool named = component.options.json().contains("name") && component.options.has("name");
  if (named) component.name = component.options.text("name");
  return component;
}

Interval interval_of(const Json& value) {
  Interval interval;
  interval.every = value.at("every");
  const std::string unit = value.at("unit");
  interval.unit = unit == "steps"    ? Interval::Unit::steps
                  : unit == "epochs" ? Interval::Unit::epochs
                                     : Interval::Unit::never;
  return interval;
}

int64_t integer_or_zero(const Options& options, const std::string& name) {
  return options.has(name) && !options.is_auto(name) ? options.integer(name) : 0;
}

TrainConfig train_of(const Options& options) {
  TrainConfig train;
  train.epochs = options.integer("epochs");
  train.max_steps = integer_or_zero(options, "max_steps");
  const Options batch = options.section("batch");
  train.batch.per_rank = batch.has("per_rank");
  train.batch.rows = batch.integer(train.batch.per_rank ? "per_rank" : "global");
  train.evaluate_every = interval_of(options.at("evaluate_every"));
  train.checkpoint_every = interval_of(options.at("checkpoint_every"));
  train.keep_last = options.integer("keep_last");
  train.resume = options.text("resume");
  train.log_every = options.integer("log_every");
  return train;
}

LaunchConfig launch_of(const Options& options) {
  LaunchConfig launch;
  launch.ranks = integer_or_zero(options, "ranks");
  launch.cores_per_rank = integer_or_zero(options, "cores_per_rank");
  launch.threads = integer_or_zero(options, "threads");
  launch.bind = options.text("bind");
  launch.cores = options.texts("cores");
  launch.grace = options.real("grace");
  launch.failure_grace = options.real("failure_grace");
  launch.heartbeat = options.real("heartbeat");
  launch.collective = options.real("collective");
  launch.rendezvous = options.real("rendezvous");
  launch.address = options.is_auto("address") ? "" : options.text("address");
  launch.port = integer_or_zero(options, "port");
  return launch;
}

}  // namespace

const Entry* Catalogues::find(const std::string& kind, const std::string& name) const {
  auto entries = kinds.find(kind);
  if (entries == kinds.end()) return nullptr;
  for (const Entry& entry : entries->second) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

std::vector<std::string> Catalogues::names(const std::string& kind) const {
  std::vector<std::string> names;
  auto entries = kinds.find(kind);
  if (entries == kinds.end()) return names;
  for (const Entry& entry : entries->second) names.push_back(entry.name);
  return names;
}

RunConfig RunConfig::from_resolved(const Json& resolved) {
  const Options run(resolved, marks_of(resolved));
  RunConfig config;
  config.name = run.text("name");
  config.seed = static_cast<uint64_t>(run.integer("seed"));
  config.device = run.text("device");
  config.precision = run.text("precision");
  config.randomness = run.text("randomness");
  config.plugins = run.texts("plugins");
  config.model = component_of(run, "model");
  config.data = component_of(run, "data");
  config.loss = component_of(run, "loss");
  config.optimizer = component_of(run, "optimizer");
  config.strategy = component_of(run, "strategy");
  config.backend = run.text("backend");
  config.train = train_of(run.section("train"));
  config.launch = launch_of(run.section("launch"));
  config.log_level = run.section("log").text("level");
  const Json& model = run.at("model");
  // Until the library is loaded nobody knows which model it brings.
  if (model.contains("plugin") && !model.contains("name"))
    config.model.name = "plugin:" + model["plugin"].get<std::string>();
  config.resolved = resolved;
  return config;
}

RunConfig read_run_config(const ReadRequest& request, const Catalogues& catalogues) {
  Node root = request.path.empty() ? map_node({}) : read_yaml_file(request.path);
  for (const std::string& assignment : request.overrides) apply_override(root, assignment);
  return checked(root, catalogues, kinds_left_open(root));
}

Mark mark_of(const Json& resolved, const std::string& key) {
  const Marks marks = marks_of(resolved);
  for (std::string path = key;; path.erase(path.rfind('.'))) {
    const auto found = marks.find(path);
    if (found != marks.end()) return found->second;
    if (path.find('.') == std::string::npos) break;
  }
  const auto whole = marks.find("");
  return whole == marks.end() ? Mark{} : whole->second;
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

}  // namespace convoy
