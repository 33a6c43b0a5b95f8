#include "strategies/parts/tensor/sharded_layers.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include "core/error.h"
#include "strategies/parts/init.h"
#include "strategies/parts/tensor/sharded_embedding.h"
#include "strategies/parts/tensor/sharded_linear.h"
#include "strategies/parts/tensor/sharded_loss.h"
#include "strategies/parts/tensor/sharded_regions.h"

namespace convoy {
namespace {

using Cut = LinearOptions::Cut;

class ShardedLayers : public Layers {
 public:
  ShardedLayers(std::shared_ptr<LayerStore> store, TensorGroupPtr group, std::shared_ptr<Layers> plain,
                std::string block)
      : store_(std::move(store)), group_(std::move(group)), plain_(std::move(plain)), block_(std::move(block)) {}

  // The first scope below the part is a block's.
  std::shared_ptr<Layers> scope(const std::string& name) override {
    return std::make_shared<ShardedLayers>(store_, group_, plain_->scope(name), block_.empty() ? name : block_);
  }
  std::string name(const std::string& layer) const override { return plain_->name(layer); }

  Layer linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options) override;
  Layer embedding(const std::string& name, int64_t rows, int64_t dim, const EmbeddingOptions& options) override;
  Layer conv2d(const std::string& name, int64_t in, int64_t out, int64_t kernel,
               const Conv2dOptions& options) override {
    return plain_->conv2d(name, in, out, kernel, options);
  }
  Layer layer_norm(const std::string& name, int64_t dim, double eps) override {
    const Layer inner = plain_->layer_norm(name, dim, eps);
    return make_region_norm(place(name), inner, known(name + ".weight"), known(name + ".bias"), eps);
  }
  Layer batch_norm(const std::string& name, int64_t channels, double eps, double momentum) override {
    return plain_->batch_norm(name, channels, eps, momentum);
  }
  Layer dropout(const std::string& name, double p) override {
    return make_region_dropout(place(name), plain_->dropout(name, p), p);
  }
  std::unique_ptr<ParameterHandle> parameter(const std::string& name, at::IntArrayRef shape,
                                             const Init& init) override {
    return make_region_parameter(place(name), plain_->parameter(name, shape, init));
  }

  at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target) override {
    const auto cut = group_->passage->cut_of_output(logits);
    return cut ? cut_cross_entropy(logits, target, *cut, group_->group) : plain_->cross_entropy(logits, target);
  }
  at::Tensor target_rank(const at::Tensor& logits, const at::Tensor& target) override {
    const auto cut = group_->passage->cut_of_output(logits);
    return cut ? cut_target_rank(logits, target, *cut, group_->group) : plain_->target_rank(logits, target);
  }
  at::Tensor gathered(const at::Tensor& output) override {
    const auto cut = group_->passage->cut_of_output(output);
    return cut ? gathered_last(output, *cut, group_->group, "output") : output;
  }

  at::Device device() const override { return store_->device; }
  at::ScalarType dtype() const override { return store_->dtype; }
  int64_t members() const override { return 0; }

 private:
  LayerPlace place(const std::string& layer) const { return {name(layer), group_, store_->state}; }
  ParameterPtr known(const std::string& tensor) const { return store_->by_name.at(name(tensor)); }
  Layer whole_linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options);
  Layer column_linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options);
  Layer row_linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options);
  Layer tied_linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options,
                    const TensorCut& cut);
  std::optional<TensorCut> cut_of_distant(const std::string& name, int64_t in, int64_t out, const std::string& tensor);
  Layer column_of(const std::string& name, int64_t in, const LinearOptions& options, const ParameterPtr& weight,
                  const DimensionCut& outputs, bool gather);
  Layer row_of(const std::string& name, int64_t in, int64_t out, const LinearOptions& options,
               const ParameterPtr& weight, const DimensionCut& inputs);
  ParameterPtr make_cut(const std::string& name, at::IntArrayRef shape, const TensorCut& cut, const Init& init);
  [[noreturn]] void refuse(const std::string& layer, const std::string& reason) const {
    throw Error(Failure::config, convoy::str("model: ", name(layer), reason));
  }

  std::shared_ptr<LayerStore> store_;
  TensorGroupPtr group_;
  std::shared_ptr<Layers> plain_;
  std::string block_;
};

