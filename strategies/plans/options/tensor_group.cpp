#include "strategies/plans/options/tensor_group.h"

#include <algorithm>
#include <cmath>

#include "core/base/describe.h"
#include "core/base/json.h"
#include "strategies/plans/costs/replica_cost.h"
#include "strategies/plans/stages.h"

namespace convoy {
namespace {

// Input bytes per row of the first block with sharded layers: there sequence shards begin, and their gradient is
// gathered.
double entered_bytes(const ModelDescription& description) {
  for (size_t i = 1; i < description.blocks.size(); ++i) {
    if (description.blocks[i].row_cut_input_bytes > 0) return double(description.blocks[i - 1].row_output_bytes);
  }
  return 0;
}

// Output bytes per row of the last block if it works on sequence shards: they are gathered, and their gradient is
// sharded.
double left_bytes(const ModelDescription& description) {
  if (description.blocks.empty()) return 0;
  const BlockDescription& last = description.blocks.back();
  const bool ends_cut = last.row_cut_output_bytes == 0;
  return last.row_cut_input_bytes > 0 && !ends_cut ? double(last.row_output_bytes) : 0;
}

}  // namespace

std::vector<Option> tensor_options() {
  return {describe::boolean(
      "sequence_parallel",
      "sequence parallelism: norms, dropout and residuals between sharded layers work on shards of the "
      "sequences; needs less memory for activations and sends a quarter more",
      TensorGroupOptions().sequence_parallel)};
}

TensorGroupOptions tensor_group_options(const Options& strategy) {
  return {strategy.has("sequence_parallel") && strategy.boolean("sequence_parallel")};
}

namespace {

// Checks the option `length` of a data set of sequences.
void check_sequences(const RunConfig& config, int degree) {
  const Options& data = config.data.options;
  if (degree == 1 || !tensor_group_options(config.strategy.options).sequence_parallel) return;
  if (!data.has("length") || !data.at("length").is_number_integer()) return;
  const int64_t length = data.integer("length");
  if (length % degree != 0)
    data.fail("length", "is ", length, ", which ", degree,
              " ranks of the axis tensor do not divide; take a multiple of ", degree,
              ", or strategy.sequence_parallel: false");
}

}  // namespace

void check_tensor_degree(const RunConfig& config, int degree) {
  const Options& model = config.model.options;
  if (!model.has("heads") || !model.at("heads").is_number_integer()) return;
  for (const char* key : {"heads", "kv_heads"}) {
    if (!model.has(key) || !model.at(key).is_number_integer()) continue;
    const int64_t heads = model.integer(key);
    if (heads % degree != 0)
      model.fail(key, "is ", heads, ", which ", degree, " ranks of the axis tensor do not divide; take a multiple of ",
                 degree, ", or a degree that divides ", heads);
  }
  check_sequences(config, degree);
}

namespace {

// The only option of the model that is `size`, or has it in a list; "" if there is none or several.
std::string key_of_size(const Options& model, int64_t size) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : model.json().items()) {
    if (value == size) keys.push_back("model." + key);
    for (size_t i = 0; value.is_array() && i < value.size(); ++i)
      if (value[i] == size) keys.push_back(str("model.", key, ".", i));
  }
  return keys.size() == 1 ? keys.front() : "";
}

}  // namespace

std::string flat_sequences_text(const std::string& block, const std::string& shape, int64_t length, int64_t ranks) {
  return str("block ", block, " returns ", shape, " for sequences of ", length, " positions, with a local shard of ",
             length / ranks,
             "; between blocks only [rows, positions, features] can be sharded: return that shape from ", block,
             ", or set sequence_parallel: false");
}

