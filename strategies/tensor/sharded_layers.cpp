#include "strategies/tensor/sharded_layers.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/stack.h>

#include "core/base/error.h"
#include "core/model.h"
#include "core/tensors/init.h"
#include "strategies/common/layers/default_layers.h"
#include "strategies/tensor/group_functions.h"

namespace convoy {
namespace {

// ids [.., B, …] int64 → [.., B, …, dim], whole. Each rank looks up its rows, and the results are summed.
class VocabularyEmbedding : public LayerModule {
 public:
  VocabularyEmbedding(LayerContext layer, const ParameterPtr& weight, const DimensionShard& rows)
      : layer_(std::move(layer)), weight_(register_parameter("weight", weight->value)), rows_(rows) {}
  at::Tensor forward(const at::Tensor& ids) override {
    const LocalRowIndices own = local_row_indices(ids, rows_, layer_.name);
    const at::Tensor found = at::embedding(weight_, own.index).masked_fill(own.foreign.unsqueeze(-1), 0);
    return sum_of_parts(found, layer_.ranks(), layer_.name);
  }

 private:
  LayerContext layer_;
  at::Tensor weight_;
  DimensionShard rows_;
};

}  // namespace

LocalRowIndices local_row_indices(const at::Tensor& numbers, const DimensionShard& shard, const std::string& what) {
  if (numbers.is_cpu() && numbers.numel() > 0) {
    const auto [least, most] = at::aminmax(numbers);
    if (least.item<int64_t>() < 0 || most.item<int64_t>() >= shard.whole)
      throw Error(Failure::training, what, " has look-ups of ", least.item<int64_t>(), " … ", most.item<int64_t>(),
                  " and has 0 … ", shard.whole - 1);
  }
  const auto [begin, end] = shard.share();
  const at::Tensor shifted = numbers - begin;
  return {shifted.clamp(0, end - begin - 1), shifted.lt(0).logical_or_(shifted.ge(end - begin))};
}

namespace {

// input [.., in], whole → [.., out of this rank], which opens a region (sharding_state.h). With `gather`: [.., out],
// whole.
class ColumnLinear : public WeightedLayer {
 public:
  ColumnLinear(LayerContext layer, ParameterPtr weight, ParameterPtr bias, const DimensionShard& outputs,
               int64_t row_inputs, bool gather)
      : WeightedLayer({std::move(weight), std::move(bias)}),
        layer_(std::move(layer)),
        outputs_(outputs),
        row_inputs_(row_inputs),
        gather_(gather) {}
  at::Tensor forward(const at::Tensor& input) override {
    const bool shares = layer_.sharding().is_sequence_shard(input);
    const at::Tensor output =
        column_product(input, weight_, bias_, layer_.state, {layer_.ranks(), layer_.name, shares});
    if (gather_) return gathered_last(output, outputs_, layer_.ranks(), layer_.name);
    layer_.sharding().open(input, output, outputs_, row_inputs_);
    return output;
  }

 private:
  LayerContext layer_;
  DimensionShard outputs_;
  int64_t row_inputs_;
  bool gather_;
};

// input [.., in of this rank], or a whole one that the rank shards itself → [.., out], whole.
class RowLinear : public WeightedLayer {
 public:
  RowLinear(LayerContext layer, ParameterPtr weight, ParameterPtr bias, const DimensionShard& inputs)
      : WeightedLayer({std::move(weight), std::move(bias)}), layer_(std::move(layer)), inputs_(inputs) {}
  at::Tensor forward(const at::Tensor& input) override {
    const at::Tensor own = input.size(-1) == inputs_.whole
                               ? last_dimension_shard(input, inputs_, layer_.ranks(), "input of " + layer_.name)
                               : input;
    const bool shares = layer_.sharding().sum_becomes_shards(own);
    at::Tensor output = row_product(own, weight_, bias_, layer_.state, {layer_.ranks(), layer_.name, shares});
    layer_.sharding().close(inputs_.whole);
    return output;
  }

 private:
  LayerContext layer_;
  DimensionShard inputs_;
};

// `inner` with its whole parameters. Inside a region the group sums their gradients. `row_inputs`: inputs of a
// row-parallel layer that is tied to a whole weight; the layer gathers them.
class WholeLinear : public LayerModule {
 public:
  WholeLinear(LayerContext layer, const Layer& inner, ParameterPtr weight, ParameterPtr bias,
              std::optional<DimensionShard> row_inputs)
      : layer_(std::move(layer)),
        inner_(register_module("whole", inner)),
        weight_(std::move(weight)),
        bias_(std::move(bias)),
        row_inputs_(row_inputs) {}
  at::Tensor forward(const at::Tensor& input) override {
    if (row_inputs_ && input.size(-1) != row_inputs_->whole) return close_region(input);
    if (!layer_.sharding().is_part(input)) return inner_->forward(input);
    return at::linear(input, to_parts(weight_->value, layer_.ranks(), layer_.name + ".weight"),
                      bias_ ? to_parts(bias_->value, layer_.ranks(), layer_.name + ".bias") : at::Tensor());
  }

