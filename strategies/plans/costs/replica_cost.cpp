#include "strategies/plans/costs/replica_cost.h"

#include <algorithm>
#include <cmath>

#include "core/base/json.h"
#include "strategies/plans/costs/sparse_cost.h"
#include "strategies/plans/options/replicated.h"

namespace convoy {

int moments_of(const Json& config) {
  const Json& optimizer = config.at("optimizer");
  const auto momentum = optimizer.find("momentum");
  if (momentum == optimizer.end()) return optimizer.value("name", "adam") == "adagrad" ? 1 : 2;  // 2: Adam family
  return momentum->is_number() && momentum->get<double>() > 0 ? 1 : 0;
}

double rows_per_rank(const Json& config, int ranks) {
  const Json& batch = config.at("train").at("batch");
  const auto per_rank = batch.find("per_rank");
  if (per_rank != batch.end() && per_rank->is_number()) return per_rank->get<double>();
  const auto global = batch.find("global");
  return global != batch.end() && global->is_number() ? std::ceil(global->get<double>() / ranks) : 0;
}

KeptBytes kept_bytes(const Json& strategy, const ModelDescription& description, int64_t begin, int64_t end,
                     double rows) {
  KeptBytes bytes;
  // Blocks run backward from the last one. When a block's backward begins, later blocks have freed their activations.
  for (int64_t index = end - 1; index >= begin; --index) {
    const BlockDescription& block = description.blocks[size_t(index)];
    const double input = index == 0 ? 0 : double(description.blocks[size_t(index - 1)].row_output_bytes);
    const double saved = rows * double(block.row_saved_bytes) + double(block.saved_bytes);
    const double works = rows * double(block.row_working_bytes) + double(block.working_bytes);
    const bool again = recomputed(strategy, block.name);
    bytes.largest = std::max(bytes.largest, works + (again ? saved : 0) - bytes.kept);
    bytes.kept += again ? rows * input : saved;
  }
  return bytes;
}

double rows_of_slice(double rows, int slice, int slices) {
  const double each = std::floor(rows / slices);
  return each + (slice < rows - each * slices ? 1 : 0);
}

double activation_bytes(const Json& config, const ModelDescription& description, int ranks) {
  const Json& strategy = config.at("strategy");
  const auto slices = double(strategy.value("micro_batches", 1));
  const KeptBytes bytes = kept_bytes(strategy, description, 0, int64_t(description.blocks.size()),
                                     std::ceil(rows_per_rank(config, ranks) / slices));
  return bytes.kept + bytes.largest;
}

RankWork whole_work(const Json& config, int degree) {
  const Json& strategy = config.at("strategy");
  RankWork work;
  work.passes = strategy.value("micro_batches", 1.0);
  work.rows = std::ceil(rows_per_rank(config, degree) / work.passes);
  work.span = work.busy = work.passes;
  work.updates = 1 / double(sync_policy(strategy).every);
  return work;
}

double during_backward(const Json& config, double messages) {
  // The last message cannot overlap: its bucket is complete when backward ends.
  return config.at("strategy").value("overlap", false) && messages > 1 ? (messages - 1) / messages : 0;
}

double parameters_of(const ModelDescription& description) {
  double elements = 0;
  for (const BlockDescription& block : description.blocks) elements += double(block.parameters);
  return elements;
}

double replicated_bytes(const ModelDescription& description) {
  return parameters_of(description) * double(description.element_bytes);
}

double buffer_bytes(const ModelDescription& description) {
  double elements = 0;
  for (const BlockDescription& block : description.blocks) elements += double(block.buffers);
  return elements * double(description.element_bytes);
}

namespace {

// Adds one all-gather of a count and two numbers per channel in forward (twice with activation checkpointing), and one
// all-reduce of two numbers per channel in backward. Numbers are doubles in every precision.
void add_batch_norms(const Json& strategy, const ModelDescription& description, int ranks, RankCost& cost) {
  if (strategy.value("batch_norm", "local") != "sync") return;
  constexpr double number = 8;
  double layers = 0, gathers = 0, gathered = 0, summed = 0;
  for (const BlockDescription& block : description.blocks) {
    const auto norms = double(block.norms), channels = double(block.norm_channels);
    const double forwards = recomputed(strategy, block.name) ? 2 : 1;
    layers += norms;
    gathers += forwards * norms;
    gathered += forwards * (2 * channels + norms) * number;
    summed += 2 * channels * number;
  }
  if (layers == 0) return;
  const double slices = strategy.value("micro_batches", 1.0), others = ranks - 1;
  cost.add({"data", slices * others * gathered, slices * gathers, Exchange::gather});
  cost.add({"data", slices * 2 * others / ranks * summed, slices * layers});
}

// Adds one all-reduce of all gradients per update, in buckets.
void add_buckets(const Json& config, int ranks, RankCost& cost) {
  const BucketSizes sizes = bucket_sizes(Options(config.at("strategy")), cost.gradient_bytes);
  const double rest = std::max(0.0, cost.gradient_bytes - sizes.first_bytes),
               messages = 1 + std::ceil(rest / sizes.other_bytes);
  const double updates = whole_work(config, ranks).updates;
  cost.add({"data", 2.0 * (ranks - 1) / ranks * cost.gradient_bytes * updates, messages * updates, Exchange::all_reduce,
            during_backward(config, messages)});
}

}  // namespace

void add_buffer_exchanges(const Json& config, const ModelDescription& description, int ranks, int data_rank,
                          RankCost& cost) {
  if (ranks == 1) return;
  const Json& strategy = config.at("strategy");
  add_batch_norms(strategy, description, ranks, cost);
  const std::string how = strategy.value("buffers", "local");
  const double bytes = buffer_bytes(description), others = ranks - 1;
  if (how == "local" || bytes == 0) return;
  const double updates = whole_work(config, ranks).updates;
  if (how == "mean")
    cost.add({"data", 2 * others / ranks * bytes * updates, updates});
  else
    cost.add({"data", data_rank == 0 ? others * bytes * updates : 0, updates, Exchange::gather});
}

std::vector<RankCost> replica_costs(const JobPlan& job, const ModelDescription& description, bool sparse_embeddings) {
  const auto ranks = int(job.ranks.size());
  std::vector<TouchedTable> tables;
  if (sparse_embeddings) tables = touched_tables(job.config, description, ranks);
  const ModelDescription dense = without(description, tables);
  RankCost cost;
  cost.parameter_bytes = cost.gradient_bytes = replicated_bytes(dense);
  cost.buffer_bytes = buffer_bytes(description);
  cost.moment_bytes = cost.parameter_bytes * moments_of(job.config);
  cost.activation_bytes = activation_bytes(job.config, description, ranks);
  cost.work = whole_work(job.config, ranks);
  double with_rows = 0;
  if (!sync_policy(job.config.at("strategy")).plain()) {
    add_sync_cost(job.config, dense, ranks, cost);
  } else if (ranks > 1) {
    if (!tables.empty() && cost.gradient_bytes <= most_dense_with_rows)
      with_rows = cost.gradient_bytes;
    else
      add_buckets(job.config, ranks, cost);
  }
  add_row_cost(job.config, tables, row_ranks(job), with_rows, cost);
  std::vector<RankCost> costs(job.ranks.size(), cost);
  for (size_t rank = 0; rank < costs.size(); ++rank)
    add_buffer_exchanges(job.config, description, ranks, int(rank), costs[rank]);
  return costs;
}

}  // namespace convoy
