#include "strategies/parts/block_activations.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/Allocator.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/data/dataset.h"
#include "core/model.h"
#include "core/single_communicator.h"
#include "core/wrapped_model.h"
#include "strategies/parts/block_hooks.h"
#include "strategies/parts/fake_tensors.h"
#include "strategies/parts/gradient_collector.h"
#include "strategies/parts/model_part.h"

namespace convoy {
namespace {

// Bytes that this thread holds, as the CPU's allocator tells.
class HeldBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, at::Device) override {
    held_ += size;
    peak_ = std::max(peak_, held_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t held() const { return held_; }
  int64_t peak() const { return peak_; }  // since restart
  void restart() { peak_ = held_; }

 private:
  int64_t held_ = 0;
  int64_t peak_ = 0;
};

// Of tensors that want a gradient: the others are the batch's.
int64_t bytes_of(const TensorList& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors)
    if (tensor.requires_grad()) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

// Where the block under way is told of its layers.
struct Exchanges {
  const HeldBytes& held;
  BlockDescription* block = nullptr;
  int64_t region = -1;  // bytes held when a column-cut layer began; -1: none is open

  void opened(const at::Tensor& input) {
    if (block == nullptr) return;
    if (input.requires_grad()) {
      block->row_cut_input_bytes += static_cast<int64_t>(input.nbytes());
      ++block->cut_exchanges;
    }
  }
  std::map<std::string, std::vector<at::Tensor>>* lookups = nullptr;  // ids by table; null: nobody asks
  void looked_up(const std::string& table, const at::Tensor& ids) {
    if (lookups != nullptr) (*lookups)[table].push_back(ids.reshape({-1}));
  }
  void summed(const at::Tensor& output) {
    if (block == nullptr) return;
    block->row_cut_output_bytes += static_cast<int64_t>(output.nbytes());
    ++block->cut_exchanges;
  }
};

struct Measured {
  int64_t begin = 0, end = 0;  // bytes held in front of the forward and behind it
  int64_t inputs = 0, outputs = 0;
  int64_t peak = 0;  // the most that was held while its backward went on
};

// Tells the backwards of blocks apart.
class BackwardPeaks : public BlockHooks {
 public:
  BackwardPeaks(HeldBytes& held, std::vector<Measured>& measured) : held_(held), measured_(measured) {}
  void before_forward(int64_t) override {}
  void after_forward(int64_t) override {}
  void begin_backward() override {
    under_way_ = static_cast<int64_t>(measured_.size()) - 1;
    held_.restart();
  }
  void backward_at(int64_t border) override {
    for (; under_way_ >= border; --under_way_) {
      measured_[static_cast<size_t>(under_way_)].peak = held_.peak();
      held_.restart();
    }
  }
  void end_backward() override { backward_at(0); }

 private:
  HeldBytes& held_;
  std::vector<Measured>& measured_;
  int64_t under_way_ = -1;
};

class MeasuredBlock : public Block {
 public:
  MeasuredBlock(BlockPtr inner, Exchanges& exchanges, Measured& into, BlockDescription& described)
      : exchanges_(exchanges), into_(into), described_(described) {
    inner_ = register_module("inner", std::move(inner));
  }
  TensorList forward(const TensorList& inputs) override {
    exchanges_.block = &described_;
    exchanges_.region = -1;
    into_.begin = exchanges_.held.held();
    TensorList outputs = inner_->forward(inputs);
    into_.end = exchanges_.held.held();
    exchanges_.block = nullptr;
    into_.inputs = bytes_of(inputs);
    into_.outputs = bytes_of(outputs);
    return outputs;
  }

 private:
  BlockPtr inner_;
  Exchanges& exchanges_;
  Measured& into_;
  BlockDescription& described_;
};

// The model, with its blocks watched.
class MeasuredModel : public WrappedModel {
 public:
  MeasuredModel(ModelPtr inner, Exchanges& exchanges, Description& description)
      : WrappedModel(std::move(inner)),
        exchanges_(exchanges),
        description_(description),
        measured_(static_cast<size_t>(blocks())) {}
  std::vector<Measured>& measured() const { return measured_; }

  BlockPtr block(int64_t index, Layers& layers) const override {
    const auto place = static_cast<size_t>(index);
    return std::make_shared<MeasuredBlock>(wrapped().block(index, layers), exchanges_, measured_[place],
                                           description_.blocks[place]);
  }