 private:
  at::Tensor close_region(const at::Tensor& part) {
    const bool shares = layer_.sharding().sum_becomes_shards(part);
    const std::string name = "input of " + layer_.name;
    at::Tensor output = inner_->forward(gathered_last(part, *row_inputs_, layer_.ranks(), name));
    if (shares) output = sequence_shard(output, layer_.ranks(), layer_.name);
    layer_.sharding().close(row_inputs_->whole);
    return output;
  }

  LayerContext layer_;
  Layer inner_;
  ParameterPtr weight_, bias_;
  std::optional<DimensionShard> row_inputs_;
};

// A norm. Outside regions it is `inner`. Inside a region the group sums the gradients of weight [dim] and bias. A norm
// without bias is an RMS norm.
class RegionNorm : public LayerModule {
 public:
  RegionNorm(LayerContext layer, const Layer& inner, ParameterPtr weight, ParameterPtr bias, double eps)
      : layer_(std::move(layer)),
        inner_(register_module("whole", inner)),
        weight_(std::move(weight)),
        bias_(std::move(bias)),
        eps_(eps) {}
  at::Tensor forward(const at::Tensor& input) override {
    if (!layer_.sharding().is_part(input)) return inner_->forward(input);
    if (!bias_) {
      const at::Tensor weight = to_parts(weight_->value, layer_.ranks(), layer_.name);
      return at::rms_norm(input, weight.sizes(), weight, eps_);
    }
    // Sums both gradients in one message.
    const at::Tensor both = to_parts(at::stack({weight_->value, bias_->value}), layer_.ranks(), layer_.name);
    return at::layer_norm(input, weight_->value.sizes(), both[0], both[1], eps_);
  }

 private:
  LayerContext layer_;
  Layer inner_;
  ParameterPtr weight_, bias_;
  double eps_;
};

// Drops the same elements of a shard as the default layer drops of the whole tensor.
class RegionDropout : public LayerModule {
 public:
  RegionDropout(LayerContext layer, const Layer& inner, double p)
      : layer_(std::move(layer)), inner_(register_module("whole", inner)), p_(p) {}
  at::Tensor forward(const at::Tensor& input) override {
    if (!layer_.state->training || p_ == 0) return input;
    if (const auto shard = layer_.sharding().sharding_of(input)) return input.mul(mask_of_shard(input, *shard));
    if (!layer_.sharding().is_sequence_shard(input)) return inner_->forward(input);
    // A shard [B, T ÷ ranks, features] is one range of each row's T · features elements.
    const at::Tensor rows = input.flatten(1);
    const DimensionShard shard = layer_.group->shard(rows.size(-1) * layer_.ranks()->size());
    return input.mul(mask_of_shard(rows, shard).view(input.sizes()));
  }

 private:
  at::Tensor mask_of_shard(const at::Tensor& like, const DimensionShard& shard) const {
    const auto [begin, end] = shard.share();
    if (like.size(-1) != shard.length())
      throw Error(Failure::training, "dropout ", layer_.name, ": a tensor of shape ", like.sizes(),
                  " is not a shard of ", shard.whole, "; a block must keep the last dimension of sharded activations");
    // Fast draws are per rank, and the ranks of a group share one number: see sharded_layers.
    const std::string name = layer_.state->exact ? layer_.name : convoy::str(layer_.name, "/", shard.rank);
    std::vector<at::Tensor> masks;
    for (int64_t part = 0; part < shard.parts; ++part) {
      const at::Tensor piece = like.narrow(-1, part * (end - begin), end - begin);
      const std::string key = layer_.state->exact || shard.parts == 1 ? name : convoy::str(name, "/", part);
      masks.push_back(dropout_mask(piece, p_, key, *layer_.state, {part * shard.part() + begin, shard.whole}));
    }
    return masks.size() == 1 ? masks.front() : at::cat(masks, -1);
  }

