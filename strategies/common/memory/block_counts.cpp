#include "strategies/common/memory/block_counts.h"

#include <ATen/ops/empty.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/model.h"
#include "core/tensors/init.h"
#include "strategies/common/layers/default_layers.h"

namespace convoy {
namespace {

struct Counted {
  BlockDescription block;  // being built
  int64_t index = 0;
  std::map<std::string, TiedTensor> made;  // by canonical name, of all blocks so far
  PlannedShards cuts;                      // shards of all blocks so far
  ModelDescription* finished = nullptr;    // the blocks before
};

struct Nothing : LayerModule {
  at::Tensor forward(const at::Tensor& input) override { return input; }
};

// A shape without memory.
struct ShapeHandle : ParameterHandle {
  explicit ShapeHandle(at::IntArrayRef shape) : value(at::empty(shape, at::TensorOptions(at::kMeta))) {}
  const at::Tensor& get() override { return value; }
  at::Tensor value;
};

class CountingLayers : public Layers {
 public:
  CountingLayers(Counted& counted, std::string prefix) : counted_(counted), prefix_(std::move(prefix)) {}

  std::shared_ptr<Layers> scope(const std::string& name) override {
    return std::make_shared<CountingLayers>(counted_, prefix_ + name + ".");
  }
  std::string name(const std::string& layer) const override { return prefix_ + layer; }

  Layer linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options) override {
    if (options.tied_to.empty())
      make_product(name + ".weight", in * out);
    else
      tie(name, options);
    if (options.bias) make(name + ".bias", out);
    if (options.tied_to.empty()) note_cut(name, in, out, options);
    counted_.block.products += in * out;
    return std::make_shared<Nothing>();
  }
  Layer embedding(const std::string& name, int64_t rows, int64_t dim, const EmbeddingOptions& options) override {
    make(name + ".weight", rows * dim);
    if (options.rows != EmbeddingOptions::Rows::dense)
      counted_.block.tables.push_back({prefix_ + name + ".weight",
                                       rows,
                                       dim,
                                       options.rows == EmbeddingOptions::Rows::rows,
                                       options.lookups,
                                       0,
                                       {}});
    counted_.block.cut_parameters += rows * dim;
    if (options.rows != EmbeddingOptions::Rows::rows) counted_.cuts[prefix_ + name + ".weight"] = {0, rows, 1};
    return std::make_shared<Nothing>();
  }
  Layer conv2d(const std::string& name, int64_t in, int64_t out, int64_t kernel,
               const Conv2dOptions& options) override {
    const int64_t weight = options.groups > 0 ? in / options.groups * out * kernel * kernel : 0;
    make_product(name + ".weight", weight);
    if (options.bias) make(name + ".bias", out);
    counted_.block.products += weight;
    ++counted_.block.convolutions;
    return std::make_shared<Nothing>();
  }
  Layer layer_norm(const std::string& name, int64_t dim, double) override { return norm(name, dim); }
  Layer rms_norm(const std::string& name, int64_t dim, double) override {
    make(name + ".weight", dim);
    return std::make_shared<Nothing>();
  }
  Layer batch_norm(const std::string& name, int64_t channels, double, double) override {
    counted_.block.buffers += 2 * channels;
    ++counted_.block.norms;
    counted_.block.norm_channels += channels;
    return norm(name, channels);
  }
  Layer dropout(const std::string&, double) override { return std::make_shared<Nothing>(); }
  std::unique_ptr<ParameterHandle> parameter(const std::string& name, at::IntArrayRef shape, const Init&) override {
    auto handle = std::make_unique<ShapeHandle>(shape);
    make(name, handle->value.numel());
    return handle;
  }

  at::Tensor cross_entropy(const at::Tensor&, const at::Tensor&) override { no_forward(); }
  at::Tensor target_rank(const at::Tensor&, const at::Tensor&) override { no_forward(); }
  at::Tensor gathered(const at::Tensor&) override { no_forward(); }
  at::Device device() const override { return at::kCPU; }
  at::ScalarType dtype() const override { return at::kFloat; }
  int64_t members() const override { return 0; }

 private:
  [[noreturn]] static void no_forward() { throw Error(Failure::internal, "a model that is counted is not run"); }