 private:
  Exchanges& exchanges_;
  Description& description_;
  mutable std::vector<Measured> measured_;
};

// A layer that a tensor group would cut.
struct WatchedLayer : LayerModule {
  WatchedLayer(Layer inner, LinearOptions::Cut cut, bool gather, std::shared_ptr<Exchanges> exchanges,
               std::string table = "")
      : inner_(register_module("inner", std::move(inner))),
        cut_(cut),
        gather_(gather),
        exchanges_(std::move(exchanges)),
        table_(std::move(table)) {}

  at::Tensor forward(const at::Tensor& input) override {
    const bool column = cut_ == LinearOptions::Cut::column;
    Exchanges& all = *exchanges_;
    if (column) {
      all.opened(input);
      if (all.region < 0 && !gather_) all.region = all.held.held();
    } else if (cut_ == LinearOptions::Cut::row && all.region >= 0) {
      if (all.block != nullptr) all.block->row_cut_saved_bytes += all.held.held() - all.region;
      all.region = -1;
    }
    at::Tensor output = inner_->forward(input);
    if (!column) all.summed(output);
    if (!table_.empty()) all.looked_up(table_, input);
    return output;
  }

 private:
  Layer inner_;
  LinearOptions::Cut cut_;
  bool gather_;
  std::shared_ptr<Exchanges> exchanges_;
  std::string table_;  // of an embedding
};

class WatchedLayers : public PlainLayers {
 public:
  WatchedLayers(std::shared_ptr<LayerStore> store, std::shared_ptr<Exchanges> exchanges, const std::string& prefix = "")
      : PlainLayers(store, prefix), store_(std::move(store)), exchanges_(std::move(exchanges)) {}

  std::shared_ptr<Layers> scope(const std::string& name) override {
    return std::make_shared<WatchedLayers>(store_, exchanges_, PlainLayers::name(name) + ".");
  }
  Layer linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options) override {
    Layer inner = PlainLayers::linear(name, in, out, options);
    // One that is tied has the embedding's rows, as a column-cut one has.
    const auto cut = options.tied_to.empty() ? options.cut : LinearOptions::Cut::column;
    if (cut == LinearOptions::Cut::none) return inner;
    return std::make_shared<WatchedLayer>(std::move(inner), cut, options.gather, exchanges_);
  }
  Layer embedding(const std::string& name, int64_t rows, int64_t dim, const EmbeddingOptions& options) override {
    EmbeddingOptions dense = options;  // what a step keeps is the same
    dense.rows = EmbeddingOptions::Rows::dense;
    return std::make_shared<WatchedLayer>(PlainLayers::embedding(name, rows, dim, dense), LinearOptions::Cut::none,
                                          false, exchanges_, PlainLayers::name(name) + ".weight");
  }

 private:
  std::shared_ptr<LayerStore> store_;
  std::shared_ptr<Exchanges> exchanges_;
};

}  // namespace

