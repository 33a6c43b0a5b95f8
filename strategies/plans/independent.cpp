// independent: a farm of runs with a configuration each. Each run has its own strategy and slot. Runs send nothing to
// each other and end independently.
#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "core/base/describe.h"
#include "core/base/options.h"
#include "core/config/option_reader.h"
#include "core/config/pipeline_texts.h"
#include "core/config/reader.h"
#include "strategies/plans/catalogue.h"
#include "strategies/plans/options/ensemble.h"

namespace convoy {
namespace {

constexpr char each_by_default[] = "single";

std::vector<Option> item_options() {
  std::vector<Option> options{
      describe::text("name", "name of the pipeline and its folder; default: the name in its configuration")
          .may_be_null(),
      describe::any("config", "path, or map",
                    "path of a file with a whole run (relative to the folder of this one), or keys that override the "
                    "rest of this file")
          .may_be_null(),
      describe::any("set", "map", "keys that override that file").may_be_null(),
  };
  for (const Option& option : queue_options(false)) options.push_back(option);
  return options;
}

std::vector<Option> farm_options() {
  Option axis = describe::list("", "values of the key", describe::any("", "value", "a value"));
  describe::OptionBuilder grid =
      describe::option(OptionType::map, "grid", "instead of pipelines: key path: values; one run per combination");
  grid.options = {axis};
  std::vector<Option> options{
      describe::list("pipelines", "the runs", describe::section("", "a run", item_options())),
      grid.may_be_null(),
      describe::text("names",
                     "pattern of the names of the grid's runs: {optimizer.lr} is that key's value, {index} the "
                     "run's number")
          .may_be_null(),
      describe::any("each", "name of a strategy, or map", "strategy of runs without one", each_by_default),
      describe::integer("max_parallel", "most runs at a time; default: as many as cores or GPUs allow")
          .between(1, 1 << 20)
          .may_be_null(),
      describe::text(
          "metric",
          "metric by which the leaderboard is sorted; default: the metric that most runs evaluate, a loss only "
          "if there is no other")
          .may_be_null(),
      describe::choice("direction", "direction of that metric", {"auto", "maximize", "minimize"}, "auto"),
  };
  for (const Option& option : queue_options(true)) options.push_back(option);
  return options;
}

std::vector<Option> with_name(std::vector<Option> options) {
  options.insert(options.begin(), describe::text("name", "").must());
  return options;
}

class FarmReader {
 public:
  explicit FarmReader(const Node& root) : section_(*root.find("strategy")), common_(root) {
    if (section_.kind == Node::Kind::scalar) {
      Node name = section_;
      section_ = map_node(name.mark);
      section_.fields.push_back({"name", name.mark, name});
    }
    if (Node* grid = section_.find("grid"); grid != nullptr && grid->kind == Node::Kind::map)
      *grid = flat_grid(*grid, twice_);
    auto& fields = common_.fields;
    fields.erase(
        std::remove_if(fields.begin(), fields.end(),
                       [](const Node::Field& field) { return field.key == "name" || field.key == "strategy"; }),
        fields.end());
  }

  PipelineTexts texts() {
    read_section();
    for (const Node::Field& field : twice_)
      mistake(field.mark, str("strategy.grid.", field.key),
              "is given twice, as a key path and as maps; keep one of them");
    const Node* pipelines = section_.find("pipelines");
    const Node* grid = section_.find("grid");
    const bool has_pipelines = pipelines != nullptr && !pipelines->items.empty();
    if (has_pipelines && grid != nullptr && grid->kind != Node::Kind::null)
      mistake(grid->mark, "strategy.grid", "conflicts with pipelines; give one of the two");
    else if (has_pipelines)
      add_listed(*pipelines);
    else if (grid != nullptr && grid->kind == Node::Kind::map && !grid->fields.empty())
      expand_grid(*grid);
    else if (!has_error("strategy.pipelines") && !has_error("strategy.grid"))
      refuse_nothing(pipelines, grid);
    const Node* each = section_.find("each");
    if (each != nullptr && is_typed(each->mark) && !found_.pipelines.empty() &&
        std::none_of(found_.pipelines.begin(), found_.pipelines.end(),
                     [&](const PipelineText& text) { return holds_text_of(text.config, each->mark.file); }))
      mistake(each->mark, "strategy.each", "has no effect, as every pipeline chooses a strategy of its own");
    return std::move(found_);
  }

