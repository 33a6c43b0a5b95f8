#include "core/config/queue_terms.h"

#include <set>

#include "core/config/scalars.h"
#include "core/describe.h"
#include "core/units.h"

namespace convoy {
namespace {

constexpr int64_t largest_priority = 1'000'000;
constexpr double longest = 365 * 86400.0;  // seconds
constexpr int most_devices = 65536;

using describe::Description;

Description duration(const std::string& name, const std::string& help, Json fallback = nullptr) {
  return describe::option(OptionType::duration, name, help, std::move(fallback)).at_most(longest).in("seconds");
}

Description devices(const std::string& name, const std::string& help) {
  return describe::option(OptionType::any, name, help).may_be_null();
}

struct Devices {
  int count = 0;
  std::vector<int> list;
};

// A count, or a list of numbers and ranges such as [0, 2-3].
Devices devices_of(const Options& written, const std::string& name, const char* what) {
  Devices devices;
  const Json& value = written.at(name);
  const std::string form = str("must be a count, such as 2, or a list of ", what, ", such as [0, 2-3]");
  if (value.is_number_integer()) {
    if (value.get<int64_t>() < (name == "gpus" ? 0 : 1) || value.get<int64_t>() > most_devices)
      written.fail(name, str("is ", value.dump(), ", ", form));
    devices.count = value.get<int>();
    return devices;
  }
  if (!value.is_array() || value.empty()) written.fail(name, str("is ", shown(value.dump()), ", ", form));
  std::set<int> seen;
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string text = value[i].is_string() ? value[i].get<std::string>() : value[i].dump();
    const std::vector<int> units = units_from_text(text);
    if (units.empty()) written.fail(str(name, ".", i), str("is ", shown(text), ", must be 0, 0-3 or 0-3+8"));
    for (int unit : units) {
      if (!seen.insert(unit).second) written.fail(str(name, ".", i), str("names ", unit, " twice"));
      devices.list.push_back(unit);
    }
  }
  devices.count = static_cast<int>(devices.list.size());
  return devices;
}

}  // namespace

std::vector<Option> queue_options(bool defaults) {
  std::vector<Option> options{
      describe::integer("priority", "larger ones go first; within one the longest first, as far as `estimate` tells", 0)
          .at_least(-static_cast<double>(largest_priority))
          .at_most(static_cast<double>(largest_priority)),
      describe::boolean("preempt",
                        "it need not wait for running ones of a smaller priority: they stop after their step and go on "
                        "later, from the checkpoint that they then make",
                        false),
      describe::integer("retries", "after a failure it is started again so often, from its newest checkpoint", 0)
          .at_least(0)
          .at_most(1000),
      duration("backoff", "before the first of these; doubled with each further one, up to 10 minutes", 1).at_least(0),
      duration("timeout", "an attempt that takes longer is ended; any time unless given").above(0).may_be_null(),
      describe::option(OptionType::bytes, "memory",
                       "of all its processes together, anonymous memory alone: what is mapped from files that others "
                       "map too does not count; what outgrows it is ended")
          .at_least(1)
          .at_most(most_bytes)
          .in("bytes")
          .may_be_null(),
      describe::option(
          OptionType::bytes, "gpu_memory",
          "that its tensors may take of each of its GPUs: LibTorch's allocator is held to it, and what goes "
          "round that is looked at once a second")
          .at_least(1)
          .at_most(most_bytes)
          .in("bytes")
          .may_be_null(),
      describe::integer("nice", "how much its processes give way to others on the same cores", 0)
          .at_least(0)
          .at_most(19),
      devices("cores", "how many it runs on, or which: [0, 2-3]; unless given one for each of its ranks"),
      devices("gpus",
              "how many it runs on, or which: [0]; unless given one for each of its ranks, where there are any"),
      describe::real("share", "part of these cores and GPUs that it takes: others may have the rest", 1)
          .above(0)
          .at_most(1),
      duration("estimate", "how long it takes, to order the queue by").above(0).may_be_null(),
  };
  if (!defaults)
    for (Option& option : options) option.fallback = nullptr;
  return options;
}

std::vector<Option> added_pipeline_options() {
  std::vector<Option> options{
      describe::text("name", "of the pipeline and its folder; unless given the name in its configuration")
          .may_be_null(),
      describe::option(OptionType::any, "config", "a file, or the keys of a whole run").must(),
      describe::option(OptionType::any, "grid",
                       "values by key path of a point of the farm's grid; `add --set` writes it")
          .may_be_null()};
  for (const Option& option : queue_options(true)) options.push_back(option);
  return options;
}

QueueTerms with_terms(QueueTerms terms, const Options& written) {
  if (written.has("priority")) terms.priority = written.integer("priority");
  if (written.has("preempt")) terms.preempt = written.boolean("preempt");
  if (written.has("retries")) terms.retries = written.integer("retries");
  if (written.has("backoff")) terms.backoff = written.real("backoff");
  if (written.has("timeout")) terms.timeout = written.real("timeout");
  if (written.has("memory")) terms.memory = written.integer("memory");
  if (written.has("gpu_memory")) terms.gpu_memory = written.integer("gpu_memory");
  if (written.has("nice")) terms.nice = static_cast<int>(written.integer("nice"));
  if (written.has("share")) terms.share = written.real("share");
  if (written.has("estimate")) terms.estimate = written.real("estimate");
  if (written.has("cores")) {
    const Devices found = devices_of(written, "cores", "processing units");
    terms.cores = found.count;
    terms.core_list = found.list;
  }
  if (written.has("gpus")) {
    const Devices found = devices_of(written, "gpus", "GPUs");
    terms.gpus = found.count;
    terms.gpu_list = found.list;
    // Of a whole farm, some pipelines may have GPUs of their own.
    if (found.count == 0 && written.has("gpu_memory") && written.path() != "strategy")
      written.fail("gpu_memory", "is a limit on each of its GPUs, and gpus is 0; leave one of them out");
  }
  return terms;
}

Json to_json(const QueueTerms& terms) {
  return {{"priority", terms.priority},
          {"preempt", terms.preempt},
          {"retries", terms.retries},
          {"backoff", terms.backoff},
          {"timeout", terms.timeout > 0 ? Json(terms.timeout) : Json()},
          {"memory", terms.memory > 0 ? Json(terms.memory) : Json()},
          {"gpu_memory", terms.gpu_memory > 0 ? Json(terms.gpu_memory) : Json()},
          {"nice", terms.nice},
          {"cores", !terms.core_list.empty() ? Json(terms.core_list)
                    : terms.cores > 0        ? Json(terms.cores)
                                             : Json()},
          {"gpus", !terms.gpu_list.empty() ? Json(terms.gpu_list)
                   : terms.gpus >= 0       ? Json(terms.gpus)
                                           : Json()},
          {"share", terms.share},
          {"estimate", terms.estimate > 0 ? Json(terms.estimate) : Json()}};
}

}  // namespace convoy