  LayerContext layer_;
  Layer inner_;
  double p_;
};

// Handle of a whole parameter, for use inside and outside regions.
class RegionParameter : public ParameterHandle {
 public:
  RegionParameter(LayerContext layer, std::unique_ptr<ParameterHandle> inner)
      : layer_(std::move(layer)), inner_(std::move(inner)) {}
  const at::Tensor& get() override {
    if (!layer_.sharding().is_part()) return inner_->get();
    value_ = to_parts(inner_->get(), layer_.ranks(), layer_.name);
    return value_;
  }

 private:
  LayerContext layer_;
  std::unique_ptr<ParameterHandle> inner_;
  at::Tensor value_;
};

// Logit of the target on the rank that has it, else 0: [.., B, …].
at::Tensor local_target(const at::Tensor& logits, const at::Tensor& target, const DimensionShard& shard) {
  const LocalRowIndices own = local_row_indices(target, shard, "the target");
  return logits.gather(-1, own.index.unsqueeze(-1)).squeeze(-1).masked_fill(own.foreign, 0);
}

}  // namespace

// log Σ exp(x − m) − (x_target − m), m = largest logit. One collective sums both terms.
at::Tensor sharded_cross_entropy(const at::Tensor& logits, const at::Tensor& target, const DimensionShard& shard,
                                 const CommunicatorPtr& group) {
  const auto dtype = logits.scalar_type();
  const at::Tensor exact = dtype == at::kHalf || dtype == at::kBFloat16 ? logits.to(at::kFloat) : logits;
  const at::Tensor largest = exact.detach().amax(-1).contiguous();
  group->all_reduce(largest, ReduceOp::max, {"largest logit", {}})->wait();
  const at::Tensor shifted = exact - largest.unsqueeze(-1);
  const at::Tensor own = at::stack({shifted.exp().sum(-1), local_target(shifted, target, shard)});
  const at::Tensor all = sum_of_parts(own, group, "cross-entropy");
  return all[0].log() - all[1];
}

at::Tensor sharded_target_rank(const at::Tensor& logits, const at::Tensor& target, const DimensionShard& shard,
                               const CommunicatorPtr& group) {
  const at::Tensor values = logits.detach();
  const at::Tensor own = local_target(values, target, shard).contiguous();
  group->all_reduce(own, ReduceOp::sum, {"logit of the target", {}})->wait();
  const at::Tensor above = (values >= own.unsqueeze(-1)).sum(-1);
  group->all_reduce(above, ReduceOp::sum, {"rank of the target", {}})->wait();
  return above - 1;
}

namespace {

using Cut = LinearOptions::Cut;

class ShardedLayers : public DefaultLayers {
 public:
  ShardedLayers(std::shared_ptr<LayerStore> store, TensorGroupPtr group, std::string prefix = "",
                std::string block = "")
      : DefaultLayers(std::move(store), std::move(prefix)), group_(std::move(group)), block_(std::move(block)) {}

  // The first scope below the part belongs to a block.
  std::shared_ptr<Layers> scope(const std::string& name) override {
    return std::make_shared<ShardedLayers>(store_, group_, prefix_ + name + ".", block_.empty() ? name : block_);
  }

  Layer linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options) override;
  Layer embedding(const std::string& name, int64_t rows, int64_t dim, const EmbeddingOptions& options) override;
  Layer layer_norm(const std::string& name, int64_t dim, double eps) override {
    const Layer inner = DefaultLayers::layer_norm(name, dim, eps);
    return std::make_shared<RegionNorm>(context_of(name), inner, known(name + ".weight"), known(name + ".bias"), eps);
  }
  Layer rms_norm(const std::string& name, int64_t dim, double eps) override {
    const Layer inner = DefaultLayers::rms_norm(name, dim, eps);
    return std::make_shared<RegionNorm>(context_of(name), inner, known(name + ".weight"), nullptr, eps);
  }
  Layer dropout(const std::string& name, double p) override {
    return std::make_shared<RegionDropout>(context_of(name), DefaultLayers::dropout(name, p), p);
  }
  std::unique_ptr<ParameterHandle> parameter(const std::string& name, at::IntArrayRef shape,
                                             const Init& init) override {
    return std::make_unique<RegionParameter>(context_of(name), DefaultLayers::parameter(name, shape, init));
  }

  at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target) override {
    const auto shard = group_->sharding->output_sharding(logits);
    return shard ? sharded_cross_entropy(logits, target, *shard, group_->group)
                 : DefaultLayers::cross_entropy(logits, target);
  }
  at::Tensor target_rank(const at::Tensor& logits, const at::Tensor& target) override {
    const auto shard = group_->sharding->output_sharding(logits);
    return shard ? sharded_target_rank(logits, target, *shard, group_->group)
                 : DefaultLayers::target_rank(logits, target);
  }
  at::Tensor gathered(const at::Tensor& output) override {
    const auto shard = group_->sharding->output_sharding(output);
    return shard ? gathered_last(output, *shard, group_->group, "output") : output;
  }

