#include "strategies/parts/tensor/tensor_group_entry.h"

#include <algorithm>
#include <cmath>

#include "core/describe.h"
#include "strategies/parts/stages/stages.h"

namespace convoy {
namespace {

// What the first block with cut layers is given, per row: where whole sequences become shares, and their gradient is
// gathered.
double entered_bytes(const Description& description) {
  for (size_t i = 1; i < description.blocks.size(); ++i) {
    if (description.blocks[i].row_cut_input_bytes > 0)
      return static_cast<double>(description.blocks[i - 1].row_output_bytes);
  }
  return 0;
}

// What the last block hands on where it works on shares, per row: they are gathered, and their gradient is cut.
double left_bytes(const Description& description) {
  if (description.blocks.empty()) return 0;
  const BlockDescription& last = description.blocks.back();
  const bool ends_cut = last.row_cut_output_bytes == 0;
  return last.row_cut_input_bytes > 0 && !ends_cut ? static_cast<double>(last.row_output_bytes) : 0;
}

}  // namespace

std::vector<Option> tensor_options() {
  return {
      describe::boolean("sequence_parallel",
                        "norms, dropout and residuals between cut layers work on shares of the sequences: less memory "
                        "for activations, a quarter more to send",
                        false)};
}

namespace {

// Attention's model works on sequences, whose length a data set of them tells as an option.
void check_sequences(const RunConfig& config, int degree) {
  const Options& data = config.data.options;
  if (degree == 1 || !config.strategy.options.boolean("sequence_parallel")) return;
  if (!data.has("length") || !data.at("length").is_number_integer()) return;
  const int64_t length = data.integer("length");
  if (length % degree != 0)
    data.fail("length",
              str("is ", length, ", which ", degree, " ranks of the axis tensor do not divide; take a multiple of ",
                  degree, ", or strategy.sequence_parallel: false"));
}

}  // namespace

void check_tensor_degree(const RunConfig& config, int degree) {
  const Options& model = config.model.options;
  if (!model.has("heads") || !model.at("heads").is_number_integer()) return;
  const int64_t heads = model.integer("heads");
  if (heads % degree != 0)
    model.fail("heads",
               str("is ", heads, ", which ", degree, " ranks of the axis tensor do not divide; take a multiple of ",
                   degree, ", or a degree that divides ", heads));
  check_sequences(config, degree);
}

namespace {

// The one option of the model that is `size`, or has it in a list; "" where there is none, or there are several.
std::string key_of_size(const Json& config, int64_t size) {
  std::vector<std::string> keys;
  if (!config.is_object() || !config.contains("model")) return "";
  for (const auto& [key, value] : config.at("model").items()) {
    if (value == size) keys.push_back("model." + key);
    for (size_t i = 0; value.is_array() && i < value.size(); ++i)
      if (value[i] == size) keys.push_back(str("model.", key, ".", i));
  }
  return keys.size() == 1 ? keys.front() : "";
}

}  // namespace

void check_cuts(const Job& job, const Description& description) {
  const int degree = job.mesh.degree("tensor");
  for (const BlockDescription& block : description.blocks)
    for (const TieClash& clash : block.clashes)
      if (degree > 1)
        throw ConfigError(
            Mark{}, "model",
            str(clash.layer, " asks for a share of its inputs and is tied to ", clash.tensor, ", which ", degree,
                " ranks of the axis tensor cut by its outputs; leave the layer's cut "
                "out, or do not tie it"));
  for (const BlockDescription& block : description.blocks)
    for (const CutSize& cut : block.cuts) {
      if (cut.parts > 0 && cut.size % cut.parts == 0 && cut.size / cut.parts % degree == 0) continue;
      const std::string key = key_of_size(job.config, cut.size);
      throw ConfigError(Mark{}, key.empty() ? "model" : key,
                        str(cut.layer, " has ", cut.size, cut.outputs ? " outputs" : " inputs",
                            cut.parts > 1 ? str(" in ", cut.parts, " parts") : "", ", which ", degree,
                            " ranks of the axis tensor do not divide; take another size, or a degree that divides it"));
    }
}

std::vector<std::string> tensor_notes(const Job& job, const Description& description, const std::string& key) {
  const int degree = job.mesh.degree("tensor");
  if (degree == 1) return {};
  bool cut = false, rows_cut = false;
  for (const BlockDescription& block : description.blocks) {
    cut = cut || block.cut_parameters > 0;
    for (const CutSize& one : block.cuts) rows_cut = rows_cut || !one.outputs;
  }
  const std::string model = job.config.value("model", Json::object()).value("name", "");
  const std::string subject = model.empty() ? "the model" : str("the model ", model);
  std::vector<std::string> notes;
  if (!cut)
    notes.push_back(
        str(key, ": ", subject, " has nothing that ", degree,
            " ranks could share out, no linear layer with a cut and no embedding, so that all of them do the same "
            "work; take strategy ddp"));
  if (!rows_cut && Options(job.config.at("strategy")).boolean("sequence_parallel"))
    notes.push_back(str("strategy.sequence_parallel: has no effect: ", subject,
                        " has no region between column- and row-cut layers; leave it out"));
  return notes;
}

RankCost tensor_group_cost(const Job& job, const Description& description) {
  const Options options(job.config.at("strategy"));
  const double tensor = job.mesh.degree("tensor");
  const auto element = static_cast<double>(description.element_bytes);
  const bool sequence = options.boolean("sequence_parallel");
  const double rows = rows_per_rank(job.config, job.mesh.degree("data"));
  RankCost cost;
  double inputs = 0, outputs = 0, exchanges = 0;
  double again_inputs = 0, again_outputs = 0;  // of blocks whose forward is run, and summed, once more
  for (const BlockDescription& block : description.blocks) {
    const auto cut = static_cast<double>(block.cut_parameters);
    cost.parameter_bytes += (static_cast<double>(block.parameters) - cut + cut / tensor) * element;
    cost.buffer_bytes += static_cast<double>(block.buffers) * element;
    inputs += static_cast<double>(block.row_cut_input_bytes);
    outputs += static_cast<double>(block.row_cut_output_bytes);
    exchanges += static_cast<double>(block.cut_exchanges);
    if (!recomputed(job.config.at("strategy"), block.name)) continue;
    again_inputs += static_cast<double>(block.row_cut_input_bytes);
    // A sum that becomes shares is half of one that stays whole, as an embedding's does.
    const bool whole = !sequence || block.row_cut_input_bytes == 0;
    again_outputs += (whole ? 2 : 1) * static_cast<double>(block.row_cut_output_bytes);
    exchanges += static_cast<double>(block.cut_exchanges) / 2;  // those of the forward
  }
  cost.gradient_bytes = cost.parameter_bytes;
  cost.moment_bytes = cost.parameter_bytes * moments_of(job.config);
  cost.activation_bytes = activation_bytes(job.config, cut_description(job, description), job.mesh.degree("data"));
  const double share = (tensor - 1) / tensor;
  cost.bytes_sent_per_step =
      rows * share *
          (sequence ? 3 * inputs + 2 * outputs + entered_bytes(description) + left_bytes(description) + again_inputs
                    : 2 * inputs + 2 * outputs) +
      rows * share * again_outputs;
  if (tensor > 1) cost.messages_per_step = exchanges * static_cast<double>(options.integer("micro_batches"));
  // Whole sequences are summed; shares of them are gathered and scattered, about as much of each.
  if (sequence) {
    const double half = cost.bytes_sent_per_step / 2;
    cost.axes = {{"tensor", half, cost.messages_per_step / 2, Exchange::gather},
                 {"tensor", half, cost.messages_per_step / 2, Exchange::scatter}};
  } else {
    cost.axes = {{"tensor", cost.bytes_sent_per_step, cost.messages_per_step}};
  }
  cost.work = whole_work(job.config, job.mesh.degree("data"));
  cost.work.own *=
      stage_times(description, {{0, static_cast<int64_t>(description.blocks.size())}}, job.mesh.degree("tensor"))
          .front();
  cost.work.span = cost.work.own;
  cost.work.cut = tensor > 1;
  double elements = 0;
  for (const BlockDescription& block : description.blocks) elements += static_cast<double>(block.parameters);
  cost.work.updated = elements > 0 ? cost.parameter_bytes / element / elements : 1;
  return cost;
}

Description cut_description(const Job& job, const Description& description) {
  const int tensor = job.mesh.degree("tensor");
  const bool sequence = tensor > 1 && Options(job.config.at("strategy")).boolean("sequence_parallel");
  Description cut = description;
  for (size_t i = 0; i < cut.blocks.size(); ++i) {
    BlockDescription& block = cut.blocks[i];
    // An embedding is cut by its rows; anything else that is tied is whole.
    for (TiedTensor& tie : block.ties)
      if (tie.elements <= description.blocks[static_cast<size_t>(tie.block)].cut_parameters) tie.elements /= tensor;
    block.parameters += block.cut_parameters / tensor - block.cut_parameters;
    // Weights that autocast has narrowed are cut as they are, the ones that it is tied to as well.
    double weights = static_cast<double>(description.blocks[i].parameters),
           cuts = static_cast<double>(description.blocks[i].cut_parameters);
    for (const TiedTensor& tie : description.blocks[i].ties) {
      weights += static_cast<double>(tie.elements);
      if (tie.elements <= description.blocks[static_cast<size_t>(tie.block)].cut_parameters)
        cuts += static_cast<double>(tie.elements);
    }
    if (weights > 0)
      block.saved_bytes -=
          std::llround(static_cast<double>(block.saved_bytes) * cuts / weights * (tensor - 1) / tensor);
    // What backward works with is cut as what is kept for it, gradients as their parameters.
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
    // Where a block ends cut its backward begins with the whole input of that layer, gathered and put in order, and with its
    // gradient in the order of ranks beside the share of its sum; elsewhere most of what was kept has gone by then.
    if (shares && block.row_cut_output_bytes == 0)
      block.row_working_bytes += 3 * block.row_cut_input_bytes + block.row_cut_input_bytes / tensor;
  }
  return cut;
}

void add_bucket_messages(int data, const BucketSizes& buckets, int64_t every, bool overlap, RankCost& cost) {
  if (data == 1) return;
  const double ranks = data;
  const double rest = std::max(0.0, cost.gradient_bytes - buckets.first_bytes);
  const double messages = 1 + std::ceil(rest / buckets.other_bytes);
  const double beside = overlap ? (messages - 1) / messages : 0;
  const AxisCost axis{"data", 2 * (ranks - 1) / ranks * cost.gradient_bytes / static_cast<double>(every),
                      messages / static_cast<double>(every), Exchange::all_reduce, beside};
  cost.bytes_sent_per_step += axis.bytes;
  cost.messages_per_step += axis.messages;
  cost.axes.push_back(axis);
}

std::vector<RankCost> tensor_costs(const Job& job, const Description& description, const BucketSizes& buckets,
                                   int64_t every) {
  RankCost cost = tensor_group_cost(job, description);
  add_bucket_messages(job.mesh.degree("data"), buckets, every, job.config.at("strategy").value("overlap", false), cost);
  return std::vector<RankCost>(job.ranks.size(), cost);
}

}  // namespace convoy
