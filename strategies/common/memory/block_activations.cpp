#include "strategies/common/memory/block_activations.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randperm.h>
#include <c10/core/Allocator.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/model.h"
#include "strategies/common/memory/fake_tensors.h"
#include "strategies/common/model/model_part.h"
#include "strategies/common/model/model_probes.h"
#include "strategies/common/step/gradient_collector.h"

namespace convoy {
namespace {

// Bytes on the CPU that this thread has allocated and not freed, and their peak.
class AllocatedBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, at::Device) override {
    allocated_ += size;
    peak_ = std::max(peak_, allocated_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t allocated() const { return allocated_; }
  int64_t peak() const { return peak_; }  // since `restart`
  void restart() { peak_ = allocated_; }

 private:
  int64_t allocated_ = 0;
  int64_t peak_ = 0;
};

// Bytes of tensors that require a gradient; the others belong to the batch.
int64_t bytes_of(const TensorList& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors)
    if (tensor.requires_grad()) bytes += int64_t(tensor.nbytes());
  return bytes;
}

// Exchanges and regions of the running block, recorded by its layers.
struct Exchanges {
  const AllocatedBytes& allocated;
  BlockDescription* block = nullptr;
  int64_t region = -1;   // allocated bytes at the start of a column-parallel layer; -1: no open region
  bool sharded = false;  // a layer of the block opens or closes a region

  void opened(const at::Tensor& input) {
    if (block == nullptr) return;
    if (input.requires_grad()) {
      block->row_cut_input_bytes += int64_t(input.nbytes());
      ++block->cut_exchanges;
    }
  }
  std::map<std::string, std::vector<at::Tensor>>* lookups = nullptr;  // ids by table; null: not recorded
  void looked_up(const std::string& table, const at::Tensor& ids) {
    if (lookups != nullptr) (*lookups)[table].push_back(ids.reshape({-1}));
  }
  void summed(const at::Tensor& output) {
    if (block == nullptr) return;
    block->row_cut_output_bytes += int64_t(output.nbytes());
    ++block->cut_exchanges;
  }
};

struct Measured {
  int64_t begin = 0, end = 0;  // allocated bytes before and after the forward
  int64_t inputs = 0, outputs = 0;
  int64_t peak = 0;  // peak of allocated bytes during its backward
};

// Measures the peak of each block's backward.
class BackwardPeaks : public BlockHooks {
 public:
  BackwardPeaks(AllocatedBytes& allocated, std::vector<Measured>& measured)
      : allocated_(allocated), measured_(measured) {}
  void before_forward(int64_t) override {}
  void after_forward(int64_t) override {}
  void begin_backward() override {
    under_way_ = int64_t(measured_.size()) - 1;
    allocated_.restart();
  }
  void backward_at(int64_t boundary) override {
    for (; under_way_ >= boundary; --under_way_) {
      measured_[size_t(under_way_)].peak = allocated_.peak();
      allocated_.restart();
    }
  }
  void end_backward() override { backward_at(0); }

 private:
  AllocatedBytes& allocated_;
  std::vector<Measured>& measured_;
  int64_t under_way_ = -1;
};

bool is_sequence(const at::Tensor& value) { return value.defined() && value.dim() == 3 && value.is_floating_point(); }

// Describes the first output with a gradient that is neither a sequence [rows, positions, features] of the inputs'
// length nor an input: the length, then the output's dimensions after the rows. Empty: none. Outputs without gradient,
// such as masks, do not count.
std::vector<int64_t> flat_sequences(const TensorList& inputs, const TensorList& outputs) {
  const auto sequence = std::find_if(inputs.begin(), inputs.end(), is_sequence);
  if (sequence == inputs.end()) return {};
  const int64_t length = sequence->size(1);
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    if (is_sequence(output) && output.size(1) == length) continue;
    const auto same = [&](const at::Tensor& input) { return input.defined() && input.is_same(output); };
    if (std::any_of(inputs.begin(), inputs.end(), same)) continue;
    std::vector<int64_t> found{length};
    for (int64_t dim = 1; dim < output.dim(); ++dim) found.push_back(output.size(dim));
    return found;
  }
  return {};
}

