#include "strategies/parts/sharded_entry.h"

#include <algorithm>

#include "core/describe.h"
#include "strategies/parts/replicated_entry.h"

namespace convoy {
namespace {

// Bytes of the parameters of a model, by block.
struct BlockBytes {
  double all = 0, last = 0, largest = 0;
  double neighbours = 0;  // the most that two in a row have
  double units = 0;       // blocks that have any

  explicit BlockBytes(const Description& description) {
    double before = 0;
    for (const BlockDescription& block : description.blocks) {
      const double bytes = static_cast<double>(block.parameters) * static_cast<double>(description.element_bytes);
      all += bytes;
      largest = std::max(largest, bytes);
      neighbours = std::max(neighbours, before + bytes);
      units += bytes > 0 ? 1 : 0;
      before = last = bytes;
    }
  }
};

}  // namespace

std::vector<Option> shard_options() {
  return {
      describe::choice(
          "shard",
          "what is divided among the ranks: the optimizer's state; gradients too; or parameters too, which "
          "are gathered block by block",
          {"optimizer", "gradients", "parameters"}, "parameters"),
      describe::boolean("reshard_after_forward",
                        "shard parameters: give a block's parameters back behind its forward and gather them again for "
                        "backward; false: keep them until then",
                        true),
      describe::choice("units", "what is gathered and reduced by one message: a block, or a tensor",
                       {"blocks", "tensors"}, "blocks"),
  };
}

std::vector<Option> sharded_data_options() {
  std::vector<Option> options = shard_options();
  options.push_back(
      describe::boolean("overlap", "gather one block ahead and reduce gradients while computing goes on", true));
  for (Option& option : buffer_options()) options.push_back(std::move(option));
  return options;
}

std::vector<RankCost> sharded_costs(const Job& job, const Description& description, bool ends) {
  const Options options(job.config.at("strategy"));
  const BlockBytes bytes(description);
  const auto ranks = static_cast<double>(job.mesh.degree("data"));
  const auto slices = static_cast<double>(options.integer("micro_batches"));
  const auto every = static_cast<double>(options.section("sync").integer("every"));
  const double others = (ranks - 1) / ranks;
  const std::string& shard = options.text("shard");
  const bool reshards = options.boolean("reshard_after_forward");
  // With overlap the next block's values come, and the one before's gradients go, while one is computed.
  const double under_way = options.boolean("overlap") ? bytes.neighbours : bytes.largest;
  const double beside = beside_backward(job.config, bytes.units);
  RankCost cost;
  // Payloads by kind; the all-reduces of a few bytes are two an update.
  const auto exchange = [&](Exchange kind, double sent, double messages) {
    if (ranks > 1 && messages > 0)
      cost.axes.push_back({"data", sent, messages, kind, kind == Exchange::all_reduce ? 0 : beside});
  };
  cost.parameter_bytes = bytes.all;
  cost.gradient_bytes = bytes.all / ranks + under_way;
  // A sum may lie neither in what it is made of nor in what it is added to.
  const double sum = shard == "optimizer" || slices * every > 1 ? bytes.largest / ranks : 0;
  if (shard == "optimizer") {
    cost.gradient_bytes = bytes.all;
    cost.bytes_sent_per_step = 2 * others * bytes.all / every;
    cost.messages_per_step = (2 * bytes.units + 2) / every;
    exchange(Exchange::scatter, others * bytes.all / every, bytes.units / every);
    exchange(Exchange::gather, others * bytes.all / every, bytes.units / every);
  } else if (shard == "gradients") {
    cost.bytes_sent_per_step = others * bytes.all * (slices + 1 / every);
    cost.messages_per_step = bytes.units * (slices + 1 / every) + 2 / every;
    exchange(Exchange::scatter, others * bytes.all * slices, bytes.units * slices);
    exchange(Exchange::gather, others * bytes.all / every, bytes.units / every);
  } else {
    cost.parameter_bytes = bytes.all / ranks + (reshards ? under_way : bytes.all);
    if (!reshards) cost.gradient_bytes = bytes.all / ranks + bytes.largest;
    const double again = reshards ? bytes.all - (ends ? bytes.last : 0) : 0;
    cost.bytes_sent_per_step = others * slices * (2 * bytes.all + again);
    cost.messages_per_step = slices * (bytes.units * (reshards ? 3 : 2) - (reshards && ends ? 1 : 0)) + 2 / every;
    const double gathers = bytes.units * (reshards ? 2 : 1) - (reshards && ends ? 1 : 0);
    exchange(Exchange::gather, others * slices * (bytes.all + again), slices * gathers);
    exchange(Exchange::scatter, others * slices * bytes.all, slices * bytes.units);
  }
  cost.gradient_bytes += sum;
  exchange(Exchange::all_reduce, 0, 2 / every);
  if (ranks == 1) cost.bytes_sent_per_step = cost.messages_per_step = 0;
  cost.moment_bytes = moments_of(job.config) * bytes.all / ranks;
  for (const BlockDescription& block : description.blocks)
    cost.buffer_bytes += static_cast<double>(block.buffers) * static_cast<double>(description.element_bytes);
  cost.activation_bytes = activation_bytes(job.config, description, job.mesh.degree("data"));
  cost.work = whole_work(job.config, job.mesh.degree("data"));
  cost.work.updated = 1 / ranks;
  return std::vector<RankCost>(job.ranks.size(), cost);
}

}  // namespace convoy