ParameterPtr ShardedLayers::make_cut(const std::string& tensor, at::IntArrayRef shape, const TensorCut& cut,
                                     const Init& init) {
  ParameterPtr made = make_cut_parameter(*store_, name(tensor), shape, cut, init);
  group_->cuts.emplace(made->name, cut);
  return made;
}

Layer ShardedLayers::linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options) {
  if (!options.tied_to.empty()) {
    const auto tied = group_->cuts.find(options.tied_to);
    if (tied != group_->cuts.end()) return tied_linear(name, in, out, options, tied->second);
    if (const auto cut = cut_of_distant(name, in, out, options.tied_to))
      return tied_linear(name, in, out, options, *cut);
    return whole_linear(name, in, out, options);
  }
  switch (options.cut) {
    case Cut::column:
      return column_linear(name, in, out, options);
    case Cut::row:
      return row_linear(name, in, out, options);
    case Cut::none:
      break;
  }
  return whole_linear(name, in, out, options);
}

// A tie to what another part of the model makes, which is cut there as the plan says.
std::optional<TensorCut> ShardedLayers::cut_of_distant(const std::string& name, int64_t in, int64_t out,
                                                       const std::string& tensor) {
  const auto planned = group_->planned.find(tensor);
  if (store_->by_name.count(tensor) != 0 || !store_->distant || planned == group_->planned.end()) return std::nullopt;
  const auto [dimension, whole, parts] = planned->second;
  const TensorCut cut{dimension, group_->cut(whole, parts)};
  if (cut.cut.part() < cut.cut.size) return std::nullopt;
  std::vector<int64_t> shape{out, in};
  if (shape[static_cast<size_t>(dimension)] != whole)
    refuse(name, convoy::str(" wants a weight of [", out, ", ", in, "] and is tied to ", tensor, ", which has ", whole,
                             dimension == 0 ? " rows" : " columns"));
  shape[static_cast<size_t>(dimension)] = cut.cut.length();
  const ParameterPtr copy = store_->distant(tensor, shape);
  copy->held = held_pieces({out, in}, cut);
  group_->cuts.emplace(tensor, cut);
  return cut;
}

Layer ShardedLayers::whole_linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options) {
  const Layer inner = plain_->linear(name, in, out, options);
  const ParameterPtr weight = options.tied_to.empty() ? known(name + ".weight") : store_->by_name.at(options.tied_to);
  return make_whole_linear(place(name), inner, weight, options.bias ? known(name + ".bias") : nullptr);
}

Layer ShardedLayers::column_linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options) {
  const DimensionCut outputs = group_->cut(out, options.parts);
  if (options.parts < 1 || out % options.parts != 0)
    refuse(name, convoy::str(" has ", out, " outputs in ", options.parts, " parts, which do not divide them"));
  if (!outputs.even())
    refuse(name,
           convoy::str(" has ", out, " outputs", options.parts > 1 ? convoy::str(" in ", options.parts, " parts") : "",
                       ", which ", outputs.size, " ranks of the axis tensor do not divide; take a degree that divides ",
                       outputs.part(), ", or another size"));
  const ParameterPtr weight = make_cut(name + ".weight", {out, in}, {0, outputs}, options.weight);
  return column_of(name, in, options, weight, outputs, options.gather);
}

Layer ShardedLayers::row_linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options) {
  const DimensionCut inputs = group_->cut(in);
  if (!inputs.even())
    refuse(name,
           convoy::str(" has ", in, " inputs, which ", inputs.size,
                       " ranks of the axis tensor do not divide; take a degree that divides them, or another size"));
  const ParameterPtr weight = make_cut(name + ".weight", {out, in}, {1, inputs}, options.weight);
  return row_of(name, in, out, options, weight, inputs);
}