class MeasuredBlock : public Block {
 public:
  MeasuredBlock(BlockPtr inner, Exchanges& exchanges, Measured& into, BlockDescription& described)
      : exchanges_(exchanges), into_(into), described_(described) {
    inner_ = register_module("inner", std::move(inner));
  }
  TensorList forward(const TensorList& inputs) override {
    exchanges_.block = &described_;
    exchanges_.region = -1;
    exchanges_.sharded = false;
    into_.begin = exchanges_.allocated.allocated();
    TensorList outputs = inner_->forward(inputs);
    into_.end = exchanges_.allocated.allocated();
    exchanges_.block = nullptr;
    into_.inputs = bytes_of(inputs);
    into_.outputs = bytes_of(outputs);
    if (exchanges_.sharded) described_.flat_sequences = flat_sequences(inputs, outputs);
    return outputs;
  }

 private:
  BlockPtr inner_;
  Exchanges& exchanges_;
  Measured& into_;
  BlockDescription& described_;
};

// The model with hooks around its blocks.
class MeasuredModel : public WrappedModel {
 public:
  MeasuredModel(ModelPtr inner, Exchanges& exchanges, ModelDescription& description)
      : WrappedModel(std::move(inner)), exchanges_(exchanges), description_(description), measured_(size_t(blocks())) {}
  std::vector<Measured>& measured() const { return measured_; }

  BlockPtr block(int64_t index, Layers& layers) const override {
    const auto i = size_t(index);
    return std::make_shared<MeasuredBlock>(wrapped().block(index, layers), exchanges_, measured_[i],
                                           description_.blocks[i]);
  }

 private:
  Exchanges& exchanges_;
  ModelDescription& description_;
  mutable std::vector<Measured> measured_;
};

// A layer that a tensor group would shard.
struct WatchedLayer : LayerModule {
  WatchedLayer(Layer inner, LinearOptions::Cut cut, bool gather, std::shared_ptr<Exchanges> exchanges,
               std::string table = "")
      : inner_(register_module("inner", std::move(inner))),
        cut_(cut),
        gather_(gather),
        exchanges_(std::move(exchanges)),
        table_(std::move(table)) {}

  at::Tensor forward(const at::Tensor& input) override { return watched(input, false); }
  at::Tensor forward_relu(const at::Tensor& input) override { return watched(input, true); }

 private:
  at::Tensor watched(const at::Tensor& input, bool relu) {
    const bool column = cut_ == LinearOptions::Cut::column;
    Exchanges& all = *exchanges_;
    all.sharded = all.sharded || cut_ == LinearOptions::Cut::row || (column && !gather_);
    if (column) {
      all.opened(input);
      if (all.region < 0 && !gather_) all.region = all.allocated.allocated();
    } else if (cut_ == LinearOptions::Cut::row && all.region >= 0) {
      if (all.block != nullptr) all.block->row_cut_saved_bytes += all.allocated.allocated() - all.region;
      all.region = -1;
    }
    at::Tensor output = relu ? inner_->forward_relu(input) : inner_->forward(input);
    if (!column) all.summed(output);
    if (!table_.empty()) all.looked_up(table_, input);
    return output;
  }

  Layer inner_;
  LinearOptions::Cut cut_;
  bool gather_;
  std::shared_ptr<Exchanges> exchanges_;
  std::string table_;  // name of an embedding's table
};

class WatchedLayers : public DefaultLayers {
 public:
  WatchedLayers(std::shared_ptr<LayerStore> store, std::shared_ptr<Exchanges> exchanges, const std::string& prefix = "")
      : DefaultLayers(std::move(store), prefix), exchanges_(std::move(exchanges)) {}

  std::shared_ptr<Layers> scope(const std::string& name) override {
    return std::make_shared<WatchedLayers>(store_, exchanges_, DefaultLayers::name(name) + ".");
  }
  Layer linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options) override {
    Layer inner = DefaultLayers::linear(name, in, out, options);
    // The outputs of a tied layer are the embedding's rows. So it is sharded like a column-parallel layer.
    const auto cut = options.tied_to.empty() ? options.cut : LinearOptions::Cut::column;
    if (cut == LinearOptions::Cut::none) return inner;
    return std::make_shared<WatchedLayer>(std::move(inner), cut, options.gather, exchanges_);
  }
  Layer embedding(const std::string& name, int64_t rows, int64_t dim, const EmbeddingOptions& options) override {
    EmbeddingOptions dense = options;  // a step keeps the same activations
    dense.rows = EmbeddingOptions::Rows::dense;
    return std::make_shared<WatchedLayer>(DefaultLayers::embedding(name, rows, dim, dense), LinearOptions::Cut::none,
                                          false, exchanges_, DefaultLayers::name(name) + ".weight");
  }

 private:
  std::shared_ptr<Exchanges> exchanges_;
};

