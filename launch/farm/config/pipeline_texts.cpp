// Divides a farm's file into the trees of its pipelines.
#include <algorithm>
#include <filesystem>
#include <map>

#include "core/base/describe.h"
#include "core/base/text.h"
#include "core/config/option_reader.h"
#include "core/config/program.h"
#include "core/config/reader.h"
#include "launch/farm/config/farm.h"
#include "strategies/plans/catalogue.h"

namespace convoy {
namespace {

// Name of a component: `ddp`, or {name: ddp, …}.
const Node* component_name(const Node& node) {
  if (node.kind == Node::Kind::scalar) return &node;
  if (node.kind != Node::Kind::map) return nullptr;
  const Node* name = node.find("name");
  return name != nullptr && name->kind == Node::Kind::scalar ? name : nullptr;
}

bool other_component(const Node& base, const Node& over) {
  const Node* before = component_name(base);
  const Node* after = component_name(over);
  const bool plugin = over.find("plugin") != nullptr && base.find("plugin") == nullptr;
  return plugin || (before != nullptr && after != nullptr && before->text != after->text);
}

// Keys and ranges of the search; null if there are none.
Node* searched_keys(Node& section) {
  Node* search = section.find("search");
  Node* over = search != nullptr && search->kind == Node::Kind::map ? search->find("over") : nullptr;
  return over != nullptr && over->kind == Node::Kind::map ? over : nullptr;
}

class FarmReader {
 public:
  FarmReader(const Node& root, Farm& farm, std::vector<ConfigError>& mistakes)
      : farm_(farm), mistakes_(mistakes), section_(*root.find("strategy")), common_(root) {
    if (section_.kind == Node::Kind::scalar) {
      Node name = section_;
      section_ = map_node(name.location);
      section_.fields.push_back({"name", name.location, name});
    }
    if (Node* grid = section_.find("grid"); grid != nullptr && grid->kind == Node::Kind::map)
      *grid = flat_grid(*grid, twice_);
    if (Node* over = searched_keys(section_)) *over = flat_grid(*over, twice_);
    auto& fields = common_.fields;
    fields.erase(
        std::remove_if(fields.begin(), fields.end(),
                       [](const Node::Field& field) { return field.key == "name" || field.key == "strategy"; }),
        fields.end());
  }

  std::vector<PipelineText> texts() {
    read_section();
    for (const Node::Field& field : twice_)
      mistake(field.location, str("strategy.grid.", field.key),
              "is given twice, as a key path and as maps; keep one of them");
    const Node* pipelines = section_.find("pipelines");
    const Node *grid = given("grid"), *search = given("search");
    const bool has_pipelines = pipelines != nullptr && !pipelines->items.empty();
    if (has_pipelines && (grid != nullptr || search != nullptr))
      mistake((grid != nullptr ? grid : search)->location, grid != nullptr ? "strategy.grid" : "strategy.search",
              "conflicts with pipelines; give one of the two");
    else if (has_pipelines)
      add_listed(*pipelines);
    else if (search != nullptr || (grid != nullptr && grid->kind == Node::Kind::map && !grid->fields.empty()))
      expand_grid(grid != nullptr ? *grid : map_node(search->location), search);
    else if (!has_error("strategy.pipelines") && !has_error("strategy.grid"))
      refuse_nothing(pipelines, grid);
    check_halving();
    const Node* each = section_.find("each");
    if (each != nullptr && is_typed(each->location) && !texts_.empty() &&
        std::none_of(texts_.begin(), texts_.end(),
                     [&](const PipelineText& text) { return holds_text_of(text.config, each->location.file); }))
      mistake(each->location, "strategy.each", "has no effect, as every pipeline sets its strategy itself");
    return std::move(texts_);
  }

 private:
  // The key of the section; null if it is absent or null.
  const Node* given(const std::string& key) const {
    const Node* node = section_.find(key);
    return node != nullptr && node->kind != Node::Kind::null ? node : nullptr;
  }

