// independent: several runs with a configuration each, which share nothing but the machine. Each is planned by a strategy
// of its own and runs in a slot of its own; nothing is sent between them, and none's end is another's.
#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "core/config/option_reader.h"
#include "core/config/pipeline_texts.h"
#include "core/config/queue_terms.h"
#include "core/config/reader.h"
#include "core/describe.h"
#include "strategies/catalogue.h"
#include "strategies/parts/members/grid_entry.h"

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
          .at_most(1 << 20)
          .may_be_null(),
      describe::text(
          "metric",
          "that the leaderboard is sorted by; unless given the one that most of them are evaluated by, a loss only "
          "where there is no other")
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
    if (Node* grid = section_.find("grid"); grid != nullptr && grid->kind == Node::Kind::map)
      *grid = flat_grid(*grid, twice_);
    auto& fields = common_.fields;
    fields.erase(
        std::remove_if(fields.begin(), fields.end(),
                       [](const Node::Field& field) { return field.key == "name" || field.key == "strategy"; }),
        fields.end());
  }

  PipelineTexts texts() {
    read_own();
    for (const Node::Field& field : twice_)
      mistake(field.mark, str("strategy.grid.", field.key),
              "is given twice, as a key path and as maps; keep one of them");
    const Node* pipelines = section_.find("pipelines");
    const Node* grid = section_.find("grid");
    const bool some = pipelines != nullptr && !pipelines->items.empty();
    if (some && grid != nullptr && grid->kind != Node::Kind::null)
      mistake(grid->mark, "strategy.grid", "stands beside pipelines; give one of the two");
    else if (some)
      take_all(*pipelines);
    else if (grid != nullptr && grid->kind == Node::Kind::map && !grid->fields.empty())
      spread(*grid);
    else if (!told("strategy.pipelines") && !told("strategy.grid"))
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

  // The section's own keys. Where one is wrong, its mistake is told and it has no value.
  void read_own() {
    Node whole = map_node(section_.mark);
    whole.fields.push_back({"strategy", section_.mark, section_});
    bool first = true;
    found_.mistakes = all_mistakes(whole, [&](const Node& root, std::vector<ConfigError>& mistakes) {
      const Catalogues none;
      OptionReader reader(none, {}, &mistakes);
      const Json values = reader.read_fields(with_name(own_options()), *root.find("strategy"), "strategy");
      const Options own = Options(Json{{"strategy", values}}, reader.marks()).section("strategy");
      if (std::exchange(first, false)) own_ = own;
      check_own(own, mistakes);
    });
    items_ = own_.sections("pipelines");
    terms_ = terms_over({}, own_);
    if (own_.has("max_parallel")) found_.farm.max_parallel = static_cast<int>(own_.integer("max_parallel"));
    if (own_.has("metric")) found_.farm.metric = own_.text("metric");
    if (own_.has("direction")) found_.farm.direction = own_.text("direction");
  }

  // A value that is wrong by itself is null here.
  static void check_own(const Options& own, std::vector<ConfigError>& mistakes) {
    const auto attempt = [&](const auto& check) {
      try {
        check();
      } catch (const ConfigError& mistake) {
        mistakes.push_back(mistake);
      }
    };
    const std::vector<Options> items = own.sections("pipelines");
    attempt([&] {
      const QueueTerms common = with_terms({}, own);
      if (!common.core_list.empty() && items.size() != 1)
        own.fail("cores", "names the same cores for every pipeline; give a count, or cores to each of them");
      if (!common.gpu_list.empty() && items.size() != 1)
        own.fail("gpus", "names the same GPUs for every pipeline; give a count, or GPUs to each of them");
    });
    if (own.has("names"))
      attempt([&] {
        if (!items.empty()) own.fail("names", "is for a grid; pipelines have a `name` each");
        if (own.text("names").empty())
          own.fail("names", "is empty; write a pattern, such as lr{optimizer.lr}-{index}, or leave it out");
      });
    for (const Options& item : items) {
      attempt([&] { with_terms({}, item); });
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
    refuse_set_in_vain(own, items, mistakes);
  }

  // Who types a key wants it to mean something.
  static void refuse_set_in_vain(const Options& own, const std::vector<Options>& items,
                                 std::vector<ConfigError>& mistakes) {
    for (const Option& option : queue_options(true)) {
      const auto mark = own.marks().find(option.name);
      if (items.empty() || mark == own.marks().end() || !is_typed(mark->second)) continue;
      if (std::all_of(items.begin(), items.end(), [&](const Options& item) { return item.has(option.name); }))
        mistakes.emplace_back(
            mark->second, str("strategy.", option.name),
            str("has no effect, as every pipeline gives its own; set that, as in strategy.pipelines.0.", option.name));
    }
  }

  // Where one of them is wrong, it has been told.
  static QueueTerms terms_over(const QueueTerms& terms, const Options& written) {
    try {
      return with_terms(terms, written);
    } catch (const ConfigError&) {
      return terms;
    }
  }

  bool told(const std::string& key) const {
    return std::any_of(found_.mistakes.begin(), found_.mistakes.end(), [&](const ConfigError& mistake) {
      return mistake.key() == key || mistake.key().rfind(key + ".", 0) == 0;
    });
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

  void take_all(const Node& pipelines) {
    for (size_t i = 0; i < pipelines.items.size(); ++i)
      if (pipelines.items[i].kind == Node::Kind::map) take(i, pipelines.items[i], str("strategy.pipelines.", i));
    refuse_equal_names();
  }

  void take(size_t index, const Node& item, const std::string& path) {
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
    // Whatever it is called, the rest of it is looked at too.
    const Node called = named ? *name : scalar_node(str("pipeline-", index), item.mark, true);
    pipeline.terms = index < items_.size() ? terms_over(terms_, items_[index]) : terms_;
    add(std::move(pipeline), called);
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
    const Node base = this->base();
    const Node* names = section_.find("names");
    const bool named = names != nullptr && names->kind == Node::Kind::scalar;
    const Mark& mark = named ? names->mark : grid.mark;
    std::vector<GridPoint> points;
    if (sound(grid, base)) {
      try {
        points = grid_points(grid, named ? names->text : "", mark);
      } catch (const ConfigError& error) {
        found_.mistakes.push_back(error);
      }
    }
    const bool all = !points.empty();
    // Nothing will start; still each value is to be looked at.
    if (!all) points = grid_values(grid);
    for (const GridPoint& point : points) {
      PipelineText pipeline{"", base, terms_, grid.mark};
      pipeline.grid = Json::object();
      for (const auto& [key, value] : point.values) {
        lay(pipeline.config, key, *value);
        pipeline.grid[key] = untyped(*value, false);
      }
      add(std::move(pipeline), scalar_node(point.name, mark, true));
    }
    if (all) refuse_equal_names();
  }

  // What is wrong with its keys is told.
  bool sound(const Node& grid, const Node& base) {
    bool sound = !told("strategy.grid");
    const auto refuse = [&](const Mark& mark, const std::string& key, const std::string& reason) {
      mistake(mark, str("strategy.grid.", key), reason);
      sound = false;
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
          sound = false;
        }
    }
    return sound;
  }

  // Where it has no place that is told already.
  static void lay(Node& config, const std::string& key, const Node& value) {
    try {
      put_at(config, key, value);
    } catch (const ConfigError&) {
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
  std::vector<Node::Field> twice_;  // keys of the grid
  Options own_;                     // the section, read
  std::vector<Options> items_;      // of `pipelines`
  QueueTerms terms_;                // of all of them
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