 private:
  void refuse_nothing(const Node* pipelines, const Node* grid) {
    if (pipelines != nullptr && pipelines->kind == Node::Kind::list)
      mistake(pipelines->mark, "strategy.pipelines", "is an empty list; give it the runs, or a grid over keys instead");
    else if (grid != nullptr && grid->kind == Node::Kind::map)
      mistake(grid->mark, "strategy.grid", "has no keys; give it some, or pipelines instead, the runs");
    else
      mistake(section_.mark, "strategy.pipelines", "is missing: give pipelines, the runs, or a grid over keys");
  }

  // Reads the section's own keys. A key with an error is reported and has no value.
  void read_section() {
    Node whole = map_node(section_.mark);
    whole.fields.push_back({"strategy", section_.mark, section_});
    bool first = true;
    found_.mistakes = all_mistakes(whole, [&](const Node& root, std::vector<ConfigError>& mistakes) {
      const Catalogues none;
      OptionReader reader(none, {}, &mistakes);
      const Json values = reader.read_fields(with_name(farm_options()), *root.find("strategy"), "strategy");
      const Options options = Options(Json{{"strategy", values}}, reader.marks()).section("strategy");
      if (std::exchange(first, false)) options_ = options;
      check_section(options, mistakes);
    });
    items_ = options_.sections("pipelines");
    queue_options_ = merged_queue_options({}, options_);
    if (options_.has("max_parallel")) found_.farm.max_parallel = int(options_.integer("max_parallel"));
    if (options_.has("metric")) found_.farm.metric = options_.text("metric");
    if (options_.has("direction")) found_.farm.direction = options_.text("direction");
  }

  // Reports errors of single values; an invalid value is null here.
  static void check_section(const Options& options, std::vector<ConfigError>& mistakes) {
    const auto attempt = [&](const auto& check) {
      try {
        check();
      } catch (const ConfigError& mistake) {
        mistakes.push_back(mistake);
      }
    };
    const std::vector<Options> items = options.sections("pipelines");
    attempt([&] {
      const QueueOptions common = with_queue_options({}, options);
      if (!common.core_list.empty() && items.size() != 1)
        options.fail("cores", "names the same cores for every pipeline; give a count, or cores to each of them");
      if (!common.gpu_list.empty() && items.size() != 1)
        options.fail("gpus", "names the same GPUs for every pipeline; give a count, or GPUs to each of them");
    });
    if (options.has("names"))
      attempt([&] {
        if (!items.empty()) options.fail("names", "is for a grid; pipelines have a `name` each");
        if (options.text("names").empty())
          options.fail("names", "is empty; write a pattern, such as lr{optimizer.lr}-{index}, or leave it out");
      });
    for (const Options& item : items) {
      attempt([&] { with_queue_options({}, item); });
      const Json config = item.json().value("config", Json());
      attempt([&] {
        if (!config.is_null() && !config.is_string() && !config.is_object())
          item.fail("config", "must be the path of a file, or keys of the run");
      });
      attempt([&] {
        if (item.has("set") && !item.at("set").is_object()) item.fail("set", "must be keys of the run");
        if (item.has("set") && !config.is_string())
          item.fail("set", "is for a config that is a file; put its keys there");
      });
    }
    refuse_ineffective_overrides(options, items, mistakes);
  }

