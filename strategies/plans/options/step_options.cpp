#include "strategies/plans/options/step_options.h"

#include <algorithm>

#include "core/base/describe.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "core/config/node.h"
#include "core/config/run_config.h"

namespace convoy {
namespace {

const SyncGroup defaults;
const std::vector<std::string> sync_kinds = {"gradients", "parameters", "diloco"};
const std::vector<std::string> compressions = {"none", "fp16", "bf16"};

size_t place_in(const std::vector<std::string>& names, const std::string& name) {
  const auto found = std::find(names.begin(), names.end(), name);
  CONVOY_CHECK(found != names.end(), "a resolved configuration says ", name);
  return size_t(found - names.begin());
}

SyncGroup group_from(const Json& json) {
  SyncGroup group;
  group.match = json.value("match", "");
  group.what = static_cast<SyncKind>(place_in(sync_kinds, json.value("what", sync_kinds.front())));
  group.every = json.value("every", group.every);
  group.start_after = json.value("start_after", group.start_after);
  group.average_moments = json.value("moments", "local") == "averaged";
  const Json outer = json.value("outer", Json::object());
  if (!outer.is_object()) return group;
  group.outer_rate = outer.value("lr", group.outer_rate);
  group.outer_momentum = outer.value("momentum", group.outer_momentum);
  group.nesterov = outer.value("nesterov", group.nesterov);
  return group;
}

// Options of the section itself and of each of its groups.
std::vector<Option> group_options(const std::string& every) {
  return {
      describe::integer("every", every, defaults.every).between(1, 1 << 20).in("steps"),
      describe::choice("what",
                       "what ranks synchronise: gradients, for every update; parameters, averaged after local updates "
                       "(local SGD); or diloco, an outer step along the mean change of local updates",
                       sync_kinds, sync_kinds.front()),
      describe::integer("start_after", "parameters, diloco: first updates that sum gradients instead",
                        defaults.start_after)
          .between(0, most_steps)
          .in("updates"),
      describe::choice("moments", "parameters, diloco: the optimizer's moments stay local, or are averaged too",
                       {"local", "averaged"}, "local"),
      describe::section(
          "outer", "diloco: the outer step",
          {describe::real("lr", "learning rate; 1 without momentum takes the mean", defaults.outer_rate).above(0),
           describe::real("momentum", "momentum of the outer steps", defaults.outer_momentum).between(0, 1),
           describe::boolean("nesterov", "use Nesterov momentum", defaults.nesterov)}),
  };
}

// Checks the section or one of its groups.
void check_group(const Options& section, std::vector<std::string>& left_out) {
  const std::string what = section.json().value("what", sync_kinds.front());
  const auto refuse = [&](const std::string& key, const std::string& reason) {
    refuse_without_effect(section, key, reason, {section.location("what")}, &left_out);
  };
  if (what == sync_kinds.front())
    for (const char* key : {"start_after", "moments"})
      refuse(key,
             "needs ranks with local updates, but what is gradients; write what: parameters or diloco, or "
             "leave it out");
  if (what != "diloco") refuse("outer", str("needs what: diloco, but what is ", what, "; leave one of them out"));
  if (!section.json().contains("match")) return;
  NamePattern{section};
}

// Checks that all groups of gradients accumulate the same number of steps.
void check_every(const Options& sync, const SyncPolicy& policy) {
  const std::vector<Options> groups = sync.sections("groups");
  const SyncGroup& rest = policy.groups.back();
  std::string other = rest.what == SyncKind::gradients ? "sync.every" : "";
  int64_t every = rest.every;
  for (size_t i = 0; i < groups.size(); ++i) {
    const SyncGroup& group = policy.groups[i];
    if (group.what != SyncKind::gradients) continue;
    if (!other.empty() && group.every != every)
      groups[i].fail("every", "is ", group.every, ", which conflicts with ", other, " = ", every,
                     ": one update of all parameters needs gradients of equally many steps; write equal numbers, "
                     "or what: parameters for one of them");
    if (other.empty()) other = str("sync.groups.", i, ".every");
    every = group.every;
  }
}

}  // namespace

const std::string& name_of(Compression compression) { return compressions[size_t(compression)]; }

size_t SyncPolicy::group_of(const std::string& parameter) const {
  for (size_t group = 0; group < patterns.size(); ++group)
    if (patterns[group].found_in(parameter)) return group;
  return groups.size() - 1;
}

bool SyncPolicy::ever_local() const {
  return std::any_of(groups.begin(), groups.end(),
                     [](const SyncGroup& group) { return group.what != SyncKind::gradients; });
}

bool SyncPolicy::always_local() const {
  return std::all_of(groups.begin(), groups.end(), [](const SyncGroup& group) { return group.is_local(0); });
}

SyncPolicy sync_policy(const Options& strategy) {
  const Json sync = strategy.json().value("sync", Json::object());
  SyncPolicy policy;
  policy.groups.clear();
  for (const Json& group : sync.value("groups", Json::array())) {
    policy.groups.push_back(group_from(group));
    policy.patterns.emplace_back(Options(group));
  }
  policy.groups.push_back(group_from(sync));
  for (const SyncGroup& group : policy.groups)
    if (group.what == SyncKind::gradients) policy.every = group.every;
  policy.compress = static_cast<Compression>(place_in(compressions, sync.value("compress", compressions.front())));
  return policy;
}

Option replica_sync_option() {
  Option group;
  group.type = OptionType::section;
  group.help = "parameters with a matching name; keys that are left out have their defaults, not the section's values";
  group.options =
      group_options("gradients: equal to sync.every; parameters, diloco: updates between two synchronisations");
  group.options.insert(group.options.begin(), describe::text("match", NamePattern::help).must());
  std::vector<Option> options = group_options(
      "gradients: steps that are accumulated for one update; parameters, diloco: updates between two synchronisations");
  options.push_back(describe::list("groups", "parameters with other synchronisation", group));
  options.push_back(describe::choice("compress",
                                     "number format of sent gradients; the rounding error is added to the next ones",
                                     compressions, compressions.front()));
  return describe::section("sync", "how often ranks synchronise, and what", options);
}

std::vector<std::string> check_sync(const RunConfig& config, bool copies) {
  std::vector<std::string> left_out;
  const Options& strategy = config.strategy.options;
  if (!strategy.has("sync")) return left_out;
  const Options sync = strategy.section("sync");
  if (!copies) {
    for (const char* key : {"groups", "start_after", "moments", "outer", "compress"})
      refuse_without_effect(sync, key,
                            str("needs a data axis of whole replicas, but strategy ", config.strategy.name,
                                " has none here; leave it out"),
                            {strategy.location("mesh"), strategy.location("name")}, &left_out);
    return left_out;
  }
  check_group(sync, left_out);
  for (const Options& group : sync.sections("groups")) check_group(group, left_out);
  const SyncPolicy policy = sync_policy(strategy);
  check_every(sync, policy);
  if (policy.compress == Compression::none) return left_out;
  if (policy.always_local())
    sync.fail("compress", "needs gradients that ranks send, but these ranks average parameters; leave it out");
  if (config.precision == "fp16")
    sync.fail("compress",
              "conflicts with precision fp16: the rounding error would have another loss scale when it is added; "
              "take bf16 or fp32, or leave it out");
  return left_out;
}

}  // namespace convoy