void check_shards(const JobPlan& job, const ModelDescription& description) {
  const int degree = job.mesh.degree("tensor");
  const bool sequence = degree > 1 && tensor_group_options(job.config.strategy.options).sequence_parallel;
  for (const BlockDescription& block : description.blocks)
    if (sequence && !block.flat_sequences.empty()) {
      const int64_t length = block.flat_sequences.front();
      std::vector<std::string> shape{"rows"};
      for (size_t i = 1; i < block.flat_sequences.size(); ++i) {
        const int64_t size = block.flat_sequences[i];
        shape.push_back(str(size == length ? length / degree : size));
      }
      throw ConfigError(SourceLocation{}, "strategy.sequence_parallel",
                        flat_sequences_text(block.name, "[" + join(shape, ", ") + "]", length, degree));
    }
  for (const BlockDescription& block : description.blocks)
    for (const TieConflict& conflict : block.tie_conflicts)
      if (degree > 1)
        throw ConfigError(SourceLocation{}, "model", conflict.layer, " is sharded by its inputs and tied to ",
                          conflict.tensor, ", which is sharded by its outputs, on ", degree,
                          " ranks of the axis tensor; remove the layer's cut, or do not tie it");
  for (const BlockDescription& block : description.blocks)
    for (const ShardSize& cut : block.cuts) {
      if (cut.parts > 0 && cut.size % cut.parts == 0 && cut.size / cut.parts % degree == 0) continue;
      const std::string key = key_of_size(job.config.model.options, cut.size);
      throw ConfigError(SourceLocation{}, key.empty() ? "model" : key, cut.layer, " has ", cut.size,
                        cut.outputs ? " outputs" : " inputs", cut.parts > 1 ? str(" in ", cut.parts, " parts") : "",
                        ", which ", degree,
                        " ranks of the axis tensor do not divide; take another size, or a degree that divides it");
    }
}

std::vector<std::string> tensor_notes(const JobPlan& job, const ModelDescription& description, const std::string& key) {
  const int degree = job.mesh.degree("tensor");
  if (degree == 1) return {};
  bool cut = false, rows_cut = false;
  for (const BlockDescription& block : description.blocks) {
    cut = cut || block.cut_parameters > 0;
    for (const ShardSize& one : block.cuts) rows_cut = rows_cut || !one.outputs;
  }
  const std::string& model = job.config.model.name;
  const std::string subject = model.empty() ? "the model" : str("the model ", model);
  std::vector<std::string> notes;
  if (!cut)
    notes.push_back(
        str(key, ": ", subject, " has nothing that ", degree,
            " ranks could shard, no linear layer with a cut and no embedding, so that all of them do the same "
            "work; take strategy ddp"));
  if (!rows_cut && tensor_group_options(job.config.strategy.options).sequence_parallel)
    notes.push_back(str("strategy.sequence_parallel: has no effect: ", subject,
                        " has no region between column- and row-parallel layers; leave it out"));
  return notes;
}

RankCost tensor_group_cost(const JobPlan& job, const ModelDescription& description) {
  const Options& options = job.config.strategy.options;
  const StepOptions step = step_options(options);
  const double tensor = job.mesh.degree("tensor");
  const auto element = double(description.element_bytes);
  const bool sequence = tensor_group_options(options).sequence_parallel;
  const double rows = rows_per_rank(job.config, job.mesh.degree("data"));
  RankCost cost;
  double inputs = 0, outputs = 0, exchanges = 0;
  double again_inputs = 0, again_outputs = 0;  // bytes of checkpointed blocks, whose forward runs and is summed twice
  for (const BlockDescription& block : description.blocks) {
    const auto cut = double(block.cut_parameters);
    cost.parameter_bytes += (double(block.parameters) - cut + cut / tensor) * element;
    cost.buffer_bytes += double(block.buffers) * element;
    inputs += double(block.row_cut_input_bytes);
    outputs += double(block.row_cut_output_bytes);
    exchanges += double(block.cut_exchanges);
    if (!step.recompute.includes(block.name)) continue;
    again_inputs += double(block.row_cut_input_bytes);
    // A reduce-scatter sends half of an all-reduce, as for an embedding.
    const bool whole = !sequence || block.row_cut_input_bytes == 0;
    again_outputs += (whole ? 2 : 1) * double(block.row_cut_output_bytes);
    exchanges += double(block.cut_exchanges) / 2;  // those of the forward
  }
  cost.gradient_bytes = cost.parameter_bytes;
  cost.moment_bytes = cost.parameter_bytes * moments_of(job.config);
  cost.owned_bytes = cost.parameter_bytes + cost.moment_bytes + cost.buffer_bytes;
  cost.activation_bytes = activation_bytes(job.config, shard_description(job, description), job.mesh.degree("data"));
  const double share = (tensor - 1) / tensor;
  cost.bytes_sent_per_step =
      rows * share *
          (sequence ? 3 * inputs + 2 * outputs + entered_bytes(description) + left_bytes(description) + again_inputs
                    : 2 * inputs + 2 * outputs) +
      rows * share * again_outputs;
  if (tensor > 1) cost.messages_per_step = exchanges * double(step.micro_batches);
  // Whole sequences are all-reduced. Sequence shards are gathered and scattered with about equal bytes.
  if (sequence) {
    const double half = cost.bytes_sent_per_step / 2;
    cost.axes = {{"tensor", half, cost.messages_per_step / 2, Exchange::gather},
                 {"tensor", half, cost.messages_per_step / 2, Exchange::scatter}};
  } else {
    cost.axes = {{"tensor", cost.bytes_sent_per_step, cost.messages_per_step}};
  }
  cost.work = whole_work(job.config, job.mesh.degree("data"));
  cost.work.busy *=
      stage_times(description, {{0, int64_t(description.blocks.size())}}, job.mesh.degree("tensor")).front();
  cost.work.span = cost.work.busy;
  cost.work.cut = tensor > 1;
  const double elements = parameters_of(description);
  cost.work.updated = elements > 0 ? cost.parameter_bytes / element / elements : 1;
  return cost;
}