  // Refuses a key that --set left without effect.
  static void refuse_ineffective_overrides(const Options& options, const std::vector<Options>& items,
                                           std::vector<ConfigError>& mistakes) {
    for (const Option& option : queue_options(true)) {
      const auto mark = options.marks().find(option.name);
      if (items.empty() || mark == options.marks().end() || !is_typed(mark->second)) continue;
      if (std::all_of(items.begin(), items.end(), [&](const Options& item) { return item.has(option.name); }))
        mistakes.emplace_back(
            mark->second, str("strategy.", option.name),
            str("has no effect, as every pipeline gives its own; set that, as in strategy.pipelines.0.", option.name));
    }
  }

  // Merges options; an invalid value has been reported before.
  static QueueOptions merged_queue_options(const QueueOptions& options, const Options& written) {
    try {
      return with_queue_options(options, written);
    } catch (const ConfigError&) {
      return options;
    }
  }

  bool has_error(const std::string& key) const {
    return std::any_of(found_.mistakes.begin(), found_.mistakes.end(), [&](const ConfigError& mistake) {
      return mistake.key() == key || mistake.key().rfind(key + ".", 0) == 0;
    });
  }

  void mistake(const SourceLocation& mark, const std::string& key, const std::string& reason) {
    found_.mistakes.emplace_back(mark, key, reason);
  }

  Node base() const {
    Node base = common_;
    const Node* each = section_.find("each");
    const Node strategy = each != nullptr ? *each : scalar_node(each_by_default, section_.mark);
    base.fields.push_back({"strategy", strategy.mark, strategy});
    return base;
  }

  void add_listed(const Node& pipelines) {
    for (size_t i = 0; i < pipelines.items.size(); ++i)
      if (pipelines.items[i].kind == Node::Kind::map)
        add_listed_one(i, pipelines.items[i], str("strategy.pipelines.", i));
    refuse_equal_names();
  }

  void add_listed_one(size_t index, const Node& item, const std::string& path) {
    PipelineText pipeline;
    pipeline.mark = item.mark;
    const Node* config = item.find("config");
    const Node* set = item.find("set");
    try {
      if (config != nullptr && config->kind == Node::Kind::scalar) {
        pipeline.config = read_file(*config, path + ".config");
        if (set != nullptr && set->kind == Node::Kind::map) pipeline.config = merged(pipeline.config, *set);
      } else {
        pipeline.config = config != nullptr && config->kind == Node::Kind::map ? merged(base(), *config) : base();
      }
    } catch (const ConfigError& error) {
      found_.mistakes.push_back(error);
      return;
    }
    const Node* name = item.find("name");
    if (name == nullptr || name->kind == Node::Kind::null) name = pipeline.config.find("name");
    const bool named = name != nullptr && name->kind == Node::Kind::scalar;
    if (name == nullptr) mistake(item.mark, path + ".name", "is missing: the pipeline's configuration has none either");
    // A pipeline without a name gets one, so that the rest of it is checked too.
    const Node called = named ? *name : scalar_node(str("pipeline-", index), item.mark, true);
    pipeline.options = index < items_.size() ? merged_queue_options(queue_options_, items_[index]) : queue_options_;
    add(std::move(pipeline), called);
  }

  static Node read_file(const Node& config, const std::string& key) {
    const std::filesystem::path given = config.text;
    const std::filesystem::path folder = std::filesystem::path(config.mark.file).parent_path();
    const bool in_file = config.mark.line > 0;  // a value of --set has no folder
    const std::string path = (given.is_absolute() || !in_file ? given : folder / given).lexically_normal().string();
    std::error_code none;
    if (!std::filesystem::exists(path, none))
      throw ConfigError(config.mark, key,
                        str(path, ": no such file; paths are from the folder of the file that names it"));
    return read_yaml_file(path);
  }