// Sets fake values: parameters of Layers have no memory, so initial values are not computed.
void give_fake_values(const std::vector<ParameterPtr>& parameters) {
  at::NoGradGuard no_grad;
  for (const ParameterPtr& parameter : parameters)
    if (parameter->initial)
      parameter->value.set_data(at::empty(parameter->value.sizes(), parameter->value.options().requires_grad(false)));
}

// Runs one step of `batch` as strategies do, with gradients in existing memory.
std::vector<Measured> measured_step(const RunConfig& config, const ModelPtr& model, const LossPtr& loss,
                                    const Batch& batch, ModelDescription& description, MeasuredTensors tensors,
                                    std::map<std::string, std::vector<at::Tensor>>* lookups = nullptr) {
  std::optional<FakeTensors> fake;
  if (tensors == MeasuredTensors::fake) fake.emplace();
  const auto allocated = std::make_shared<AllocatedBytes>();
  const c10::DebugInfoGuard reporting(c10::DebugInfoKind::PROFILER_STATE, allocated);
  const auto exchanges = std::make_shared<Exchanges>(Exchanges{*allocated});
  exchanges->lookups = lookups;
  const auto watched = std::make_shared<MeasuredModel>(model, *exchanges, description);
  Context context = probe_context(config);
  PartRequest request;
  request.layers = [exchanges](std::shared_ptr<LayerStore> store) {
    return std::make_shared<WatchedLayers>(std::move(store), exchanges);
  };
  request.deferred = fake.has_value();
  // LibTorch's operators for dropout masks have shape functions.
  if (fake) context.config.randomness = "fast";
  ModelPart part(context, watched, loss, std::move(request));
  give_fake_values(part.parameters());
  GradientCollector collector = probe_collector(part);
  std::vector<Measured>& measured = watched->measured();
  BackwardPeaks peaks(*allocated, measured);
  part.set_hooks(&peaks);
  collector.begin();
  {
    const Loss kept = part.loss(part.forward(batch, 0), batch);
    // Outputs that stay sharded are sharded in the loss too.
    if (exchanges->region >= 0)
      description.blocks.back().row_cut_saved_bytes += allocated->allocated() - exchanges->region;
    measured.back().end = allocated->allocated();  // including tensors of the loss, without the outputs themselves
    measured.back().outputs = 0;
    part.backward(kept, double(std::max<int64_t>(batch.rows, 1)));
  }
  part.set_hooks(nullptr);
  return measured;
}

// Limits: rows of a measured step, which finds looked-up ids; rows and bytes of samples, which find repeated ids.
constexpr int64_t most_stepped = 512, most_gathered = 1 << 16, most_bytes = 64 << 20;

// Returns the table size (at most `rows`) for which `ids` uniform draws hit `unique` different rows on average.
double drawn_among(double ids, double unique, double rows) {
  double low = unique, high = rows;
  for (int round = 0; round < 60; ++round) {
    const double middle = (low + high) / 2;
    (-middle * std::expm1(-ids / middle) < unique ? low : high) = middle;
  }
  return high;
}

int64_t kept(const Measured& bytes) { return bytes.end - bytes.begin - bytes.outputs + bytes.inputs; }

using Drawn = std::vector<std::pair<double, double>>;

double different(const at::Tensor& ids) { return double(std::get<0>(at::_unique2(ids)).numel()); }

// Returns the numbers of ids and of different ids in the first 16, 32, 64, … rows of a sample, up to all of them.
Drawn drawn_from(const at::Tensor& ids) {
  Drawn drawn;
  const double each = double(ids.numel()) / double(ids.size(0));
  for (int64_t rows = 16;; rows *= 2) {
    rows = std::min(rows, ids.size(0));
    drawn.emplace_back(double(rows) * each, different(ids.narrow(0, 0, rows)));
    if (rows == ids.size(0)) return drawn;
  }
}

// Does the same for ids that a model computes, for which there is only one step. Assumes uniform draws, from the number
// of rows that fits the number of different ids.
Drawn evenly_drawn(const at::Tensor& ids, double rows) {
  const auto all = double(ids.numel());
  const double among = drawn_among(all, different(ids), rows);
  Drawn drawn;
  for (double count = std::min(all, 16.0); count < 1024 * all; count *= 2)
    drawn.emplace_back(count, among <= 1 ? 1 : -among * std::expm1(count * std::log1p(-1 / among)));
  return drawn;
}