ModelDescription shard_description(const JobPlan& job, const ModelDescription& description) {
  const int tensor = job.mesh.degree("tensor");
  const bool sequence = tensor > 1 && tensor_group_options(job.config.strategy.options).sequence_parallel;
  ModelDescription cut = description;
  for (size_t i = 0; i < cut.blocks.size(); ++i) {
    BlockDescription& block = cut.blocks[i];
    // An embedding is sharded by its rows; other tied tensors are whole.
    for (TiedTensor& tie : block.ties)
      if (tie.elements <= description.blocks[size_t(tie.block)].cut_parameters) tie.elements /= tensor;
    block.parameters += block.cut_parameters / tensor - block.cut_parameters;
    // Sharded layers gather their weights in full precision (Parameter::products_only is not set).
    if (tensor > 1) block.product_parameters -= block.cut_product_parameters;
    // Half-precision copies of weights are sharded like the weights, also for tied ones.
    double weights = double(description.blocks[i].parameters), cuts = double(description.blocks[i].cut_parameters);
    for (const TiedTensor& tie : description.blocks[i].ties) {
      weights += double(tie.elements);
      if (tie.elements <= description.blocks[size_t(tie.block)].cut_parameters) cuts += double(tie.elements);
    }
    if (weights > 0)
      block.saved_bytes -= std::llround(double(block.saved_bytes) * cuts / weights * (tensor - 1) / tensor);
    // Working memory of backward is sharded like activations, gradients like their parameters.
    if (description.blocks[i].parameters > 0)
      block.working_bytes -=
          block.working_bytes * block.cut_parameters / description.blocks[i].parameters * (tensor - 1) / tensor;
    if (block.row_saved_bytes > 0)
      block.row_working_bytes -=
          block.row_working_bytes * block.row_cut_saved_bytes / block.row_saved_bytes * (tensor - 1) / tensor;
    // Other blocks get whole sequences.
    const bool shares = sequence && block.row_cut_input_bytes > 0;
    const int64_t between = block.row_saved_bytes - block.row_cut_saved_bytes;
    block.row_saved_bytes = block.row_cut_saved_bytes / tensor + (shares ? between / tensor : between);
    // If a block ends sharded, its backward begins with the whole input of its last layer, gathered and reordered. In
    // addition it has that input's gradient in the order of ranks, and the share of its sum. In other blocks most
    // activations are freed by then.
    if (shares && block.row_cut_output_bytes == 0)
      block.row_working_bytes += 3 * block.row_cut_input_bytes + block.row_cut_input_bytes / tensor;
  }
  return cut;
}

}  // namespace convoy
