#include "strategies/plans/options/data_axis.h"

#include <algorithm>

#include "core/base/describe.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "core/config/node.h"

namespace convoy {

void check_memory_options(const RunConfig& config) {
  const Options& options = config.strategy.options;
  if (config.precision == "fp16" && !options.has("loss_scale"))
    throw ConfigError(SourceLocation{}, "precision", "fp16 needs a loss scaler, which strategy ", config.strategy.name,
                      " does not have; use bf16 or fp32");
  if (!options.has("recompute")) return;
  const Json& value = options.at("recompute");
  bool known = value == "none" || value == "blocks" || (value.is_array() && !value.empty());
  if (value.is_array())
    for (const Json& name : value) known = known && name.is_string();
  if (!known) options.fail("recompute", "must be none, blocks, or a list of names of blocks");
}

void check_recomputed_names(const std::vector<std::string>& named, const std::vector<std::string>& blocks) {
  for (const std::string& name : named) {
    if (std::find(blocks.begin(), blocks.end(), name) != blocks.end()) continue;
    const std::string near = nearest(name, blocks);
    throw ConfigError(SourceLocation{}, "strategy.recompute", "the model has no block '", name, "'; it has ",
                      join(blocks, ", "), near.empty() ? "" : "; did you mean " + near + "?");
  }
}

void check_micro_batches(const RunConfig& config, int64_t data_degree) {
  const Options& options = config.strategy.options;
  if (!options.has("micro_batches")) return;
  const int64_t rows = config.train.batch.rows * (config.train.batch.per_rank ? data_degree : 1);
  const int64_t slices = options.integer("micro_batches");
  if (slices > rows)
    options.fail("micro_batches", "is ", slices, ", and the global batch has ", rows, " rows; take at most that");
}

bool Recompute::includes(const std::string& block) const {
  return all || std::find(names.begin(), names.end(), block) != names.end();
}

namespace {
constexpr double mib = 1024 * 1024;
}

double bucket_cap(double gradient_bytes) { return std::clamp(gradient_bytes / 4, 1.0 * mib, 25.0 * mib); }

StepOptions step_options(const Options& strategy) {
  StepOptions step;
  const bool cap = strategy.has("bucket_cap_mb") && !strategy.is_auto("bucket_cap_mb");
  if (strategy.has("micro_batches")) step.micro_batches = strategy.integer("micro_batches");
  step.sync = sync_policy(strategy);
  if (strategy.has("recompute")) {
    step.recompute.all = strategy.at("recompute") == "blocks";
    if (strategy.at("recompute").is_array()) step.recompute.names = strategy.texts("recompute");
  }
  if (strategy.has("first_bucket_mb")) step.first_bytes = strategy.real("first_bucket_mb") * mib;
  if (cap) step.cap_bytes = strategy.real("bucket_cap_mb") * mib;
  if (strategy.has("overlap")) step.overlap = strategy.boolean("overlap");
  if (strategy.has("buffers")) step.buffers = strategy.text("buffers");
  step.synchronises_norms = strategy.has("batch_norm") && strategy.text("batch_norm") == "sync";
  return step;
}

std::vector<Option> joined(const std::vector<std::vector<Option>>& lists) {
  std::vector<Option> all;
  for (const std::vector<Option>& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

Option micro_batches_option() {
  return describe::integer(
             "micro_batches",
             "micro-batches of each global batch, which run one after another and make one update; more of "
             "them need less memory for activations; the gradients are the same",
             1)
      .between(1, 1 << 20)
      .in("micro-batches");
}

std::vector<Option> memory_options() {
  return {
      describe::any("recompute", "none, blocks or list of texts",
                    "activation checkpointing: blocks that keep only their inputs and run forward again in "
                    "backward: none, blocks (all), or a list of their names",
                    "none"),
      describe::section(
          "loss_scale", "precision fp16: dynamic factor on the loss that keeps small gradients above zero",
          {describe::real("initial", "first factor", 65536.0).between(1, 4294967296.0),
           describe::real("growth", "multiplier after growth_interval updates in a row", 2.0).above(1),
           describe::integer("growth_interval", "number of updates with finite gradients before growth", 2000)
               .between(1, most_steps)
               .in("updates"),
           describe::real("backoff", "multiplier after gradients that are not finite", 0.5).above(0).at_most(1)}),
  };
}

std::vector<Option> replicated_data_options() {
  return joined(
      {{
           describe::real("bucket_cap_mb",
                          "size of the gradients that one message reduces; auto: a quarter of them, between 1 and 25",
                          "auto")
               .above(0)
               .in("MiB")
               .or_auto(),
           describe::real("first_bucket_mb", "size of the first bucket, small so that sending starts early", 1)
               .above(0)
               .in("MiB"),
           describe::boolean("overlap", "reduce a bucket as soon as its gradients are ready, during the backward pass",
                             true),
       },
       buffer_options()});
}

std::vector<Option> buffer_options() {
  return {
      describe::choice("buffers", "batch norm's buffers after an update: rank 0's, their mean, or each rank's own",
                       {"broadcast", "mean", "local"}, "broadcast"),
      describe::choice(
          "batch_norm",
          "rows for mean and variance of batch norm in training: the rank's own (local), or all ranks' (sync)",
          {"local", "sync"}, "local"),
  };
}

Option sync_option() {
  return describe::section(
      "sync", "how often gradients are reduced and an update is made",
      {describe::integer("every", "steps whose gradients are accumulated for one update", 1)
           .between(1, 1 << 20)
           .in("steps"),
       describe::text("what", "what ranks synchronise: gradients, for every update", "gradients")});
}

}  // namespace convoy
