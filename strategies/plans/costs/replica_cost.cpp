#include "strategies/plans/costs/replica_cost.h"

#include <algorithm>
#include <cmath>

#include "core/base/text.h"
#include "core/optim/catalogue/catalogue.h"

namespace convoy {

int moments_of(const RunConfig& config) { return optimizer_options(config.optimizer).moments; }

double rows_per_rank(const RunConfig& config, int ranks) {
  const BatchSize& batch = config.train.batch;
  return batch.per_rank ? double(batch.rows) : std::ceil(double(batch.rows) / ranks);
}

KeptBytes kept_bytes(const Recompute& recompute, const ModelDescription& description, int64_t begin, int64_t end,
                     double rows) {
  KeptBytes bytes;
  // Blocks run backward from the last one. When a block's backward begins, later blocks have freed their activations.
  for (int64_t index = end - 1; index >= begin; --index) {
    const BlockDescription& block = description.blocks[size_t(index)];
    const double input = index == 0 ? 0 : double(description.blocks[size_t(index - 1)].row_output_bytes);
    const double saved = rows * double(block.row_saved_bytes) + double(block.saved_bytes);
    const double works = rows * double(block.row_working_bytes) + double(block.working_bytes);
    const bool again = recompute.includes(block.name);
    bytes.largest = std::max(bytes.largest, works + (again ? saved : 0) - bytes.kept);
    bytes.kept += again ? rows * input : saved;
  }
  return bytes;
}

double rows_of_micro_batch(double rows, int micro_batch, int micro_batches) {
  const double each = std::floor(rows / micro_batches);
  return each + (micro_batch < rows - each * micro_batches ? 1 : 0);
}

double activation_bytes(const RunConfig& config, const ModelDescription& description, int ranks) {
  const StepOptions step = step_options(config.strategy.options);
  const KeptBytes bytes = kept_bytes(step.recompute, description, 0, int64_t(description.blocks.size()),
                                     std::ceil(rows_per_rank(config, ranks) / double(step.micro_batches)));
  return bytes.kept + bytes.largest;
}

RankWork whole_work(const RunConfig& config, int degree) {
  const StepOptions step = step_options(config.strategy.options);
  RankWork work;
  work.span = work.busy = work.passes = double(step.micro_batches);
  work.rows = std::ceil(rows_per_rank(config, degree) / work.passes);
  work.updates = 1 / double(step.sync.every);
  return work;
}

double during_backward(const StepOptions& step, double messages) {
  // The last message cannot overlap: its bucket is complete when backward ends.
  return step.overlap.value_or(true) && messages > 1 ? (messages - 1) / messages : 0;
}

namespace {

// Returns the bytes of each bucket except the first, for `gradient_bytes` of gradients.
double bucket_bytes(const StepOptions& step, double gradient_bytes) {
  return step.cap_bytes > 0 ? step.cap_bytes : bucket_cap(gradient_bytes);
}

}  // namespace

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

// Adds the messages of synchronised batch norm. Forward sends one all-gather of a count and two numbers per channel,
// twice with activation checkpointing. Backward sends one all-reduce of two numbers per channel. Numbers are doubles in
// every precision.
void add_batch_norms(const StepOptions& step, const ModelDescription& description, int ranks, RankCost& cost) {
  if (!step.synchronises_norms) return;
  constexpr double number = 8;
  double layers = 0, gathers = 0, gathered = 0, summed = 0;
  for (const BlockDescription& block : description.blocks) {
    const auto norms = double(block.norms), channels = double(block.norm_channels);
    const double forwards = step.recompute.includes(block.name) ? 2 : 1;
    layers += norms;
    gathers += forwards * norms;
    gathered += forwards * (2 * channels + norms) * number;
    summed += 2 * channels * number;
  }
  if (layers == 0) return;
  const double micro_batches = double(step.micro_batches), others = ranks - 1;
  cost.add({"data", micro_batches * others * gathered, micro_batches * gathers, Exchange::gather});
  cost.add({"data", micro_batches * 2 * others / ranks * summed, micro_batches * layers});
}

}  // namespace

void add_buckets(const StepOptions& step, int ranks, RankCost& cost) {
  const double rest = std::max(0.0, cost.gradient_bytes - step.first_bytes),
               messages = 1 + std::ceil(rest / bucket_bytes(step, cost.gradient_bytes));
  const double updates = 1 / double(step.sync.every);
  cost.add({"data", 2.0 * (ranks - 1) / ranks * cost.gradient_bytes * updates, messages * updates, Exchange::all_reduce,
            during_backward(step, messages), !step.overlap});
}

void add_buffer_exchanges(const StepOptions& step, const ModelDescription& description, int ranks, int data_rank,
                          RankCost& cost) {
  if (ranks == 1) return;
  add_batch_norms(step, description, ranks, cost);
  const double bytes = buffer_bytes(description), others = ranks - 1;
  if (step.buffers == SharedBuffers::local || bytes == 0) return;
  const double updates = 1 / double(step.sync.every);
  if (step.buffers == SharedBuffers::mean)
    cost.add({"data", 2 * others / ranks * bytes * updates, updates});
  else
    cost.add({"data", data_rank == 0 ? others * bytes * updates : 0, updates, Exchange::gather});
}