  void check_halving() {
    const Node* halving = given("halving");
    if (halving == nullptr || has_error("strategy.halving")) return;
    if (farm_.metric.empty() && !has_error("strategy.metric"))
      mistake(halving->location, "strategy.halving", "needs strategy.metric, by which it compares the runs");
    if (farm_.halving.first.unit == Interval::Unit::never)
      mistake(halving->find("first")->location, "strategy.halving.first", "is never; write a point such as 1 epoch");
    if (texts_.empty() || has_error("strategy.search") || has_error("strategy.grid") || has_error("strategy.pipelines"))
      return;  // the runs are not known
    if (texts_.size() == 1) mistake(halving->location, "strategy.halving", "has only one run, so it compares nothing");
    for (const PipelineText& text : texts_)
      if (text.config.find("program") != nullptr)
        return mistake(halving->location, "strategy.halving",
                       str("pauses runs at points of convoy's training loop, which the program of ", text.name,
                           " does not use; leave halving out"));
    const bool shorter = std::none_of(texts_.begin(), texts_.end(), [this](const PipelineText& text) {
      return trains_past(text.config, farm_.halving.first);
    });
    if (shorter)
      mistake(halving->find("first")->location, "strategy.halving.first",
              str("is ", interval_text(to_json(farm_.halving.first)),
                  ", and no run trains longer, so no rung would end a run; write an earlier point"));
  }

  // True if the run trains longer than `point`, or if its length is unknown: in another unit, or no number.
  static bool trains_past(const Node& config, const Interval& point) {
    const Node* train = config.find("train");
    const Node* length =
        train == nullptr ? nullptr : train->find(point.unit == Interval::Unit::epochs ? "epochs" : "max_steps");
    const Json value = length == nullptr ? Json() : untyped(*length, false);
    return !value.is_number_integer() || value.get<int64_t>() > point.every;
  }

  void refuse_nothing(const Node* pipelines, const Node* grid) {
    if (pipelines != nullptr && pipelines->kind == Node::Kind::list)
      mistake(pipelines->location, "strategy.pipelines",
              "is an empty list; give it the runs, or a grid over keys instead");
    else if (grid != nullptr && grid->kind == Node::Kind::map)
      mistake(grid->location, "strategy.grid", "has no keys; give it some, or pipelines instead, the runs");
    else
      mistake(section_.location, "strategy.pipelines", "is missing: give pipelines, the runs, or a grid over keys");
  }

  // Reads the keys of the section itself. A key with an error is reported and has no value.
  void read_section() {
    Node whole = map_node(section_.location);
    whole.fields.push_back({"strategy", section_.location, section_});
    std::vector<Option> keys = farm_entry().options;
    keys.insert(keys.begin(), describe::text("name", "").must());
    bool first = true;
    const std::vector<ConfigError> found =
        all_mistakes(whole, [&](const Node& root, std::vector<ConfigError>& mistakes) {
          const Catalogues none;
          OptionReader reader(none, {}, &mistakes);
          const Json values = reader.read_fields(keys, *root.find("strategy"), "strategy");
          const Options options = Options(Json{{"strategy", values}}, reader.locations()).section("strategy");
          if (std::exchange(first, false)) options_ = options;
          check_section(options, mistakes);
        });
    mistakes_.insert(mistakes_.end(), found.begin(), found.end());
    items_ = options_.sections("pipelines");
    queue_options_ = merged_queue_options({}, options_);
    if (options_.has("max_parallel")) farm_.max_parallel = static_cast<int>(options_.integer("max_parallel"));
    if (options_.has("metric")) farm_.metric = options_.text("metric");
    if (options_.has("direction")) farm_.direction = options_.text("direction");
    if (options_.has("halving") && !has_error("strategy.halving")) {
      const Options halving = options_.section("halving");
      farm_.halving.eta = halving.integer("eta");
      farm_.halving.first = interval_of(halving.at("first"));
    }
  }