 private:
  LayerContext context_of(const std::string& layer) const { return {name(layer), group_, store_->state}; }
  ParameterPtr known(const std::string& tensor) const { return store_->by_name.at(name(tensor)); }
  Layer whole_linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options);
  Layer column_linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options);
  Layer row_linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options);
  Layer tied_linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options,
                    const TensorShard& shard);
  std::optional<TensorShard> sharding_of_distant(const std::string& name, int64_t in, int64_t out,
                                                 const std::string& tensor);
  Layer column_of(const std::string& name, int64_t in, const LinearOptions& options, const ParameterPtr& weight,
                  const DimensionShard& outputs, bool gather);
  Layer row_of(const std::string& name, int64_t in, int64_t out, const LinearOptions& options,
               const ParameterPtr& weight, const DimensionShard& inputs);
  ParameterPtr make_shard(const std::string& name, at::IntArrayRef shape, const TensorShard& shard, const Init& init);
  [[noreturn]] void refuse(const std::string& layer, const std::string& reason) const {
    throw Error(Failure::config, "model: ", name(layer), reason);
  }

  TensorGroupPtr group_;
  std::string block_;
};

ParameterPtr ShardedLayers::make_shard(const std::string& tensor, at::IntArrayRef shape, const TensorShard& shard,
                                       const Init& init) {
  ParameterPtr made = make_sharded_parameter(*store_, name(tensor), shape, shard, init);
  group_->cuts.emplace(made->name, shard);
  return made;
}

Layer ShardedLayers::linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options) {
  if (!options.tied_to.empty()) {
    const auto tied = group_->cuts.find(options.tied_to);
    if (tied != group_->cuts.end()) return tied_linear(name, in, out, options, tied->second);
    if (const auto shard = sharding_of_distant(name, in, out, options.tied_to))
      return tied_linear(name, in, out, options, *shard);
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

// Returns the planned sharding of a parameter that another stage creates.
std::optional<TensorShard> ShardedLayers::sharding_of_distant(const std::string& name, int64_t in, int64_t out,
                                                              const std::string& tensor) {
  const auto planned = group_->planned.find(tensor);
  if (store_->by_name.count(tensor) != 0 || !store_->distant || planned == group_->planned.end()) return std::nullopt;
  const auto [dimension, whole, parts] = planned->second;
  const TensorShard shard{dimension, group_->shard(whole, parts)};
  if (shard.shard.part() < shard.shard.size) return std::nullopt;
  std::vector<int64_t> shape{out, in};
  if (shape[size_t(dimension)] != whole)
    refuse(name, convoy::str(" has a weight of [", out, ", ", in, "] and is tied to ", tensor, ", which has ", whole,
                             dimension == 0 ? " rows" : " columns"));
  shape[size_t(dimension)] = shard.shard.length();
  const ParameterPtr copy = store_->distant(tensor, shape);
  copy->held = local_pieces({out, in}, shard);
  group_->cuts.emplace(tensor, shard);
  return shard;
}

Layer ShardedLayers::whole_linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options) {
  const Layer inner = DefaultLayers::linear(name, in, out, options);
  const ParameterPtr weight = options.tied_to.empty() ? known(name + ".weight") : store_->by_name.at(options.tied_to);
  const ParameterPtr bias = options.bias ? known(name + ".bias") : nullptr;
  std::optional<DimensionShard> row_inputs;
  if (options.cut == Cut::row) row_inputs = group_->shard(in);
  return std::make_shared<WholeLinear>(context_of(name), inner, weight, bias, row_inputs);
}

Layer ShardedLayers::column_linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options) {
  const DimensionShard outputs = group_->shard(out, options.parts);
  if (options.parts < 1 || out % options.parts != 0)
    refuse(name, convoy::str(" has ", out, " outputs in ", options.parts, " parts, which do not divide them"));
  if (!outputs.even())
    refuse(name,
           convoy::str(" has ", out, " outputs", options.parts > 1 ? convoy::str(" in ", options.parts, " parts") : "",
                       ", which ", outputs.size, " ranks of the axis tensor do not divide; take a degree that divides ",
                       outputs.part(), ", or another size"));
  const ParameterPtr weight = make_shard(name + ".weight", {out, in}, {0, outputs}, options.weight);
  return column_of(name, in, options, weight, outputs, options.gather);
}

