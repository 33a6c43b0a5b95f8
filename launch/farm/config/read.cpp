#include "launch/farm/config/farm.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <vector>

#include "core/config/option_reader.h"
#include "core/config/reader.h"
#include "core/control/exit_codes.h"
#include "launch/prepare/describe.h"
#include "strategies/plans/catalogue.h"

namespace convoy {
namespace {

// Values of the keys that configure the farm itself: `name` and `launch`.
Json farm_values(const Node& root, const Catalogues& catalogues, std::vector<ConfigError>& mistakes) {
  std::vector<Option> options;
  Node farm = map_node(root.location);
  for (const Option& option : run_options()) {
    if (option.name != "name" && option.name != "launch") continue;
    options.push_back(option);
    if (const Node* value = root.find(option.name)) farm.fields.push_back({option.name, value->location, *value});
  }
  OptionReader reader(catalogues, {}, &mistakes);
  return reader.read_fields(options, farm, "");
}

void add(std::vector<ConfigError>& all, const std::vector<ConfigError>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

// Pipelines that name one file would replace each other's metrics.
void refuse_shared_prometheus(const std::vector<Pipeline>& pipelines, std::vector<ConfigError>& mistakes) {
  std::map<std::string, std::string> users;  // first pipeline by path
  for (const Pipeline& pipeline : pipelines) {
    if (!pipeline.config.is_object()) continue;
    const Json path = value_of_key(pipeline.config, "log.prometheus");
    if (!path.is_string() || path.get<std::string>().find("{name}") != std::string::npos) continue;
    const auto [first, is_new] = users.emplace(path.get<std::string>(), pipeline.name);
    if (is_new) continue;
    mistakes.emplace_back(location_of(pipeline.config, "log.prometheus"), "log.prometheus",
                          str("is ", shown(first->first), " for the pipelines ", first->second, " and ", pipeline.name,
                              ", which would replace each other's metrics; write {name} into it, which stands for the "
                              "pipeline's name"));
    return;
  }
}

// Reads the trees of whole runs. A configuration with a mistake is null.
std::vector<Pipeline> read_texts(const std::vector<PipelineText>& texts, const Catalogues& catalogues,
                                 std::vector<ConfigError>& mistakes) {
  std::vector<Pipeline> pipelines;
  std::vector<const Node*> trees;
  for (const PipelineText& text : texts) {
    const bool nested = is_farm(text.config);
    if (nested)
      mistakes.emplace_back(text.config.find("strategy")->location, "strategy",
                            str("is ", farm_strategy, ", which is several runs itself; a pipeline is one run"));
    trees.push_back(nested ? nullptr : &text.config);
    pipelines.push_back({text.name, {}, text.options, text.location, text.grid});
  }
  const std::vector<Json> configs = read_run_trees(trees, catalogues, mistakes);
  for (size_t i = 0; i < configs.size(); ++i) pipelines[i].config = configs[i];
  refuse_shared_prometheus(pipelines, mistakes);
  return pipelines;
}

bool configures_farm(const std::string& key) { return key == "name" || key == "launch" || key == "strategy"; }

// Finds keys of the farm's file that no pipeline uses, because no reader sees them. Returns unknown keys as mistakes;
// adds the others to `warnings`.
std::vector<ConfigError> unused_keys(const Node& root, const std::vector<PipelineText>& pipelines,
                                     std::vector<std::string>& warnings) {
  std::vector<std::string> valid;
  for (const Option& option : run_options()) valid.push_back(option.name);
  std::vector<ConfigError> mistakes;
  if (pipelines.empty() || root.kind != Node::Kind::map) return mistakes;
  for (const Node::Field& field : root.fields) {
    if (configures_farm(field.key)) continue;
    // A pipeline with a file takes no keys of this one.
    if (std::any_of(pipelines.begin(), pipelines.end(), [&](const PipelineText& text) {
          return text.config.location.file == root.location.file && text.config.find(field.key) != nullptr;
        }))
      continue;
    if (std::find(valid.begin(), valid.end(), field.key) != valid.end()) {
      if (!field.value.overridden)
        warnings.push_back(str(to_string(field.location), ": ", field.key, ": no pipeline uses it"));
      continue;
    }
    const std::string near = nearest(field.key, valid);
    mistakes.emplace_back(field.location, printable(field.key),
                          near.empty() ? std::string("unknown key") : str("unknown key; did you mean ", near, "?"));
  }
  return mistakes;
}

// Drops mistakes that follow from a misspelt section of the farm's file: pipelines then lack its keys.
void drop_consequences(const Node& root, std::vector<ConfigError>& mistakes) {
  std::vector<std::string> valid;
  for (const Option& option : run_options()) valid.push_back(option.name);
  for (const Node::Field& field : root.fields) {
    if (std::find(valid.begin(), valid.end(), field.key) != valid.end()) continue;
    const std::string meant = nearest(field.key, valid);
    if (meant.empty() || root.find(meant) != nullptr) continue;
    const auto caused = [&meant](const ConfigError& mistake) {
      const bool within = mistake.key() == meant || mistake.key().rfind(meant + ".", 0) == 0;
      return within && std::string(mistake.what()).find("is missing") != std::string::npos;
    };
    mistakes.erase(std::remove_if(mistakes.begin(), mistakes.end(), caused), mistakes.end());
  }
}

// Refuses a key of --set that every pipeline overrides, since it has no effect.
void refuse_ineffective_set(const Node& node, const std::string& path, const std::vector<PipelineText>& pipelines,
                            std::vector<ConfigError>& mistakes) {
  if (!node.overridden) return;
  for (const Node::Field& field : node.fields)
    if (!path.empty() || !configures_farm(field.key))
      refuse_ineffective_set(field.value, path.empty() ? field.key : str(path, ".", field.key), pipelines, mistakes);
  for (size_t i = 0; i < node.items.size(); ++i)
    refuse_ineffective_set(node.items[i], str(path, ".", i), pipelines, mistakes);
  const std::string& typed = node.location.file;
  if (path.empty() || !is_typed(node.location)) return;
  for (const ConfigError& mistake : mistakes)
    if (mistake.location().file == typed) return;
  if (std::any_of(pipelines.begin(), pipelines.end(),
                  [&](const PipelineText& text) { return holds_text_of(text.config, typed); }))
    return;
  mistakes.emplace_back(
      node.location, path,
      str("has no effect, as no pipeline uses it: each has its own value, or its own file. Set that instead: "
          "strategy.grid.",
          path, ", strategy.pipelines.0.config.", path, ", or, for a file, strategy.pipelines.0.set.", path));
}

// The tree with a flat grid: a key path of --set replaces the same key of the file, written flat or nested. The
// strategy reports keys that the file gives twice.
Node with_flat_grid(Node root) {
  Node* strategy = root.find("strategy");
  Node* search = strategy->find("search");
  std::vector<Node::Field> twice;
  for (Node* keys : {strategy->find("grid"), search != nullptr ? search->find("over") : nullptr})
    if (keys != nullptr && keys->kind == Node::Kind::map) *keys = flat_grid(*keys, twice);
  return root;
}

constexpr size_t most_described = 4;  // starts of convoy-rank, about half a second each

// Equal for pipelines that evaluate the same metrics, which do not depend on a model's options; "" if nothing is
// evaluated.
std::string kind_of(const Json& config) {
  if (config.at("train").at("evaluate_every").at("unit") == "never") return "";
  // A strategy with members adds metrics over them.
  return str(config.at("model").at("name").dump(), config.at("strategy").at("name").dump(), config.at("data").dump(),
             config.at("loss").dump());
}

// Returns the metrics that pipelines of this kind report, with any options of their strategy.
std::set<std::string> metrics_of(const RunConfig& config, const EvaluationMetrics& metrics) {
  const MemberFunctions& members = strategy_of(config).members;
  const std::vector<std::string> names =
      members.possible_metrics ? members.possible_metrics(metrics) : reported_metrics(config, metrics);
  return {names.begin(), names.end()};
}

// `pipeline`: the pipeline that does not report the metric, although a rung of strategy.halving compares all; "": no
// pipeline reports it.
ConfigError unknown_metric(const std::string& metric, const SourceLocation& location, const std::string& pipeline,
                           const std::set<std::string>& names) {
  const std::vector<std::string> all(names.begin(), names.end());
  if (all.empty())
    return ConfigError(location, "strategy.metric",
                       str("is ", metric, ", but ", pipeline.empty() ? "no pipeline is" : pipeline + " is not",
                           " evaluated; leave ", pipeline.empty() ? "it" : "strategy.halving",
                           " out, or set train.evaluate_every and give evaluation rows"));
  const std::string near = nearest(metric, all);
  return ConfigError(location, "strategy.metric",
                     str("is ", metric, ", which ",
                         pipeline.empty() ? "no pipeline reports; valid are "
                                          : pipeline + " does not report, so no rung of strategy.halving can compare "
                                                       "it; it reports ",
                         join(all, ", "), near.empty() ? "" : "; did you mean " + near + "?"));
}

}  // namespace

std::optional<FarmRun> read_farm(const Node& root, const RunArguments& arguments, const Variables& variables,
                                 const LaunchedAs& as) {
  if (!is_farm(root)) return std::nullopt;
  const Catalogues catalogues = all_catalogues();
  FarmRun run;
  run.arguments = arguments;
  run.variables = variables;
  run.as = as;
  run.resolved = untyped(with_flat_grid(root), true);
  if (const Node* metric = root.find("strategy")->find("metric")) run.metric_location = metric->location;
  run.mistakes = all_mistakes(root, [&](const Node& tree, std::vector<ConfigError>& mistakes) {
    const Options values(farm_values(tree, catalogues, mistakes));
    if (!mistakes.empty()) return;
    run.name = values.text("name");
    run.launch = launch_config(values.section("launch"));
  });
  const std::vector<PipelineText> texts = pipeline_texts(root, run.farm, run.mistakes);
  add(run.mistakes, unused_keys(root, texts, run.warnings));
  if (!texts.empty()) refuse_ineffective_set(root, "", texts, run.mistakes);
  run.farm.pipelines = read_texts(texts, catalogues, run.mistakes);
  drop_consequences(root, run.mistakes);
  run.warnings.insert(run.warnings.begin(), as.inherited.begin(), as.inherited.end());
  return run;
}

Pipeline read_pipeline(const std::string& path) {
  const Node root = read_yaml_file(path);
  const std::vector<Option> options = added_pipeline_options();
  PipelineText text;
  text.location = root.location;
  std::vector<ConfigError> mistakes = all_mistakes(root, [&](const Node& tree, std::vector<ConfigError>& found) {
    const Catalogues none;
    OptionReader reader(none, {}, &found);
    const Json values = reader.read_fields(options, tree, "");
    if (!found.empty()) return;
    const Options written(values, reader.locations());
    text.options = with_queue_options({}, written);
    if (written.has("grid")) text.grid = without_locations(written.at("grid"));
    if (!written.at("config").is_string() && !written.at("config").is_object())
      written.fail("config", "must be the path of a file, or the keys of a whole run");
  });
  const Node* config = root.find("config");
  if (config == nullptr || config->kind == Node::Kind::null || config->kind == Node::Kind::list) refuse_all(mistakes);
  text.config = *config;
  if (config->kind == Node::Kind::scalar) {
    const std::filesystem::path given = config->text;
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    try {
      text.config = read_yaml_file((given.is_absolute() ? given : folder / given).lexically_normal().string());
    } catch (const ConfigError& error) {
      mistakes.push_back(error);
      refuse_all(mistakes);
    }
  }
  if (const Node* name = root.find("name")) put_at(text.config, "name", *name);
  Pipeline pipeline = read_texts({text}, all_catalogues(), mistakes).front();
  refuse_all(mistakes);
  pipeline.name = pipeline.config.at("name").get<std::string>();
  return pipeline;
}

std::string pipeline_yaml(const Pipeline& pipeline) {
  Json whole = {{"name", pipeline.name}};
  whole.update(to_json(pipeline.options));
  if (!pipeline.grid.is_null()) whole["grid"] = pipeline.grid;
  whole["config"] = without_locations(pipeline.config);
  return to_yaml(whole);
}

std::optional<ConfigError> metric_mistake(const Farm& farm, const SourceLocation& location,
                                          const std::string& rank_program) {
  if (farm.metric.empty()) return std::nullopt;
  // A rung compares all pipelines, so each needs the metric. A leaderboard also lists pipelines without it.
  const bool all_need_it = farm.halving.eta > 0;
  std::set<std::string> kinds;
  std::vector<const Pipeline*> of_each_kind;
  for (const Pipeline& pipeline : farm.pipelines) {
    if (pipeline.config.contains("program")) {  // only the program knows its metrics
      if (!all_need_it) return std::nullopt;
      continue;
    }
    const std::string kind = kind_of(pipeline.config);
    if (kind.empty() && all_need_it)
      return ConfigError(location, "strategy.metric",
                         str("cannot compare ", pipeline.name, " at a rung of strategy.halving, because it has ",
                             "train.evaluate_every: never; write 1 epoch, or another interval"));
    if (!kind.empty() && kinds.insert(kind).second) of_each_kind.push_back(&pipeline);
  }
  if (kinds.size() > most_described) of_each_kind.resize(most_described);
  std::set<std::string> names;
  for (const Pipeline* pipeline : of_each_kind) {
    const RunConfig config = RunConfig::from_resolved(pipeline->config);
    Json described;
    try {
      described = describe_run(rank_program, config, "metrics").at("metrics");
    } catch (const Error&) {
      if (!all_need_it) return std::nullopt;
      continue;  // its run will report the error
    }
    if (described.is_null() && !all_need_it) return std::nullopt;
    if (described.is_null()) continue;
    const std::set<std::string> reported = metrics_of(config, described.get<EvaluationMetrics>());
    const bool has_it = reported.count(farm.metric) > 0;
    if (has_it && !all_need_it) return std::nullopt;
    if (!has_it && all_need_it) return unknown_metric(farm.metric, location, pipeline->name, reported);
    names.insert(reported.begin(), reported.end());
  }
  if (all_need_it || kinds.size() > most_described) return std::nullopt;
  return unknown_metric(farm.metric, location, "", names);
}

}  // namespace convoy
