#include <algorithm>
#include <cmath>

#include "core/base/text.h"
#include "strategies/plans/costs/replica_cost.h"

namespace convoy {
namespace {

std::string elements_text(double elements) {
  return elements >= 1e6 ? str(std::round(elements / 1e5) / 10, " M") : str(std::llround(elements));
}

std::string every_text(int64_t every, const std::string& unit) {
  return every == 1 ? "every " + unit : str("every ", every, " ", unit, "s");
}

// Mean communication of one group in an update.
struct GroupCost {
  double bytes = 0, messages = 0;
  double extra = 0;  // memory in addition to parameters, gradients and moments
};

double messages_of(const StepOptions& step, double bytes, double gradient_bytes) {
  return bytes > 0 ? std::max(1.0, std::ceil(bytes / bucket_bytes(step, gradient_bytes))) : 0;
}

GroupCost cost_of(const SyncGroup& group, Compression compress, double bytes, double messages, int ranks, int moments,
                  double element) {
  const double ring = 2.0 * (ranks - 1) / ranks, every = double(group.every);
  GroupCost cost;
  if (group.what == SyncKind::gradients) {
    const bool compressed = compress != Compression::none;
    cost.bytes = ring * bytes * (compressed ? 2 / element : 1);
    cost.messages = messages * (compressed ? 2 : 1);
    if (compressed) cost.extra = bytes + 2 * bytes * 2 / element;  // compression error; buffers to send and receive
    return cost;
  }
  const double tensors = group.average_moments ? 1 + moments : 1;
  cost.bytes = ring * bytes * tensors / every;
  cost.messages = messages * tensors / every;
  if (group.what == SyncKind::diloco) cost.extra = 2 * bytes;
  return cost;
}

}  // namespace

void check_sync_names(const JobPlan& job, const ModelDescription& description) {
  const SyncPolicy policy = sync_policy(job.config.strategy.options);
  if (policy.patterns.empty()) return;
  std::vector<std::string> names;
  for (const BlockDescription& block : description.blocks)
    for (const auto& [name, elements] : block.named) names.push_back(name);
  const std::vector<Options> groups = job.config.strategy.options.section("sync").sections("groups");
  for (size_t group = 0; group < policy.patterns.size(); ++group)
    if (std::none_of(names.begin(), names.end(),
                     [&](const std::string& name) { return policy.patterns[group].found_in(name); }))
      groups[group].fail("match", "is ", policy.groups[group].match, ", which no parameter's name has; they are ",
                         join(names, ", ").substr(0, 400));
}

std::vector<double> sync_elements(const SyncPolicy& policy, const ModelDescription& description) {
  std::vector<double> elements(policy.groups.size(), 0);
  for (const BlockDescription& block : description.blocks) {
    double named = 0;
    std::vector<double> shares(policy.groups.size(), 0);
    for (const auto& [name, count] : block.named) {
      shares[policy.group_of(name)] += double(count);
      named += double(count);
    }
    const auto in_block = double(block.parameters);
    if (named == 0) elements.back() += in_block;
    for (size_t group = 0; named > 0 && group < elements.size(); ++group)
      elements[group] += in_block * shares[group] / named;
  }
  return elements;
}

void add_sync_cost(const RunConfig& config, const ModelDescription& description, int ranks, RankCost& cost) {
  const StepOptions step = step_options(config.strategy.options);
  const SyncPolicy& policy = step.sync;
  const auto element = double(description.element_bytes);
  const std::vector<double> elements = sync_elements(policy, description);
  const double updates = 1 / double(policy.every);
  const double all = replicated_bytes(description);
  for (size_t group = 0; group < elements.size(); ++group) {
    if (elements[group] == 0) continue;
    const double bytes = elements[group] * element;
    const GroupCost one = cost_of(policy.groups[group], policy.compress, bytes, messages_of(step, bytes, all), ranks,
                                  moments_of(config), element);
    cost.moment_bytes += one.extra;
    if (ranks == 1) continue;
    const bool gradients = policy.groups[group].what == SyncKind::gradients;
    const bool compressed = gradients && policy.compress != Compression::none;
    const double overlapped = gradients ? during_backward(step, one.messages) : 0;
    const double messages = one.messages * updates;
    const double sent = one.bytes * updates;
    if (!compressed) {
      cost.add({"data", sent, messages, Exchange::all_reduce, overlapped});
      continue;
    }
    cost.add({"data", sent / 2, messages / 2, Exchange::scatter, overlapped});
    cost.add({"data", sent / 2, messages / 2, Exchange::gather, 0});
  }
}

std::string sync_text(const RunConfig& config, const ModelDescription& description, int ranks) {
  const SyncPolicy policy = sync_policy(config.strategy.options);
  if (policy.plain()) return "";
  const auto element = double(description.element_bytes);
  const std::vector<double> elements = sync_elements(policy, description);
  std::string text = str("all ranks: forward and backward of their share of a batch, an update ",
                         every_text(policy.every, "step"), "\n");
  for (size_t index = 0; index < elements.size(); ++index) {
    const SyncGroup& group = policy.groups[index];
    if (elements[index] == 0) continue;
    const GroupCost cost =
        cost_of(group, policy.compress, elements[index] * element, 1, ranks, moments_of(config), element);
    text += group.match.empty() ? (policy.patterns.empty() ? "all parameters" : "all other parameters")
                                : str("those with ", group.match, " in their name");
    text += str(" (", elements_text(elements[index]), "): ");
    if (group.what == SyncKind::gradients) {
      text += "gradients of every update are summed";
      if (policy.compress != Compression::none)
        text += str(", sent as ", name_of(policy.compress), " with error feedback");
    } else {
      text += str("each rank makes local updates, ", every_text(group.every, "update"), " ",
                  group.what == SyncKind::parameters
                      ? "their mean"
                      : str("an outer step (lr ", group.outer_rate, ", momentum ", group.outer_momentum, ")"),
                  group.average_moments ? ", moments too" : "");
      if (group.start_after > 0) text += str(", after ", group.start_after, " updates by summed gradients");
    }
    text += str("; ", human_bytes(cost.bytes / double(policy.every)), " a step\n");
  }
  return text;
}

}  // namespace convoy