  // Reports mistakes of the section and its pipelines; an invalid value is null here.
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
        options.fail("cores",
                     "would give the same cores to all pipelines; write a count, or write cores in each pipeline");
      if (!common.gpu_list.empty() && items.size() != 1)
        options.fail("gpus",
                     "would give the same GPUs to all pipelines; write a count, or write gpus in each pipeline");
    });
    if (options.has("names"))
      attempt([&] {
        if (!items.empty())
          options.fail("names", "applies to a grid or search only; a pipeline has the key `name` instead");
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
          item.fail("set", "applies only if config is a file; move these keys into config");
      });
    }
    refuse_ineffective_overrides(options, items, mistakes);
  }

  // Refuses a key that --set left without effect.
  static void refuse_ineffective_overrides(const Options& options, const std::vector<Options>& items,
                                           std::vector<ConfigError>& mistakes) {
    for (const Option& option : queue_options(true)) {
      const auto location = options.locations().find(option.name);
      if (items.empty() || location == options.locations().end() || !is_typed(location->second)) continue;
      if (std::all_of(items.begin(), items.end(), [&](const Options& item) { return item.has(option.name); }))
        mistakes.emplace_back(
            location->second, str("strategy.", option.name),
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
    return std::any_of(mistakes_.begin(), mistakes_.end(), [&](const ConfigError& mistake) {
      return mistake.key() == key || mistake.key().rfind(key + ".", 0) == 0;
    });
  }

  void mistake(const SourceLocation& location, const std::string& key, const std::string& reason) {
    mistakes_.emplace_back(location, key, reason);
  }

  // Keys of the farm's file, for a pipeline without a file. `of_program`: it has a program, to which keys of
  // other pipelines do not apply.
  Node base(bool of_program = false) const {
    Node base = common_;
    std::vector<ConfigError> unused;
    if (of_program) return without_excluded_keys(base, unused);
    if (base.find("program") != nullptr && section_.find("each") == nullptr) return base;
    const Node* each = section_.find("each");
    const Node strategy = each != nullptr ? *each : scalar_node(reference_strategy().name, section_.location);
    base.fields.push_back({"strategy", strategy.location, strategy});
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
    pipeline.location = item.location;
    const Node* config = item.find("config");
    const Node* set = item.find("set");
    try {
      if (config != nullptr && config->kind == Node::Kind::scalar) {
        pipeline.config = read_file(*config, path + ".config");
        if (set != nullptr && set->kind == Node::Kind::map) pipeline.config = merged(pipeline.config, *set);
      } else {
        const bool keys = config != nullptr && config->kind == Node::Kind::map;
        pipeline.config = keys ? merged(base(config->find("program") != nullptr), *config) : base();
      }
    } catch (const ConfigError& error) {
      mistakes_.push_back(error);
      return;
    }
    const Node* name = item.find("name");
    if (name == nullptr || name->kind == Node::Kind::null) name = pipeline.config.find("name");
    const bool named = name != nullptr && name->kind == Node::Kind::scalar;
    if (name == nullptr)
      mistake(item.location, path + ".name", "is missing: the pipeline's configuration has none either");
    // A pipeline without a name gets one, so that the rest of it is checked too.
    const Node called = named ? *name : scalar_node(str("pipeline-", index), item.location, true);
    pipeline.options = index < items_.size() ? merged_queue_options(queue_options_, items_[index]) : queue_options_;
    add(std::move(pipeline), called);
  }

  static Node read_file(const Node& config, const std::string& key) {
    const std::filesystem::path given = config.text;
    const std::filesystem::path folder = std::filesystem::path(config.location.file).parent_path();
    const bool in_file = config.location.line > 0;  // a value of --set has no folder
    const std::string path = (given.is_absolute() || !in_file ? given : folder / given).lexically_normal().string();
    std::error_code none;
    if (!std::filesystem::exists(path, none))
      throw ConfigError(config.location, key, path,
                        ": no such file; the path is relative to the folder of the farm's file");
    return read_yaml_file(path);
  }

  // `search`: may be null.
  void expand_grid(const Node& grid, const Node* search) {
    const Node base = this->base(grid.find("program") != nullptr);
    const Node* names = section_.find("names");
    const bool named = names != nullptr && names->kind == Node::Kind::scalar;
    const SourceLocation& location = named ? names->location : grid.location;
    std::vector<GridPoint> points;
    const Node* over = searched_keys(section_);
    const bool valid_grid = check_keys(grid, "strategy.grid", base);
    const bool valid_search = over == nullptr || check_keys(*over, "strategy.search.over", base);
    Node trials;
    if (valid_grid && valid_search && !has_error("strategy.search")) {
      try {
        if (search != nullptr) trials = sampled_trials(*search);
        points = grid_points(grid, named ? names->text : "", location, trials);
      } catch (const ConfigError& error) {
        mistakes_.push_back(error);
      }
    }
    const bool all = !points.empty();
    // Nothing will start, but each value is checked.
    if (!all) points = grid_values(grid);
    for (const GridPoint& point : points) {
      PipelineText pipeline{"", base, queue_options_, grid.location};
      pipeline.grid = Json::object();
      for (const auto& [key, value] : point.values) {
        write_key(pipeline.config, key, *value);
        pipeline.grid[key] = untyped(*value, false);
      }
      add(std::move(pipeline), scalar_node(point.name, location, true));
    }
    if (all) refuse_equal_names();
  }

  // False if keys of the grid or search have errors; reports them.
  bool check_keys(const Node& keys, const std::string& path, const Node& base) {
    bool valid = !has_error(path);
    const auto refuse = [&](const SourceLocation& location, const std::string& key, const std::string& reason) {
      mistake(location, str(path, ".", key), reason);
      valid = false;
    };
    for (const Node::Field& axis : keys.fields) {
      if (axis.key == "name")
        refuse(axis.location, axis.key, "is the name of each point; write it as a pattern in strategy.names");
      else if (axis.value.kind == Node::Kind::list && axis.value.items.empty())
        refuse(axis.value.location, axis.key, "is an empty list; give it a value");
      else if (const Node* grid = given("grid"); path != "strategy.grid" && grid && grid->find(axis.key))
        refuse(axis.location, axis.key, "is a key of strategy.grid too; keep one of them");
      else
        try {
          Node tried = base;
          put_at(tried, axis.key, axis.value.kind == Node::Kind::list ? axis.value.items.front() : axis.value);
        } catch (const ConfigError& error) {
          mistakes_.push_back(error);
          valid = false;
        }
    }
    return valid;
  }

  // Writes the key. Ignores an invalid key path, which check_keys has reported.
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
    fields.insert(fields.begin(), {"name", name.location, name});
    texts_.push_back(std::move(pipeline));
  }

  void refuse_equal_names() {
    std::map<std::string, SourceLocation> seen;
    for (const PipelineText& pipeline : texts_) {
      const auto [first, fresh] = seen.emplace(pipeline.name, pipeline.location);
      if (fresh) continue;
      mistake(pipeline.config.find("name")->location, "name",
              str("is '", pipeline.name, "', the name of two pipelines; the first is on line ", first->second.line));
    }
  }

  Farm& farm_;
  std::vector<ConfigError>& mistakes_;
  Node section_, common_;
  std::vector<Node::Field> twice_;  // keys of the grid
  Options options_;                 // the section, as read
  std::vector<Options> items_;      // items of `pipelines`
  QueueOptions queue_options_;      // for all pipelines
  std::vector<PipelineText> texts_;
};

}  // namespace

