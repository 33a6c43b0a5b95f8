#include "launch/farm/read.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/config/option_reader.h"
#include "core/config/overrides.h"
#include "core/config/pipeline_texts.h"
#include "core/config/queue_terms.h"
#include "core/config/reader.h"
#include "core/config/scalars.h"
#include "launch/catalogues.h"
#include "launch/exit_codes.h"
#include "strategies/catalogue.h"

namespace convoy {
namespace {

constexpr size_t most_shown = 50;  // mistakes

// The strategy of a file that is several runs; null for any other, whose mistakes are its reader's to tell.
const StrategyEntry* farm_strategy(const Node& root) {
  const Node* strategy = root.find("strategy");
  if (strategy != nullptr && strategy->kind == Node::Kind::map) strategy = strategy->find("name");
  if (strategy == nullptr || strategy->kind != Node::Kind::scalar) return nullptr;
  for (const StrategyEntry& entry : strategy_catalogue())
    if (entry.name == strategy->text && entry.pipelines != nullptr) return &entry;
  return nullptr;
}

// Of the whole file only these keys mean the farm itself too.
Json own_values(const Node& root, const Catalogues& catalogues, std::vector<ConfigError>& mistakes) {
  std::vector<Option> options;
  Node own = map_node(root.mark);
  for (const Option& option : run_options()) {
    if (option.name != "name" && option.name != "launch") continue;
    options.push_back(option);
    if (const Node* value = root.find(option.name)) own.fields.push_back({option.name, value->mark, *value});
  }
  OptionReader reader(catalogues, {}, &mistakes);
  return reader.read_fields(options, own, "");
}

void read_common(FarmRun& run, const Json& own) {
  run.name = own.at("name").get<std::string>();
  const Json& launch = own.at("launch");
  run.grace = launch.at("grace").get<double>();
  run.rendezvous = launch.at("rendezvous").get<double>();
  run.heartbeat = launch.at("heartbeat").get<double>();
  if (launch.at("address") != "auto") run.address = launch.at("address").get<std::string>();
}

void add(std::vector<ConfigError>& all, const std::vector<ConfigError>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

// A whole run's tree, read strictly; what is wrong with it is among the reader's mistakes, or these.
Pipeline read_text(const PipelineText& text, RunTreesReader& reader, std::vector<ConfigError>& mistakes) {
  Pipeline pipeline{text.name, {}, text.terms, text.mark, text.grid};
  if (const StrategyEntry* nested = farm_strategy(text.config))
    mistakes.emplace_back(text.config.find("strategy")->mark, "strategy",
                          str("is ", nested->name, ", which is several runs itself; a pipeline is one run"));
  else
    pipeline.config = reader.read(text.config);
  return pipeline;
}

bool means_the_farm(const std::string& key) { return key == "name" || key == "launch" || key == "strategy"; }

// Keys of the farm's file that no pipeline's tree has: nobody else would read them. Unknown ones are mistakes; `warnings`: of
// others.
std::vector<ConfigError> unused_keys(const Node& root, const std::vector<PipelineText>& pipelines,
                                     std::vector<std::string>& warnings) {
  std::vector<std::string> valid;
  for (const Option& option : run_options()) valid.push_back(option.name);
  std::vector<ConfigError> mistakes;
  if (pipelines.empty() || root.kind != Node::Kind::map) return mistakes;
  for (const Node::Field& field : root.fields) {
    if (means_the_farm(field.key)) continue;
    // One that is a file of its own has nothing of this one.
    if (std::any_of(pipelines.begin(), pipelines.end(), [&](const PipelineText& text) {
          return text.config.mark.file == root.mark.file && text.config.find(field.key) != nullptr;
        }))
      continue;
    if (std::find(valid.begin(), valid.end(), field.key) != valid.end()) {
      if (!field.value.overridden)
        warnings.push_back(str(to_string(field.mark), ": ", field.key, ": no pipeline takes it over"));
      continue;
    }
    const std::string near = nearest(field.key, valid);
    mistakes.emplace_back(field.mark, printable(field.key),
                          near.empty() ? std::string("unknown key") : str("unknown key; did you mean ", near, "?"));
  }
  return mistakes;
}

// Who types a key wants it to mean something; what every pipeline gives anew means nothing.
void refuse_set_in_vain(const Node& node, const std::string& path, const std::vector<PipelineText>& pipelines,
                        std::vector<ConfigError>& mistakes) {
  if (!node.overridden) return;
  for (const Node::Field& field : node.fields)
    if (!path.empty() || !means_the_farm(field.key))
      refuse_set_in_vain(field.value, path.empty() ? field.key : str(path, ".", field.key), pipelines, mistakes);
  for (size_t i = 0; i < node.items.size(); ++i)
    refuse_set_in_vain(node.items[i], str(path, ".", i), pipelines, mistakes);
  const std::string& typed = node.mark.file;
  if (path.empty() || !is_typed(node.mark)) return;
  for (const ConfigError& told : mistakes)
    if (told.mark().file == typed) return;
  if (std::any_of(pipelines.begin(), pipelines.end(),
                  [&](const PipelineText& text) { return holds_text_of(text.config, typed); }))
    return;
  mistakes.emplace_back(
      node.mark, path,
      str("has no effect, as no pipeline takes it over: each gives its own, or is a file of its own. Set "
          "that instead: strategy.grid.",
          path, ", strategy.pipelines.0.config.", path, ", or strategy.pipelines.0.set.", path, " beside a file"));
}

Node read_tree(const RunArguments& arguments) {
  Node root = read_yaml_file(arguments.config, arguments.overrides);
  for (const std::string& assignment : arguments.fixed) apply_override(root, assignment);
  return root;
}

}  // namespace

void refuse_all(const std::vector<ConfigError>& mistakes) {
  if (mistakes.empty()) return;
  if (mistakes.size() == 1) throw mistakes.front();
  std::vector<std::string> lines;
  std::set<std::string> told;
  for (const ConfigError& mistake : mistakes)
    if (told.insert(mistake.what()).second) lines.push_back(mistake.what());
  const size_t count = lines.size();
  if (count > most_shown) lines.resize(most_shown);
  if (count > most_shown) lines.push_back(str("and ", count - most_shown, " more"));
  // A device that is missing has a code of its own, if that is all there is.
  const Failure kind = mistakes.front().kind();
  const bool same = std::all_of(mistakes.begin(), mistakes.end(), [&](const auto& m) { return m.kind() == kind; });
  throw Error(same ? kind : Failure::config, str(join(lines, "\n"), count > 1 ? str("\n", count, " mistakes") : ""));
}

std::optional<FarmRun> read_farm(const RunArguments& arguments, const Variables& variables, const LaunchedAs& as) {
  return read_farm(read_tree(arguments), arguments, variables, as);
}

std::optional<FarmRun> read_farm(const Node& root, const RunArguments& arguments, const Variables& variables,
                                 const LaunchedAs& as) {
  const StrategyEntry* strategy = farm_strategy(root);
  if (strategy == nullptr) return std::nullopt;
  const Catalogues catalogues = all_catalogues();
  FarmRun run;
  run.arguments = arguments;
  run.variables = variables;
  run.as = as;
  run.strategy = strategy->name;
  run.resolved = untyped(root, true);
  if (const Node* metric = root.find("strategy")->find("metric")) run.metric_mark = metric->mark;
  run.mistakes = all_mistakes(root, [&](const Node& tree, std::vector<ConfigError>& mistakes) {
    const Json own = own_values(tree, catalogues, mistakes);
    if (mistakes.empty()) read_common(run, own);
  });
  PipelineTexts texts = strategy->pipelines(root);
  add(run.mistakes, texts.mistakes);
  run.farm = texts.farm;
  add(run.mistakes, unused_keys(root, texts.pipelines, run.warnings));
  if (!texts.pipelines.empty()) refuse_set_in_vain(root, "", texts.pipelines, run.mistakes);
  RunTreesReader reader(catalogues);
  for (const PipelineText& text : texts.pipelines) run.farm.pipelines.push_back(read_text(text, reader, run.mistakes));
  add(run.mistakes, reader.mistakes());
  run.warnings.insert(run.warnings.begin(), as.inherited.begin(), as.inherited.end());
  return run;
}

void refuse_several(const RunArguments& arguments) {
  const Node root = read_tree(arguments);
  const Node* config = root.find("config");
  if (config != nullptr && root.find("model") == nullptr && root.find("strategy") == nullptr)
    throw ConfigError(config->mark, "config",
                      str("is of a further pipeline for a farm that runs, and no run's own; type `convoy add RUN ",
                          arguments.config, "`, RUN being that farm's folder"));
  if (farm_strategy(root) == nullptr) return;
  throw ConfigError(
      root.find("strategy")->mark, "strategy",
      "describes several runs, and `convoy run` alone starts them; give other commands the configuration of "
      "one of them at a time, such as RUN/pipelines/NAME/pipeline.yaml");
}

FarmRun farm_run(const PreparedRun& run, const Farm& farm) {
  FarmRun made;
  made.arguments = run.arguments;
  made.variables = run.variables;
  made.as = run.as;
  made.name = run.config.name;
  made.strategy = run.config.strategy.name;
  made.resolved = run.config.resolved;
  made.farm = farm;
  made.grace = run.config.launch.grace;
  made.rendezvous = run.config.launch.rendezvous;
  made.heartbeat = run.config.launch.heartbeat;
  made.address = run.config.launch.address;
  made.warnings = run.warnings;
  return made;
}

Pipeline read_pipeline(const std::string& path) {
  const Node root = read_yaml_file(path);
  const std::vector<Option> options = added_pipeline_options();
  PipelineText text;
  text.mark = root.mark;
  std::vector<ConfigError> mistakes = all_mistakes(root, [&](const Node& tree, std::vector<ConfigError>& found) {
    const Catalogues none;
    OptionReader reader(none, {}, &found);
    const Json values = reader.read_fields(options, tree, "");
    if (!found.empty()) return;
    const Options written(values, reader.marks());
    text.terms = with_terms({}, written);
    if (written.has("grid")) text.grid = without_marks(written.at("grid"));
    if (!written.at("config").is_string() && !written.at("config").is_object())
      written.fail("config", "must be the path of a file, or the keys of a whole run");
  });
  const Node* config = root.find("config");
  if (config == nullptr || config->kind == Node::Kind::null || config->kind == Node::Kind::list) refuse_all(mistakes);
  text.config = *config;
  if (config->kind == Node::Kind::scalar) {
    const std::filesystem::path given = config->text;
    const std::filesystem::path beside = std::filesystem::path(path).parent_path();
    try {
      text.config = read_yaml_file((given.is_absolute() ? given : beside / given).lexically_normal().string());
    } catch (const ConfigError& error) {
      mistakes.push_back(error);
      refuse_all(mistakes);
    }
  }
  if (const Node* name = root.find("name")) put_at(text.config, "name", *name);
  const Catalogues catalogues = all_catalogues();
  RunTreesReader reader(catalogues);
  const Pipeline pipeline = read_text(text, reader, mistakes);
  add(mistakes, reader.mistakes());
  refuse_all(mistakes);
  Pipeline named = pipeline;
  named.name = pipeline.config.at("name").get<std::string>();
  return named;
}

std::string pipeline_yaml(const Pipeline& pipeline) {
  Json whole = {{"name", pipeline.name}};
  whole.update(to_json(pipeline.terms));
  if (!pipeline.grid.is_null()) whole["grid"] = pipeline.grid;
  whole["config"] = without_marks(pipeline.config);
  return to_yaml(whole);
}

}  // namespace convoy