  void expand_grid(const Node& grid) {
    const Node base = this->base();
    const Node* names = section_.find("names");
    const bool named = names != nullptr && names->kind == Node::Kind::scalar;
    const SourceLocation& mark = named ? names->mark : grid.mark;
    std::vector<GridPoint> points;
    if (check_grid(grid, base)) {
      try {
        points = grid_points(grid, named ? names->text : "", mark);
      } catch (const ConfigError& error) {
        found_.mistakes.push_back(error);
      }
    }
    const bool all = !points.empty();
    // Nothing will start, but each value is checked.
    if (!all) points = grid_values(grid);
    for (const GridPoint& point : points) {
      PipelineText pipeline{"", base, queue_options_, grid.mark};
      pipeline.grid = Json::object();
      for (const auto& [key, value] : point.values) {
        write_key(pipeline.config, key, *value);
        pipeline.grid[key] = untyped(*value, false);
      }
      add(std::move(pipeline), scalar_node(point.name, mark, true));
    }
    if (all) refuse_equal_names();
  }

  // False if keys of the grid have errors; reports them.
  bool check_grid(const Node& grid, const Node& base) {
    bool valid = !has_error("strategy.grid");
    const auto refuse = [&](const SourceLocation& mark, const std::string& key, const std::string& reason) {
      mistake(mark, str("strategy.grid.", key), reason);
      valid = false;
    };
    for (const Node::Field& axis : grid.fields) {
      if (axis.key == "name")
        refuse(axis.mark, axis.key, "is what each point is called: write strategy.names, a pattern, instead");
      else if (axis.value.kind == Node::Kind::list && axis.value.items.empty())
        refuse(axis.value.mark, axis.key, "is an empty list; give it a value");
      else if (axis.value.kind == Node::Kind::list)
        try {
          Node tried = base;
          put_at(tried, axis.key, axis.value.items.front());
        } catch (const ConfigError& error) {
          found_.mistakes.push_back(error);
          valid = false;
        }
    }
    return valid;
  }

  // Writes the key. A key without a place has been reported before.
  static void write_key(Node& config, const std::string& key, const Node& value) {
    try {
      put_at(config, key, value);
    } catch (const ConfigError&) {
    }
  }

  // `name` is a copy, since it may be part of the pipeline.
  void add(PipelineText pipeline, Node name) {
    pipeline.name = name.text;
    auto& fields = pipeline.config.fields;
    fields.erase(std::remove_if(fields.begin(), fields.end(), [](const Node::Field& f) { return f.key == "name"; }),
                 fields.end());
    fields.insert(fields.begin(), {"name", name.mark, name});
    found_.pipelines.push_back(std::move(pipeline));
  }

  void refuse_equal_names() {
    std::map<std::string, SourceLocation> seen;
    for (const PipelineText& pipeline : found_.pipelines) {
      const auto [first, fresh] = seen.emplace(pipeline.name, pipeline.mark);
      if (fresh) continue;
      mistake(pipeline.config.find("name")->mark, "name",
              str("is '", pipeline.name, "', the name of two pipelines; the first is on line ", first->second.line));
    }
  }

  Node section_, common_;
  std::vector<Node::Field> twice_;  // keys of the grid
  Options options_;                 // the section, as read
  std::vector<Options> items_;      // items of `pipelines`
  QueueOptions queue_options_;      // for all pipelines
  PipelineTexts found_;
};

PipelineTexts read_farm(const Node& root) { return FarmReader(root).texts(); }

Plan refuse_to_plan(const RunConfig&, const Topology&, const PlanRequest&) {
  throw ConfigError(SourceLocation{}, "strategy", "describes several runs, and each of them is planned separately");
}

}  // namespace

StrategyEntry independent_entry() {
  StrategyEntry entry;
  entry.name = "independent";
  entry.help = "a farm: several runs, each with its own configuration, queued for slots of cores and GPUs";
  entry.options = farm_options();
  entry.plan = refuse_to_plan;
  entry.pipelines = read_farm;
  return entry;
}

}  // namespace convoy