namespace {

// Bytes of a save. `common`: of each tensor that one replica writes for all, in order. `each`: of the state that every
// replica writes for itself.
struct StateSizes {
  std::vector<double> common;
  double parameters = 0, each = 0;
};

StateSizes state_sizes(const RunConfig& config, const ModelDescription& dense, const std::vector<TouchedTable>& tables,
                       int replicas) {
  const bool sharded = replicas > 1 && wants_sharded_rows(config.model.options);
  const int moments = moments_of(config);
  StateSizes sizes;
  for (const BlockDescription& block : dense.blocks) {
    double named = 0;
    for (const auto& [name, elements] : block.named) named += double(elements);
    // `named` has the sizes of whole layers; a sharded layer is smaller.
    const double bytes = double(block.parameters * dense.element_bytes);
    for (const auto& [name, elements] : block.named) sizes.common.push_back(double(elements) / named * bytes);
    if (named == 0) sizes.common.push_back(bytes);
    sizes.parameters += bytes;
  }
  for (const TouchedTable& table : tables) {
    if (sharded) {
      sizes.each += (1 + moments) * table.bytes() / replicas;
    } else {
      sizes.common.push_back(table.bytes());
      sizes.parameters += table.bytes();
    }
  }
  const size_t tensors = sizes.common.size();
  for (size_t tensor = 0; tensor < tensors; ++tensor)
    sizes.common.insert(sizes.common.end(), size_t(moments), sizes.common[tensor]);
  return sizes;
}

// Adds the state that replicas need to synchronise by `policy`: values and moments that differ between them, the errors
// of compression, the outer step.
void add_sync_state(const SyncPolicy& policy, const ModelDescription& dense, int moments, StateSizes& sizes) {
  const std::vector<double> elements = sync_elements(policy, dense);
  for (size_t index = 0; index < policy.groups.size(); ++index) {
    const double bytes = elements[index] * double(dense.element_bytes);
    if (policy.groups[index].what != SyncKind::gradients)
      sizes.each += (1 + moments) * bytes;
    else if (policy.compress != Compression::none)
      sizes.each += bytes;
    if (policy.groups[index].what == SyncKind::diloco) sizes.common.insert(sizes.common.end(), 2, bytes);
  }
}

}  // namespace

std::vector<double> owned_bytes(const RunConfig& config, const ModelDescription& dense,
                                const std::vector<TouchedTable>& tables, int replicas) {
  StateSizes sizes = state_sizes(config, dense, tables, replicas);
  if (replicas > 1) add_sync_state(sync_policy(config.strategy.options), dense, moments_of(config), sizes);
  std::vector<double> bytes(size_t(replicas), sizes.each);
  bytes.front() += buffer_bytes(dense);
  StateOwners owners(replicas, sizes.parameters);
  for (const double size : sizes.common) bytes[size_t(owners.next(size))] += size;
  return bytes;
}

std::vector<RankCost> replica_costs(const JobPlan& job, const ModelDescription& description) {
  const auto ranks = int(job.ranks.size());
  const StepOptions step = step_options(job.config.strategy.options);
  std::vector<TouchedTable> tables;
  if (strategy_of(job.config).sparse_embeddings) tables = touched_tables(job.config, description, ranks);
  const ModelDescription dense = without(description, tables);
  RankCost cost;
  cost.parameter_bytes = cost.gradient_bytes = replicated_bytes(dense);
  cost.buffer_bytes = buffer_bytes(description);
  cost.moment_bytes = cost.parameter_bytes * moments_of(job.config);
  cost.activation_bytes = activation_bytes(job.config, description, ranks);
  cost.work = whole_work(job.config, ranks);
  double with_rows = 0;
  if (!step.sync.plain()) {
    add_sync_cost(job.config, dense, ranks, cost);
  } else if (ranks > 1) {
    if (!tables.empty() && cost.gradient_bytes <= most_dense_with_rows)
      with_rows = cost.gradient_bytes;
    else
      add_buckets(step, ranks, cost);
  }
  add_row_cost(job.config, tables, row_ranks(job), with_rows, cost);
  std::vector<RankCost> costs(job.ranks.size(), cost);
  const std::vector<double> owned = owned_bytes(job.config, dense, tables, ranks);
  for (size_t rank = 0; rank < costs.size(); ++rank) {
    add_buffer_exchanges(step, description, ranks, int(rank), costs[rank]);
    costs[rank].owned_bytes = owned[rank];
  }
  return costs;
}

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
    if (compressed) cost.extra = bytes + 2 * bytes * 2 / element;  // compression error; memory to send and receive
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
    const bool chooses = !step.overlap && !policy.ever_local();
    const double messages = one.messages * updates;
    const double sent = one.bytes * updates;
    if (!compressed) {
      cost.add({"data", sent, messages, Exchange::all_reduce, overlapped, chooses});
      continue;
    }
    cost.add({"data", sent / 2, messages / 2, Exchange::scatter, overlapped, chooses});
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
