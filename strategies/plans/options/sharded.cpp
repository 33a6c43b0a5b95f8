#include "strategies/plans/options/sharded.h"

#include <algorithm>
#include <map>

#include "core/base/describe.h"
#include "core/base/json.h"
#include "strategies/plans/costs/replica_cost.h"
#include "strategies/plans/options/data_axis.h"

namespace convoy {
namespace {

const std::vector<std::string> shard_names = {"optimizer", "gradients", "parameters"};  // in the order of Shard

// Parameters that are gathered and reduced together, as in shards/sharded_unit.h.
struct Unit {
  double bytes = 0, gathered = 0;  // in the parameters' dtype, and in the dtype of gathering
  double messages = 1;
  std::vector<size_t> users;  // blocks, ascending
};

struct Units {
  std::vector<Unit> all;
  double bytes = 0, messages = 0, largest = 0;

  Units(const ModelDescription& model, bool half_precision, bool by_tensor) {
    const auto element = double(model.element_bytes);
    const double gathered = half_precision ? 2 : element;
    std::map<std::string, Unit> tied;
    for (size_t block = 0; block < model.blocks.size(); ++block)
      for (const TiedTensor& tie : model.blocks[block].ties) {
        Unit& unit = tied[tie.name];
        unit.bytes = unit.gathered = double(tie.elements) * element;
        if (unit.users.empty()) unit.users.push_back(size_t(tie.block));
        unit.users.push_back(block);
      }
    for (size_t block = 0; block < model.blocks.size(); ++block) {
      const BlockDescription& one = model.blocks[block];
      double elements = double(one.parameters);
      double tensors = double(one.tensors);
      for (const auto& [name, unit] : tied)
        if (unit.users.front() == block) {
          elements -= unit.bytes / element;
          --tensors;
        }
      const double products = half_precision ? double(one.product_parameters) : 0;
      const double product_tensors = half_precision ? double(one.product_tensors) : 0;
      add({products * element, products * gathered, by_tensor ? std::max(1.0, product_tensors) : 1, {block}});
      add({(elements - products) * element,
           (elements - products) * element,
           by_tensor ? std::max(1.0, tensors - product_tensors) : 1,
           {block}});
    }
    for (auto& [name, unit] : tied) add(unit);
  }

  void add(Unit unit) {
    if (unit.bytes <= 0) return;
    bytes += unit.bytes;
    messages += unit.messages;
    largest = std::max(largest, unit.bytes / unit.messages);
    all.push_back(std::move(unit));
  }

  // Peak of gradients while `in_a_row` consecutive blocks are differentiated. A tensor that several blocks use has a
  // gradient from the backward of its last block until that of its first.
  double most_gradients(size_t blocks, size_t in_a_row) const {
    double most = 0;
    for (size_t first = 0; first < blocks; ++first) {
      double together = 0;
      for (const Unit& unit : all)
        if (unit.users.front() < first + in_a_row && unit.users.back() >= first) together += unit.bytes;
      most = std::max(most, together);
    }
    return most;
  }