namespace {

// Layers made them without memory, so that nobody fills in initial values.
void give_fake_values(const std::vector<ParameterPtr>& parameters) {
  at::NoGradGuard no_grad;
  for (const ParameterPtr& parameter : parameters)
    if (parameter->initial)
      parameter->value.set_data(at::empty(parameter->value.sizes(), parameter->value.options().requires_grad(false)));
}

// One step of `batch` as strategies make it, gradients in memory that is there already.
std::vector<Measured> measured_step(const RunConfig& config, const ModelPtr& model,
                                    const std::shared_ptr<const LossFunction>& loss, const Batch& batch,
                                    Description& description, MeasuredTensors tensors,
                                    std::map<std::string, std::vector<at::Tensor>>* lookups = nullptr) {
  std::optional<FakeTensors> fake;
  if (tensors == MeasuredTensors::fake) fake.emplace();
  const auto held = std::make_shared<HeldBytes>();
  const c10::DebugInfoGuard told(c10::DebugInfoKind::PROFILER_STATE, held);
  const auto exchanges = std::make_shared<Exchanges>(Exchanges{*held});
  exchanges->lookups = lookups;
  const auto watched = std::make_shared<MeasuredModel>(model, *exchanges, description);
  Context context;
  context.config = config;
  context.world = make_single_communicator();
  PartRequest request;
  request.layers = [exchanges](std::shared_ptr<LayerStore> store) {
    return std::make_shared<WatchedLayers>(std::move(store), exchanges);
  };
  request.deferred = fake.has_value();
  // Masks of dropout by LibTorch's own operators, which have shape functions.
  if (fake) context.config.randomness = "fast";
  ModelPart part(context, watched, loss, std::move(request));
  give_fake_values(part.parameters());
  for (const ParameterPtr& parameter : part.parameters()) parameter->gradient = at::zeros_like(parameter->value);
  GradientCollector collector(part.parameters(), part.state(), [](int) {});
  std::vector<Measured>& measured = watched->measured();
  BackwardPeaks peaks(*held, measured);
  part.set_hooks(&peaks);
  collector.begin();
  {
    const Loss kept = part.loss(part.forward(batch, 0), batch);
    // Outputs that stay cut are so in the loss, too.
    if (exchanges->region >= 0) description.blocks.back().row_cut_saved_bytes += held->held() - exchanges->region;
    measured.back().end = held->held();  // with what the loss keeps, and without the outputs themselves
    measured.back().outputs = 0;
    part.backward(kept, static_cast<double>(std::max<int64_t>(batch.rows, 1)));
  }
  part.set_hooks(nullptr);
  return measured;
}

// Rows that make a step, for which ids it looks up; that are gathered, and their bytes, for which ids come again.
constexpr int64_t most_stepped = 512, most_gathered = 1 << 16, most_bytes = 64 << 20;

// Of how many rows evenly drawn ids come to as many different ones.
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

double different(const at::Tensor& ids) { return static_cast<double>(std::get<0>(at::_unique2(ids)).numel()); }

// Of the first rows of a sample, twice as many each time.
Drawn drawn_from(const at::Tensor& ids) {
  Drawn drawn;
  const double each = static_cast<double>(ids.numel()) / static_cast<double>(ids.size(0));
  for (int64_t rows = 16;; rows *= 2) {
    rows = std::min(rows, ids.size(0));
    drawn.emplace_back(static_cast<double>(rows) * each, different(ids.narrow(0, 0, rows)));
    if (rows == ids.size(0)) return drawn;
  }
}

// Of ids that a model made by itself there is one sample: as if they were drawn evenly from as many rows as come to its
// number of different ones.
Drawn evenly_drawn(const at::Tensor& ids, double rows) {
  const auto all = static_cast<double>(ids.numel());
  const double among = drawn_among(all, different(ids), rows);
  Drawn drawn;
  for (double count = std::min(all, 16.0); count < 1024 * all; count *= 2)
    drawn.emplace_back(count, among <= 1 ? 1 : -among * std::expm1(count * std::log1p(-1 / among)));
  return drawn;
}

// The batch's tensor that holds these ids as they are; "": none does.
std::string field_of(const Batch& batch, const at::Tensor& ids) {
  for (const auto& [name, tensor] : batch.tensors)
    if (tensor.scalar_type() == at::kLong && tensor.numel() == ids.numel() && tensor.reshape({-1}).equal(ids))
      return name;
  return "";
}

int64_t working(const Measured& bytes) { return std::max<int64_t>(0, bytes.peak - bytes.end); }

}  // namespace

void measure_activations(const RunConfig& config, const ModelPtr& model, std::shared_ptr<const LossFunction> loss,
                         const Batch& batch, Description& description, MeasuredTensors tensors) {
  const int64_t rows = std::max<int64_t>(batch.rows, 1), fewer = rows / 2;
  // With half of the rows, which tells what there is of each from what is there anyway.
  std::vector<Measured> small;
  Description scratch = description;
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

void measure_lookups(const RunConfig& config, const ModelPtr& model, std::shared_ptr<const LossFunction> loss,
                     const Dataset& data, Description& description, MeasuredTensors tensors) {
  // As steps draw them, which rows that follow one another in a file need not be like.
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
  Description scratch = description;
  std::map<std::string, std::vector<at::Tensor>> lookups;
  measured_step(config, model, loss, batch, scratch, tensors, &lookups);
  // What tells of many steps takes more rows, which go through no model.
  int64_t row_bytes = 0;
  for (const auto& [name, tensor] : batch.tensors) row_bytes += static_cast<int64_t>(tensor.nbytes()) / batch.rows;
  const int64_t more = std::min(order.size(0), most_bytes / std::max<int64_t>(row_bytes, 1));
  const Batch whole = more > rows ? gathered(more) : batch;
  for (BlockDescription& block : description.blocks) {
    for (TableSize& table : block.tables) {
      const auto found = lookups.find(table.name);
      if (found == lookups.end()) continue;
      const at::Tensor ids = at::cat(found->second);
      if (ids.numel() == 0) continue;
      table.row_ids = static_cast<double>(ids.numel()) / static_cast<double>(batch.rows);
      const std::string field = found->second.size() == 1 ? field_of(batch, ids) : "";
      table.drawn = field.empty() ? evenly_drawn(ids, static_cast<double>(table.rows)) : drawn_from(whole.at(field));
    }
  }
}

}  // namespace convoy