// Name of the batch's tensor that equals these ids; "": none.
std::string field_of(const Batch& batch, const at::Tensor& ids) {
  for (const auto& [name, tensor] : batch.tensors)
    if (tensor.scalar_type() == at::kLong && tensor.numel() == ids.numel() && tensor.reshape({-1}).equal(ids))
      return name;
  return "";
}

int64_t working(const Measured& bytes) { return std::max<int64_t>(0, bytes.peak - bytes.end); }

}  // namespace

void measure_activations(const RunConfig& config, const ModelPtr& model, LossPtr loss, const Batch& batch,
                         ModelDescription& description, MeasuredTensors tensors) {
  const int64_t rows = std::max<int64_t>(batch.rows, 1), fewer = rows / 2;
  // A second step with half of the rows separates bytes per row from constant bytes.
  std::vector<Measured> small;
  ModelDescription scratch = description;
  if (fewer > 0) {
    Batch part = batch.slice(0, fewer);
    part.global_rows = part.nominal_rows = fewer;
    small = measured_step(config, model, loss, part, scratch, tensors);
  }
  const std::vector<Measured> measured = measured_step(config, model, loss, batch, description, tensors);
  for (size_t index = 0; index < measured.size(); ++index) {
    const Measured& bytes = measured[index];
    BlockDescription& block = description.blocks[index];
    const Measured none;
    const Measured& before = fewer > 0 ? small[index] : none;
    const int64_t more = rows - fewer;
    block.row_saved_bytes = std::max<int64_t>(0, kept(bytes) - kept(before)) / more;
    block.saved_bytes = std::max<int64_t>(0, kept(bytes) - block.row_saved_bytes * rows);
    block.row_output_bytes = bytes.outputs / rows;
    block.row_cut_input_bytes /= rows;
    block.row_cut_output_bytes /= rows;
    block.row_cut_saved_bytes = (block.row_cut_saved_bytes - scratch.blocks[index].row_cut_saved_bytes) / more;
    const int64_t grows = fewer > 0 ? std::max<int64_t>(0, working(bytes) - working(small[index])) : working(bytes);
    block.row_working_bytes = grows / (fewer > 0 ? rows - fewer : rows);
    block.working_bytes = std::max<int64_t>(0, working(bytes) - block.row_working_bytes * rows);
  }
  description.measured = true;
}

void measure_lookups(const RunConfig& config, const ModelPtr& model, LossPtr loss, const Dataset& data,
                     ModelDescription& description, MeasuredTensors tensors) {
  // Random rows, as in training: neighbouring rows of a file may be similar.
  const int64_t size = data.size(Split::train);
  const int64_t rows = std::min<int64_t>({size, std::max<int64_t>(config.train.batch.rows, 1), most_stepped});
  at::Generator generator = at::detail::createCPUGenerator(1);
  const at::Tensor order = at::randperm(size, generator, at::kLong).narrow(0, 0, std::min(size, most_gathered));
  const auto gathered = [&](int64_t first) {
    Batch batch = data.gather_once(Split::train, order.narrow(0, 0, first), 0);
    batch.global_rows = batch.nominal_rows = batch.rows;
    return batch;
  };
  const Batch batch = gathered(rows);
  ModelDescription scratch = description;
  std::map<std::string, std::vector<at::Tensor>> lookups;
  measured_step(config, model, loss, batch, scratch, tensors, &lookups);
  // Statistics over many steps need more rows, which do not pass through the model.
  int64_t row_bytes = 0;
  for (const auto& [name, tensor] : batch.tensors) row_bytes += int64_t(tensor.nbytes()) / batch.rows;
  const int64_t more = std::min(order.size(0), most_bytes / std::max<int64_t>(row_bytes, 1));
  const Batch whole = more > rows ? gathered(more) : batch;
  for (BlockDescription& block : description.blocks) {
    for (TableSize& table : block.tables) {
      const auto found = lookups.find(table.name);
      if (found == lookups.end()) continue;
      const at::Tensor ids = at::cat(found->second);
      if (ids.numel() == 0) continue;
      table.row_ids = double(ids.numel()) / double(batch.rows);
      const std::string field = found->second.size() == 1 ? field_of(batch, ids) : "";
      table.drawn = field.empty() ? evenly_drawn(ids, double(table.rows)) : drawn_from(whole.at(field));
    }
  }
}

}  // namespace convoy