Layer ShardedLayers::row_linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options) {
  const DimensionShard inputs = group_->shard(in);
  if (!inputs.even())
    refuse(name,
           convoy::str(" has ", in, " inputs, which ", inputs.size,
                       " ranks of the axis tensor do not divide; take a degree that divides them, or another size"));
  const ParameterPtr weight = make_shard(name + ".weight", {out, in}, {1, inputs}, options.weight);
  return row_of(name, in, out, options, weight, inputs);
}

// The tied weight decides the sharding, not options.cut. But a weight that is sharded by outputs refuses Cut::row: the
// input of such a layer is a shard.
Layer ShardedLayers::tied_linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options,
                                 const TensorShard& shard) {
  const ParameterPtr weight = store_->by_name.at(options.tied_to);
  const std::vector<int64_t>& shape = weight->held.front().piece.global_shape;
  if (at::IntArrayRef(shape) != at::IntArrayRef({out, in}))
    refuse(name, convoy::str(" has a weight of [", out, ", ", in, "] and is tied to ", options.tied_to, " of ",
                             at::IntArrayRef(shape)));
  if (shard.dimension == 1) return row_of(name, in, out, options, weight, shard.shard);
  if (options.cut == Cut::row)
    refuse(name, convoy::str(" requests a shard of its inputs and is tied to ", options.tied_to,
                             ", which is sharded by its outputs; leave cut out, or do not tie it"));
  return column_of(name, in, options, weight, shard.shard, options.gather || options.cut == Cut::none);
}

Layer ShardedLayers::column_of(const std::string& name, int64_t in, const LinearOptions& options,
                               const ParameterPtr& weight, const DimensionShard& outputs, bool gather) {
  ParameterPtr bias;
  if (options.bias) bias = make_shard(name + ".bias", {outputs.whole}, {0, outputs}, bias_init(in, options.bias_init));
  if (!gather) group_->sharding->mark_sharded_block(block_);
  const int64_t row_inputs = options.row_inputs > 0 ? options.row_inputs : outputs.part();
  return std::make_shared<ColumnLinear>(context_of(name), weight, bias, outputs, row_inputs, gather);
}

Layer ShardedLayers::row_of(const std::string& name, int64_t in, int64_t out, const LinearOptions& options,
                            const ParameterPtr& weight, const DimensionShard& inputs) {
  ParameterPtr bias;
  if (options.bias) bias = make_parameter(*store_, this->name(name + ".bias"), {out}, bias_init(in, options.bias_init));
  group_->sharding->mark_sharded_block(block_);
  return std::make_shared<RowLinear>(context_of(name), weight, bias, inputs);
}

Layer ShardedLayers::embedding(const std::string& name, int64_t rows, int64_t dim, const EmbeddingOptions& options) {
  const DimensionShard shard = group_->shard(rows);
  if (options.rows == EmbeddingOptions::Rows::rows || rows < shard.size)
    return DefaultLayers::embedding(name, rows, dim, options);
  const ParameterPtr weight = make_shard(name + ".weight", {rows, dim}, {0, shard}, options.weight);
  return std::make_shared<VocabularyEmbedding>(context_of(name), weight, shard);
}

}  // namespace

LayersFactory sharded_layers(CommunicatorPtr group, const TensorOptions& options) {
  return [group = std::move(group), options](std::shared_ptr<LayerStore> store) -> std::shared_ptr<Layers> {
    if (group->size() == 1)
      return std::make_shared<DefaultLayers>(store);  // nothing is sharded, and fused sums are exact to the bit
    auto shared = std::make_shared<TensorGroup>(group, options.sequence_parallel, options.cuts);
    store->boundaries = shared->sharding;
    if (!store->state->exact) {
      // Fast draws on whole tensors must be equal on all ranks of the group.
      const at::Tensor rank = at::full({1}, store->state->rank, at::TensorOptions(at::kLong).device(store->device));
      group->broadcast(rank, 0, {"rank of fast draws", {}})->wait();
      store->state->rank = int(rank.cpu()[0].item<int64_t>());
    }
    return std::make_shared<ShardedLayers>(std::move(store), std::move(shared));
  };
}

PartRequest sharded_part(const Context& context, const TensorOptions& options, PartRequest request) {
  const CommunicatorPtr group = context.axis("tensor");
  request.counts = request.counts && group->rank() == 0;
  request.layers = sharded_layers(group, options);
  return request;
}

}  // namespace convoy