// Whatever the layer asked for, its weight is where it is; only a row-cut one has to fit its input.
Layer ShardedLayers::tied_linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options,
                                 const TensorCut& cut) {
  const ParameterPtr weight = store_->by_name.at(options.tied_to);
  const std::vector<int64_t>& shape = weight->held.front().piece.global_shape;
  if (at::IntArrayRef(shape) != at::IntArrayRef({out, in}))
    refuse(name, convoy::str(" wants a weight of [", out, ", ", in, "] and is tied to ", options.tied_to, " of ",
                             at::IntArrayRef(shape)));
  if (cut.dimension == 1) return row_of(name, in, out, options, weight, cut.cut);
  if (options.cut == Cut::row)
    refuse(name, convoy::str(" asks for a share of its inputs and is tied to ", options.tied_to,
                             ", which is cut by its outputs; leave its cut out, or do not tie it"));
  return column_of(name, in, options, weight, cut.cut, options.gather || options.cut == Cut::none);
}

Layer ShardedLayers::column_of(const std::string& name, int64_t in, const LinearOptions& options,
                               const ParameterPtr& weight, const DimensionCut& outputs, bool gather) {
  ParameterPtr bias;
  if (options.bias) bias = make_cut(name + ".bias", {outputs.whole}, {0, outputs}, bias_init(in, options.bias_init));
  if (!gather) group_->passage->has_cut_layers(block_);
  return make_column_linear(place(name), weight, bias, outputs, gather);
}

Layer ShardedLayers::row_of(const std::string& name, int64_t in, int64_t out, const LinearOptions& options,
                            const ParameterPtr& weight, const DimensionCut& inputs) {
  ParameterPtr bias;
  if (options.bias) bias = make_parameter(*store_, this->name(name + ".bias"), {out}, bias_init(in, options.bias_init));
  group_->passage->has_cut_layers(block_);
  return make_row_linear(place(name), weight, bias, inputs);
}

Layer ShardedLayers::embedding(const std::string& name, int64_t rows, int64_t dim, const EmbeddingOptions& options) {
  const DimensionCut cut = group_->cut(rows);
  if (options.rows == EmbeddingOptions::Rows::rows || rows < cut.size)
    return plain_->embedding(name, rows, dim, options);
  const ParameterPtr weight = make_cut(name + ".weight", {rows, dim}, {0, cut}, options.weight);
  return make_cut_embedding(place(name), weight, cut);
}

}  // namespace

std::function<std::shared_ptr<Layers>(std::shared_ptr<LayerStore>)> sharded_layers(CommunicatorPtr group,
                                                                                   const TensorOptions& options) {
  return [group = std::move(group), options](std::shared_ptr<LayerStore> store) -> std::shared_ptr<Layers> {
    auto plain = std::make_shared<PlainLayers>(store);
    if (group->size() == 1) return plain;  // nothing is cut, and fused sums are exact to the bit
    auto shared = std::make_shared<TensorGroup>(group, options.sequence_parallel, options.cuts);
    store->borders = shared->passage;
    if (!store->state->exact) {
      // Fast draws on what all ranks of the group have alike have to be alike.
      const at::Tensor rank = at::full({1}, store->state->rank, at::TensorOptions(at::kLong).device(store->device));
      group->broadcast(rank, 0, {"rank of fast draws", {}})->wait();
      store->state->rank = static_cast<int>(rank.cpu()[0].item<int64_t>());
    }
    return std::make_shared<ShardedLayers>(std::move(store), std::move(shared), std::move(plain), "");
  };
}

PartRequest sharded_part(const Context& context, const TensorOptions& options, PartRequest request) {
  const CommunicatorPtr group = context.axis("tensor");
  request.counts = request.counts && group->rank() == 0;
  request.layers = sharded_layers(group, options);
  return request;
}

TensorOptions tensor_options_of(const Options& strategy) { return {strategy.boolean("sequence_parallel"), {}}; }

}  // namespace convoy
