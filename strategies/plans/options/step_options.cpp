#include "strategies/plans/options/step_options.h"

#include <algorithm>

#include "core/base/json.h"
#include "core/base/text.h"
#include "core/config/node.h"

namespace convoy {

size_t index_in(const std::vector<std::string>& names, const std::string& name) {
  const auto found = std::find(names.begin(), names.end(), name);
  CONVOY_CHECK(found != names.end(), "the resolved configuration has the unknown value ", name);
  return size_t(found - names.begin());
}

namespace {

constexpr double mib = 1024 * 1024;

SyncGroup group_from(const Json& json) {
  SyncGroup group;
  group.match = json.value("match", "");
  group.what = static_cast<SyncKind>(index_in(sync_kinds, json.value("what", sync_kinds.front())));
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
  policy.compress = static_cast<Compression>(index_in(compressions, sync.value("compress", compressions.front())));
  return policy;
}

bool Recompute::includes(const std::string& block) const {
  return all || std::find(names.begin(), names.end(), block) != names.end();
}

Recompute recompute_of(const Options& strategy) {
  if (!strategy.has("recompute")) return {};
  const Json& value = strategy.at("recompute");
  bool named = value.is_array() && !value.empty();
  for (const Json& name : value) named = named && name.is_string();
  if (!named && value != "none" && value != "blocks")
    strategy.fail("recompute", "must be none, blocks, or a list of names of blocks");
  return {value == "blocks", named ? strategy.texts("recompute") : std::vector<std::string>()};
}

double bucket_cap(double gradient_bytes) { return std::clamp(gradient_bytes / 4, 1.0 * mib, 25.0 * mib); }

StepOptions step_options(const Options& strategy) {
  StepOptions step;
  const bool cap = strategy.has("bucket_cap_mb") && !strategy.is_auto("bucket_cap_mb");
  if (strategy.has("micro_batches")) step.micro_batches = strategy.integer("micro_batches");
  step.sync = sync_policy(strategy);
  step.recompute = recompute_of(strategy);
  if (strategy.has("first_bucket_mb")) step.first_bytes = strategy.real("first_bucket_mb") * mib;
  if (cap) step.cap_bytes = strategy.real("bucket_cap_mb") * mib;
  if (strategy.has("overlap") && !strategy.is_auto("overlap")) step.overlap = strategy.boolean("overlap");
  if (strategy.has("buffers"))
    step.buffers = static_cast<SharedBuffers>(index_in(shared_buffers, strategy.text("buffers")));
  step.synchronises_norms = strategy.has("batch_norm") && strategy.text("batch_norm") == "sync";
  if (strategy.has("graph")) step.graph = static_cast<GraphMode>(index_in(graph_modes, strategy.text("graph")));
  return step;
}

void check_recomputed_names(const std::vector<std::string>& named, const std::vector<std::string>& blocks) {
  for (const std::string& name : named) {
    if (std::find(blocks.begin(), blocks.end(), name) != blocks.end()) continue;
    const std::string near = nearest(name, blocks);
    throw ConfigError(SourceLocation{}, "strategy.recompute", "the model has no block '", name, "'; it has ",
                      join(blocks, ", "), near.empty() ? "" : "; did you mean " + near + "?");
  }
}

StateOwners::StateOwners(int replicas, double parameter_bytes) {
  constexpr double spread_from = 64 << 20;
  bytes_.resize(parameter_bytes >= spread_from ? size_t(replicas) : 1);
}

int StateOwners::next(double bytes) {
  const auto least = std::min_element(bytes_.begin(), bytes_.end());
  *least += bytes;
  return int(least - bytes_.begin());
}

}  // namespace convoy