Node merged(const Node& base, const Node& over) {
  if (base.kind != Node::Kind::map || over.kind != Node::Kind::map || other_component(base, over)) return over;
  Node result = base;
  for (const Node::Field& field : over.fields) {
    auto found = std::find_if(result.fields.begin(), result.fields.end(),
                              [&](const Node::Field& known) { return known.key == field.key; });
    if (found == result.fields.end()) {
      result.fields.push_back(field);
      continue;
    }
    // `strategy: ddp` over {name: ddp, bucket_cap_mb: 1} changes nothing.
    const bool same = field.value.kind == Node::Kind::scalar && found->value.kind == Node::Kind::map &&
                      component_name(found->value) != nullptr && !other_component(found->value, field.value);
    if (!same) *found = {field.key, field.location, merged(found->value, field.value)};
  }
  return result;
}

void put_at(Node& root, const std::string& path, const Node& value) {
  Node* node = &root;
  const std::vector<std::string> keys = split(path, '.');
  for (const std::string& key : keys) {
    if (key.empty()) throw ConfigError(value.location, path, "is no key path; write one such as optimizer.lr");
    if (node->kind == Node::Kind::scalar) {
      Node name = std::exchange(*node, map_node(value.location));  // `strategy: ddp` is short for {name: ddp}
      node->fields.push_back({"name", name.location, std::move(name)});
    }
    if (node->kind == Node::Kind::null) *node = map_node(value.location);
    Node* found = node->child(key);
    if (found == nullptr && node->kind == Node::Kind::list)
      throw ConfigError(value.location, path, "no item ", shown(key), "; the list has ", node->items.size());
    if (found == nullptr) {
      node->fields.push_back({key, value.location, Node{}});
      found = &node->fields.back().value;
    }
    node = found;
  }
  const bool other = component_name(*node) != nullptr && value.kind == Node::Kind::scalar && keys.back() == "name" &&
                     component_name(*node)->text != value.text;
  *node = value;
  // Options of the replaced component are dropped, as for --set.
  node->renamed = other;
}

bool holds_text_of(const Node& node, const std::string& file) {
  return node.location.file == file ||
         std::any_of(node.items.begin(), node.items.end(), [&](const Node& n) { return holds_text_of(n, file); }) ||
         std::any_of(node.fields.begin(), node.fields.end(),
                     [&](const Node::Field& field) { return holds_text_of(field.value, file); });
}

std::vector<PipelineText> pipeline_texts(const Node& root, Farm& farm, std::vector<ConfigError>& mistakes) {
  return FarmReader(root, farm, mistakes).texts();
}

}  // namespace convoy
