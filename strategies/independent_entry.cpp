// independent: several runs with a configuration each, which share nothing but the machine. Each is planned by a strategy
// of its own and runs in a slot of its own; nothing is sent between them, and none's end is another's.
#include <filesystem>
#include <map>

#include "core/config/option_reader.h"
#include "core/config/pipeline_texts.h"
#include "core/config/queue_terms.h"
#include "core/config/reader.h"
#include "core/describe.h"
#include "strategies/catalogue.h"
#include "strategies/parts/grid_entry.h"

namespace convoy {
namespace {

constexpr char each_by_default[] = "single";

std::vector<Option> item_options() {
  std::vector<Option> options{
      describe::text("name", "of the pipeline and its folder; unless given the name in its configuration")
          .may_be_null(),
      describe::option(OptionType::any, "config",
                       "a file (from the folder of this one) that is a whole run, or keys that are laid on the rest of "
                       "this file")
          .may_be_null(),
      describe::option(OptionType::any, "set", "keys that are laid on that file").may_be_null(),
  };
  for (const Option& option : queue_options(false)) options.push_back(option);
  return options;
}

std::vector<Option> own_options() {
  Option axis = describe::list("", "values of the key", describe::option(OptionType::any, "", "a value"));
  describe::Description grid =
      describe::option(OptionType::map, "grid", "instead of pipelines: key path: values; one for every combination");
  grid.options = {axis};
  std::vector<Option> options{
      describe::list("pipelines", "the runs", describe::section("", "a run", item_options())),
      grid.may_be_null(),
      describe::text("names", "of the grid's runs: {optimizer.lr} stands for that key's value, {index} for the number")
          .may_be_null(),
      describe::option(OptionType::any, "each", "the strategy of runs that choose none of their own", each_by_default),
      describe::integer("max_parallel", "at a time; unless given as many as there are cores or GPUs for")
          .at_least(1)
          .may_be_null(),
      describe::text("metric",
                     "that the leaderboard is sorted by; unless given the one that all of them evaluate first")
          .may_be_null(),
      describe::choice("direction", "of that metric", {"auto", "maximize", "minimize"}, "auto"),
  };
  for (const Option& option : queue_options(true)) options.push_back(option);
  return options;
}

std::vector<Option> with_name(std::vector<Option> options) {
  options.insert(options.begin(), describe::text("name", "").must());
  return options;
}

class Taken {
 public:
  explicit Taken(const Node& root) : section_(*root.find("strategy")), common_(root) {
    if (section_.kind == Node::Kind::scalar) {
      Node name = section_;
      section_ = map_node(name.mark);
      section_.fields.push_back({"name", name.mark, name});
    }
    auto& fields = common_.fields;
    fields.erase(
        std::remove_if(fields.begin(), fields.end(),
                       [](const Node::Field& field) { return field.key == "name" || field.key == "strategy"; }),
        fields.end());
  }

  PipelineTexts texts() {
    Node whole = map_node(section_.mark);
    whole.fields.push_back({"strategy", section_.mark, section_});
    found_.mistakes = all_mistakes(whole, [](const Node& root) { read_section(root); });
    if (found_.mistakes.empty()) {
      const Options own = read_section(whole);
      terms_ = with_terms({}, own);
      if (own.has("max_parallel")) found_.farm.max_parallel = static_cast<int>(own.integer("max_parallel"));
      if (own.has("metric")) found_.farm.metric = own.text("metric");
      found_.farm.direction = own.text("direction");
    }
    const Node* pipelines = section_.find("pipelines");
    const Node* grid = section_.find("grid");
    const bool some = pipelines != nullptr && !pipelines->items.empty();
    if (some && grid != nullptr)
      mistake(grid->mark, "strategy.grid", "stands beside pipelines; give one of the two");
    else if (some)
      for (size_t i = 0; i < pipelines->items.size(); ++i) take(pipelines->items[i], str("strategy.pipelines.", i));
    else if (grid != nullptr && grid->kind == Node::Kind::map && !grid->fields.empty())
      spread(*grid);
    else
      mistake(section_.mark, "strategy.pipelines", "is missing: give pipelines, the runs, or a grid over keys");
    refuse_equal_names();
    return std::move(found_);
  }

 private:
  // Throws the first mistake.
  static Options read_section(const Node& whole) {
    const Catalogues none;
    OptionReader reader(none, {});
    const Json values = reader.read_fields(with_name(own_options()), *whole.find("strategy"), "strategy");
    const Options own(Json{{"strategy", values}}, reader.marks());
    const Options section = own.section("strategy");
    const QueueTerms common = with_terms({}, section);
    if (!common.core_list.empty() && section.sections("pipelines").size() != 1)
      section.fail("cores", "names the same cores for every pipeline; give a count, or cores to each of them");
    if (!common.gpu_list.empty() && section.sections("pipelines").size() != 1)
      section.fail("gpus", "names the same GPUs for every pipeline; give a count, or GPUs to each of them");
    for (const Options& item : section.sections("pipelines")) {
      with_terms(common, item);
      const Json& config = item.at("config");
      if (!config.is_null() && !config.is_string() && !config.is_object())
        item.fail("config", "must be the path of a file, or keys of the run");
      if (item.has("set") && !item.at("set").is_object()) item.fail("set", "must be keys of the run");
      if (item.has("set") && !config.is_string())
        item.fail("set", "is for a config that is a file; put its keys there");
    }
    return section;
  }

