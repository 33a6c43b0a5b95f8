#include "launch/farm/schedule/options.h"

#include <set>

#include "core/base/describe.h"
#include "core/base/text.h"
#include "core/config/node.h"
#include "strategies/plans/catalogue.h"

namespace convoy {
namespace {

constexpr int64_t largest_priority = 1'000'000;
constexpr double longest = 365 * 86400.0;  // seconds
constexpr int most_devices = 65536;
constexpr double largest_seed = 1e15;

using describe::OptionBuilder;

OptionBuilder duration(const std::string& name, const std::string& help, Json fallback = nullptr) {
  return describe::option(OptionType::duration, name, help, std::move(fallback)).at_most(longest).in("seconds");
}

OptionBuilder devices(const std::string& name, const std::string& help) {
  return describe::any(name, "integer, or list of integers and ranges", help).may_be_null();
}

struct Devices {
  int count = 0;
  std::vector<int> list;
};

// Reads a count, or a list of numbers and ranges such as [0, 2-3].
Devices devices_of(const Options& written, const std::string& name, const char* what) {
  Devices devices;
  const Json& value = written.at(name);
  const std::string form = str("must be a count, such as 2, or a list of ", what, ", such as [0, 2-3]");
  if (value.is_number_integer()) {
    if (value.get<int64_t>() < (name == "gpus" ? 0 : 1) || value.get<int64_t>() > most_devices)
      written.fail(name, "is ", value.dump(), ", ", form);
    devices.count = value.get<int>();
    return devices;
  }
  if (!value.is_array() || value.empty()) written.fail(name, "is ", shown(value.dump()), ", ", form);
  std::set<int> seen;
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string text = value[i].is_string() ? value[i].get<std::string>() : value[i].dump();
    const std::vector<int> units = hardware_threads_from_text(text);
    if (units.empty()) written.fail(str(name, ".", i), "is ", shown(text), ", must be 0, 0-3 or 0-3+8");
    for (int unit : units) {
      if (!seen.insert(unit).second) written.fail(str(name, ".", i), "names ", unit, " twice");
      devices.list.push_back(unit);
    }
  }
  devices.count = static_cast<int>(devices.list.size());
  return devices;
}

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

}  // namespace

std::vector<Option> queue_options(bool defaults) {
  std::vector<Option> options{
      describe::integer("priority",
                        "position in the queue, larger first; for equal priorities by `estimate`, longest first", 0)
          .between(-static_cast<double>(largest_priority), static_cast<double>(largest_priority)),
      describe::boolean(
          "preempt",
          "may preempt running pipelines of lower priority: they save a checkpoint after their step and resume later",
          false),
      describe::integer("retries", "number of retries after failures, each from the newest checkpoint", 0)
          .between(0, 1000),
      duration("backoff", "delay before the first retry; doubled for each further one, up to 10 minutes", 1)
          .at_least(0),
      duration("timeout", "time limit of an attempt; default: none").above(0).may_be_null(),
      describe::option(
          OptionType::bytes, "memory",
          "limit of anonymous memory of all its processes together (mapped files do not count); a pipeline "
          "above it is ended")
          .between(1, most_bytes)
          .in("bytes")
          .may_be_null(),
      describe::option(
          OptionType::bytes, "gpu_memory",
          "limit of tensor memory on each of its GPUs; LibTorch's allocator enforces it, and other GPU memory is "
          "checked once a second")
          .between(1, most_bytes)
          .in("bytes")
          .may_be_null(),
      describe::integer("nice", "niceness added to its processes; a larger value yields CPU time to others", 0)
          .between(0, 19),
      devices("cores", "number of cores, or a list: [0, 2-3]; default: one for each of its ranks"),
      devices("gpus", "number of GPUs, or a list: [0]; default: one for each of its ranks, if the host has GPUs"),
      describe::real("share", "part of these cores and GPUs that it uses; other pipelines may use the rest", 1)
          .above(0)
          .at_most(1),
      duration("estimate", "expected duration, to order the queue").above(0).may_be_null(),
  };
  if (!defaults)
    for (Option& option : options) option.fallback = nullptr;
  return options;
}

std::vector<Option> added_pipeline_options() {
  std::vector<Option> options{
      describe::text("name", "name of the pipeline and its folder; default: the name in its configuration")
          .may_be_null(),
      describe::any("config", "path, or map", "a file, or the keys of a whole run").must(),
      describe::any("grid", "map", "values by key path, for a point of the farm's grid; `add --set` writes it")
          .may_be_null()};
  for (const Option& option : queue_options(true)) options.push_back(option);
  return options;
}