  void make_product(const std::string& name, int64_t elements) {
    make(name, elements);
    counted_.block.product_parameters += elements;
    ++counted_.block.product_tensors;
  }
  void make(const std::string& name, int64_t elements) {
    counted_.block.parameters += elements;
    ++counted_.block.tensors;
    counted_.block.named.emplace_back(prefix_ + name, elements);
    counted_.made.emplace(prefix_ + name, TiedTensor{prefix_ + name, counted_.index, elements});
  }
  Layer norm(const std::string& name, int64_t size) {
    make(name + ".weight", size);
    make(name + ".bias", size);
    return std::make_shared<Nothing>();
  }
  void note_cut(const std::string& name, int64_t in, int64_t out, const LinearOptions& options) {
    if (options.cut == LinearOptions::Cut::none) return;
    const bool column = options.cut == LinearOptions::Cut::column;
    counted_.block.cut_parameters += in * out + (column && options.bias ? out : 0);
    counted_.block.cut_product_parameters += in * out;
    counted_.block.cuts.push_back({prefix_ + name, column ? out : in, column ? options.parts : 1, column});
    counted_.cuts[prefix_ + name + ".weight"] = {column ? 0 : 1, column ? out : in, column ? options.parts : 1};
  }
  void tie(const std::string& name, const LinearOptions& options) {
    const std::string& to = options.tied_to;
    const auto found = counted_.made.find(to);
    if (found == counted_.made.end()) fail_tie(prefix_ + name, to);
    make_dense(to, prefix_ + name);
    const auto cut = counted_.cuts.find(to);
    if (options.cut == LinearOptions::Cut::row && cut != counted_.cuts.end() && cut->second.dimension == 0)
      counted_.block.tie_conflicts.push_back({prefix_ + name, to});
    if (found->second.block != counted_.index) counted_.block.ties.push_back(found->second);
  }

  // Makes a table dense: a tied layer needs a gradient of all rows.
  void make_dense(const std::string& name, const std::string& user) {
    const auto drop = [&](BlockDescription& block) {
      const auto of_name = [&](const TableSize& table) { return table.name == name; };
      const auto found = std::find_if(block.tables.begin(), block.tables.end(), of_name);
      if (found == block.tables.end()) return;
      block.tied_tables.push_back({name, user, found->asked});
      block.tables.erase(found);
    };
    drop(counted_.block);
    if (counted_.finished != nullptr)
      for (BlockDescription& block : counted_.finished->blocks) drop(block);
  }

  Counted& counted_;
  std::string prefix_;
};

// True for LibTorch's batch norm and other modules with running buffers.
bool depends_on_rows(const torch::nn::Module& module) {
  if (dynamic_cast<const torch::nn::BatchNorm1dImpl*>(&module) != nullptr ||
      dynamic_cast<const torch::nn::BatchNorm2dImpl*>(&module) != nullptr ||
      dynamic_cast<const torch::nn::BatchNorm3dImpl*>(&module) != nullptr)
    return true;
  const auto buffers = module.named_buffers(/*recurse=*/false);
  const at::Tensor* mean = buffers.find("running_mean");
  return mean != nullptr && mean->defined();
}

// In training it uses the statistics of each row.
bool is_instance_norm(const torch::nn::Module& module) {
  return dynamic_cast<const torch::nn::InstanceNorm1dImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::InstanceNorm2dImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::InstanceNorm3dImpl*>(&module) != nullptr;
}

void find_own_norms(const Block& block, BlockDescription& into) {
  for (const auto& named : block.named_modules(into.name)) {
    const torch::nn::Module& module = *named.value();
    if (dynamic_cast<const LayerModule*>(&module) == nullptr && depends_on_rows(module))
      (is_instance_norm(module) ? into.tracking_norms : into.foreign_norms)
          .push_back(convoy::str(named.key(), " (", module.name(), ")"));
  }
}

// Counts foreign modules.
void count_foreign(const Block& block, BlockDescription& into) {
  for (const auto& named : block.named_parameters()) {
    const at::Tensor& parameter = named.value();
    if (!parameter.defined()) continue;
    into.named.emplace_back(into.name + "." + named.key(), parameter.numel());
    into.parameters += parameter.numel();
    ++into.tensors;
    if (parameter.dim() > 1) into.products += parameter.numel();
  }
  for (const at::Tensor& buffer : block.buffers())
    if (buffer.defined()) into.buffers += buffer.numel();
}

ModelDescription counted_blocks(const Model& model, int64_t element_bytes, Counted& counted) {
  ModelDescription description;
  description.element_bytes = element_bytes;
  counted.finished = &description;
  for (counted.index = 0; counted.index < model.blocks(); ++counted.index) {
    counted.block = {};
    counted.block.name = model.block_name(counted.index);
    CountingLayers layers(counted, counted.block.name + ".");
    SeededDefaultGenerator undisturbed(0);
    const BlockPtr block = model.block(counted.index, layers);
    if (block == nullptr)
      throw Error(Failure::config, "block ", counted.index, " (", counted.block.name,
                  "): the model returned null for it");
    count_foreign(*block, counted.block);
    find_own_norms(*block, counted.block);
    description.blocks.push_back(counted.block);
  }
  return description;
}

}  // namespace

ModelDescription count_blocks(const Model& model, int64_t element_bytes) {
  Counted counted;
  return counted_blocks(model, element_bytes, counted);
}

PlannedShards planned_shards(const Model& model) {
  Counted counted;
  counted_blocks(model, 0, counted);
  return counted.cuts;
}

}  // namespace convoy