  void mistake(const Mark& mark, const std::string& key, const std::string& reason) {
    found_.mistakes.emplace_back(mark, key, reason);
  }

  Node base() const {
    Node base = common_;
    const Node* each = section_.find("each");
    const Node strategy = each != nullptr ? *each : scalar_node(each_by_default, section_.mark);
    base.fields.push_back({"strategy", strategy.mark, strategy});
    return base;
  }

  void take(const Node& item, const std::string& path) {
    if (item.kind != Node::Kind::map) return;  // told by read_section
    PipelineText pipeline;
    pipeline.mark = item.mark;
    const Node* config = item.find("config");
    const Node* set = item.find("set");
    try {
      if (config != nullptr && config->kind == Node::Kind::scalar) {
        pipeline.config = read_file(*config, path + ".config");
        if (set != nullptr) pipeline.config = merged(pipeline.config, *set);
      } else {
        pipeline.config = config != nullptr && config->kind == Node::Kind::map ? merged(base(), *config) : base();
      }
    } catch (const ConfigError& error) {
      found_.mistakes.push_back(error);
      return;
    }
    const Node* name = item.find("name");
    if (name == nullptr || name->kind == Node::Kind::null) name = pipeline.config.find("name");
    if (name == nullptr || name->kind != Node::Kind::scalar) {
      if (name == nullptr)
        mistake(item.mark, path + ".name", "is missing: the pipeline's configuration has none either");
      return;
    }
    pipeline.terms = terms_of(item, path);
    add(std::move(pipeline), *name);
  }

  QueueTerms terms_of(const Node& item, const std::string& path) const {
    if (!found_.mistakes.empty()) return terms_;
    const Catalogues none;
    OptionReader reader(none, {});
    const Json values = reader.read_fields(item_options(), item, path);
    return with_terms(terms_, Options(values, reader.marks(), path));
  }

  static Node read_file(const Node& config, const std::string& key) {
    const std::filesystem::path given = config.text;
    const std::filesystem::path beside = std::filesystem::path(config.mark.file).parent_path();
    const bool in_file = config.mark.line > 0;  // --set has no folder
    const std::string path = (given.is_absolute() || !in_file ? given : beside / given).lexically_normal().string();
    std::error_code none;
    if (!std::filesystem::exists(path, none))
      throw ConfigError(config.mark, key,
                        str(path, ": no such file; paths are from the folder of the file that names it"));
    return read_yaml_file(path);
  }

  void spread(const Node& grid) {
    const Node* names = section_.find("names");
    const bool named = names != nullptr && names->kind == Node::Kind::scalar;
    std::vector<GridPoint> points;
    try {
      points = grid_points(grid, named ? names->text : "", named ? names->mark : grid.mark);
    } catch (const ConfigError& error) {
      found_.mistakes.push_back(error);
      return;
    }
    for (const GridPoint& point : points) {
      PipelineText pipeline{"", base(), terms_, grid.mark};
      try {
        for (const auto& [key, value] : point.values) put_at(pipeline.config, key, value);
      } catch (const ConfigError& error) {
        found_.mistakes.push_back(error);  // every point's is the same
        return;
      }
      add(std::move(pipeline), scalar_node(point.name, named ? names->mark : grid.mark, true));
    }
  }

  // `name` by value: it may be part of the pipeline.
  void add(PipelineText pipeline, Node name) {
    pipeline.name = name.text;
    auto& fields = pipeline.config.fields;
    fields.erase(std::remove_if(fields.begin(), fields.end(), [](const Node::Field& f) { return f.key == "name"; }),
                 fields.end());
    fields.insert(fields.begin(), {"name", name.mark, name});
    found_.pipelines.push_back(std::move(pipeline));
  }

  void refuse_equal_names() {
    std::map<std::string, Mark> seen;
    for (const PipelineText& pipeline : found_.pipelines) {
      const auto [first, fresh] = seen.emplace(pipeline.name, pipeline.mark);
      if (fresh) continue;
      mistake(
          pipeline.config.find("name")->mark, "name",
          str("is '", pipeline.name, "', the name of two pipelines; the first stands on line ", first->second.line));
    }
  }

  Node section_, common_;
  QueueTerms terms_;
  PipelineTexts found_;
};

PipelineTexts taken_apart(const Node& root) { return Taken(root).texts(); }

Plan refuse_to_plan(const RunConfig&, const Topology&, const PlanRequest&) {
  throw ConfigError(Mark{}, "strategy", "describes several runs, each of which is planned for itself");
}

}  // namespace

StrategyEntry independent_entry() {
  StrategyEntry entry;
  entry.name = "independent";
  entry.help = "several runs, each with a configuration of its own, queued for slots of cores and GPUs";
  entry.options = own_options();
  entry.plan = refuse_to_plan;
  entry.pipelines = taken_apart;
  return entry;
}

}  // namespace convoy