  // Largest gathered size of `in_a_row` consecutive blocks.
  double most_gathered(size_t blocks, size_t in_a_row) const {
    double most = 0;
    for (size_t first = 0; first < blocks; ++first) {
      double together = 0;
      for (const Unit& unit : all)
        if (std::any_of(unit.users.begin(), unit.users.end(),
                        [&](size_t user) { return user >= first && user < first + in_a_row; }))
          together += unit.gathered;
      most = std::max(most, together);
    }
    return most;
  }
};

}  // namespace

const std::string& name_of(Shard shard) { return shard_names[size_t(shard)]; }

Shard shard_of(const Options& strategy) {
  return strategy.has("shard") ? static_cast<Shard>(index_in(shard_names, strategy.text("shard"))) : Shard::parameters;
}

ShardedStepOptions sharded_step_options(const Options& strategy) {
  ShardedStepOptions step{step_options(strategy)};
  step.shard = shard_of(strategy);
  step.reshard = strategy.boolean("reshard_after_forward");
  step.by_tensor = strategy.text("units") == "tensors";
  return step;
}

std::vector<Option> shard_options() {
  return {
      describe::choice("shard",
                       "what is sharded over the ranks: optimizer state (optimizer); also gradients (gradients); or "
                       "also parameters, gathered block by block (parameters)",
                       shard_names, "parameters"),
      describe::boolean("reshard_after_forward",
                        "shard parameters: free a block's parameters after its forward and gather them again for "
                        "backward; false: keep them until then",
                        true),
      describe::choice("units", "what one message gathers or reduces: a block, or a tensor", {"blocks", "tensors"},
                       "blocks"),
  };
}

std::vector<Option> sharded_data_options() {
  return joined({shard_options(),
                 {overlap_option("gather one block ahead and reduce gradients during computation")},
                 buffer_options()});
}

std::vector<RankCost> sharded_costs(const JobPlan& job, const ModelDescription& description, bool ends) {
  const ShardedStepOptions step = sharded_step_options(job.config.strategy.options);
  const std::string& precision = job.config.precision;
  const bool half_precision = step.shard == Shard::parameters && (precision == "bf16" || precision == "fp16");
  const Units units(description, half_precision, step.by_tensor);
  const size_t blocks = description.blocks.size();
  const auto ranks = double(job.mesh.degree("data"));
  const auto slices = double(step.micro_batches);
  const auto every = double(step.sync.every);
  const double others = (ranks - 1) / ranks;
  // With overlap, the next block is gathered and the previous block's gradients are reduced during computation.
  const size_t at_a_time = step.overlap.value_or(true) ? 2 : 1;
  const double overlapped = during_backward(step, units.messages);
  RankCost cost;
  // Adds the payload by kind. The small all-reduces are two per update.
  const auto exchange = [&](Exchange kind, double sent, double messages) {
    if (ranks > 1 && messages > 0)
      cost.axes.push_back({"data", sent, messages, kind, kind == Exchange::all_reduce ? 0 : overlapped, !step.overlap});
    cost.bytes_sent_per_step += sent;
    cost.messages_per_step += messages;
  };
  cost.parameter_bytes = units.bytes;
  cost.gradient_bytes = units.bytes / ranks + units.most_gradients(blocks, at_a_time);
  if (step.shard == Shard::optimizer) {
    cost.gradient_bytes = units.bytes;
    exchange(Exchange::scatter, others * units.bytes / every, units.messages / every);
    exchange(Exchange::gather, others * units.bytes / every, units.messages / every);
  } else if (step.shard == Shard::gradients) {
    exchange(Exchange::scatter, others * units.bytes * slices, units.messages * slices);
    exchange(Exchange::gather, others * units.bytes / every, units.messages / every);
  } else {
    double all = 0, sent = 0, messages = 0;
    for (const Unit& unit : units.all) {
      // Each block gathers the unit before its forward and before its backward, if it is not gathered already.
      const auto uses = double(unit.users.size());
      const double times = step.reshard ? 2 * uses - (ends && unit.users.back() + 1 == blocks ? 1 : 0) : uses;
      all += unit.gathered;
      sent += times * unit.gathered;
      messages += times * unit.messages;
    }
    cost.parameter_bytes = units.bytes / ranks + (step.reshard ? units.most_gathered(blocks, at_a_time) : all);
    if (!step.reshard) cost.gradient_bytes = units.bytes / ranks + units.most_gradients(blocks, 1);
    exchange(Exchange::gather, others * slices * sent, slices * messages);
    exchange(Exchange::scatter, others * slices * units.bytes, slices * units.messages);
  }
  // A sum that cannot be in place needs memory in addition to its terms and its target.
  if (step.shard == Shard::optimizer || slices * every > 1) cost.gradient_bytes += units.largest / ranks;
  exchange(Exchange::all_reduce, 0, 2 / every);
  if (ranks == 1) cost.bytes_sent_per_step = cost.messages_per_step = 0;
  cost.moment_bytes = moments_of(job.config) * units.bytes / ranks;
  cost.buffer_bytes = buffer_bytes(description);
  // saved_bytes counts half-precision copies of weights. Weights gathered in half precision have none: backward gathers
  // them again.
  ModelDescription kept = description;
  if (half_precision)
    for (BlockDescription& block : kept.blocks)
      block.saved_bytes = std::max<int64_t>(0, block.saved_bytes - 2 * block.product_parameters);
  cost.activation_bytes = activation_bytes(job.config, kept, job.mesh.degree("data"));
  cost.work = whole_work(job.config, job.mesh.degree("data"));
  cost.work.updated = 1 / ranks;
  std::vector<RankCost> costs(job.ranks.size(), cost);
  for (int rank = 0; rank < int(costs.size()); ++rank) {
    const int data_rank = job.mesh.coordinate(rank, "data");
    costs[size_t(rank)].owned_bytes =
        units.bytes / ranks + cost.moment_bytes + (data_rank == 0 ? cost.buffer_bytes : 0);
    add_buffer_exchanges(step, description, job.mesh.degree("data"), data_rank, costs[size_t(rank)]);
  }
  return costs;
}

}  // namespace convoy