QueueOptions with_queue_options(QueueOptions queue, const Options& written) {
  if (written.has("priority")) queue.priority = written.integer("priority");
  if (written.has("preempt")) queue.preempt = written.boolean("preempt");
  if (written.has("retries")) queue.retries = written.integer("retries");
  if (written.has("backoff")) queue.backoff = written.real("backoff");
  if (written.has("timeout")) queue.timeout = written.real("timeout");
  if (written.has("memory")) queue.memory = written.integer("memory");
  if (written.has("gpu_memory")) queue.gpu_memory = written.integer("gpu_memory");
  if (written.has("nice")) queue.nice = static_cast<int>(written.integer("nice"));
  if (written.has("share")) queue.share = written.real("share");
  if (written.has("estimate")) queue.estimate = written.real("estimate");
  if (written.has("cores")) {
    const Devices found = devices_of(written, "cores", "hardware threads");
    queue.cores = found.count;
    queue.core_list = found.list;
  }
  if (written.has("gpus")) {
    const Devices found = devices_of(written, "gpus", "GPUs");
    queue.gpus = found.count;
    queue.gpu_list = found.list;
    // For a whole farm, some pipelines may name GPUs.
    if (found.count == 0 && written.has("gpu_memory") && written.path() != "strategy")
      written.fail("gpu_memory", "limits each of its GPUs, but gpus is 0; leave one of them out");
  }
  return queue;
}

Json to_json(const QueueOptions& queue) {
  return {{"priority", queue.priority},
          {"preempt", queue.preempt},
          {"retries", queue.retries},
          {"backoff", queue.backoff},
          {"timeout", queue.timeout > 0 ? Json(queue.timeout) : Json()},
          {"memory", queue.memory > 0 ? Json(queue.memory) : Json()},
          {"gpu_memory", queue.gpu_memory > 0 ? Json(queue.gpu_memory) : Json()},
          {"nice", queue.nice},
          {"cores", !queue.core_list.empty() ? Json(queue.core_list)
                    : queue.cores > 0        ? Json(queue.cores)
                                             : Json()},
          {"gpus", !queue.gpu_list.empty() ? Json(queue.gpu_list)
                   : queue.gpus >= 0       ? Json(queue.gpus)
                                           : Json()},
          {"share", queue.share},
          {"estimate", queue.estimate > 0 ? Json(queue.estimate) : Json()}};
}

Entry farm_entry() {
  Option axis = describe::list("", "values of the key", describe::any("", "value", "a value"));
  describe::OptionBuilder grid =
      describe::option(OptionType::map, "grid", "instead of pipelines: key path: values; one run per combination");
  grid.options = {axis};
  std::vector<Option> options{
      describe::list("pipelines", "the runs", describe::section("", "a run", item_options())),
      grid.may_be_null(),
      describe::section(
          "search", "instead of pipelines: random values of some keys, each combined with the whole grid",
          {describe::integer("random", "number of trials; all differ").between(1, most_grid_points).must(),
           describe::integer("seed", "another seed gives other values", 1).between(0, largest_seed),
           describe::any("over", "map",
                         "key path: a list of values, or a range {from, to, scale: linear or log}; a range of integers "
                         "gives integers")
               .must()})
          .may_be_null(),
      describe::section(
          "halving",
          "successive halving: all runs train up to a first point; the best 1/eta by `metric` continue to eta times "
          "that, and so on; the rest ends",
          {describe::integer("eta", "1 of eta runs continues after each rung", 3).between(2, 1000),
           describe::option(OptionType::interval, "first", "point of the training at which runs are compared first")
               .must()})
          .may_be_null(),
      describe::text("names",
                     "pattern of the names of the runs of a grid or search: {optimizer.lr} is that key's value, "
                     "{trial} the number of the trial, {index} that of the run")
          .may_be_null(),
      describe::any("each", "name of a strategy, or map", "strategy of runs without one", reference_strategy().name),
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
  return {farm_strategy, "a farm: several runs, each with its own configuration, queued for slots of cores and GPUs",
          options};
}

bool is_farm(const Node& root) {
  const Node* strategy = root.find("strategy");
  if (strategy != nullptr && strategy->kind == Node::Kind::map) strategy = strategy->find("name");
  return strategy != nullptr && strategy->kind == Node::Kind::scalar && strategy->text == farm_strategy;
}

void refuse_several(const Node& root, const std::string& path) {
  const Node* config = root.find("config");
  if (config != nullptr && root.find("model") == nullptr && root.find("strategy") == nullptr)
    throw ConfigError(config->location, "config",
                      "makes this file a pipeline for a running farm; type `convoy add RUN ", path,
                      "`, where RUN is the run folder of that farm");
  if (!is_farm(root)) return;
  throw ConfigError(
      root.find("strategy")->location, "strategy", "describes several runs, which only `convoy run` accepts; ",
      root.find("model") != nullptr ? "type --set strategy=single for one run of the keys that they share"
                                    : "write one pipeline's configuration into a file of its own",
      ", or give RUN/pipelines/NAME/pipeline.yaml, which `convoy run ", path, "` writes when it starts that pipeline");
}

}  // namespace convoy
