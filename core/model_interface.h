// Model, Block, Loss: the model to train. A model does not know the strategy that trains it.
//
// A Model is a recipe without tensors. A Block is a torch module from tensors to tensors: placement,
// pipeline stages, gathering and activation checkpointing work on whole blocks. Block i+1 takes the outputs of block i;
// block 0 takes `inputs(batch)`.
// Call order: blocks() → block(i, layers) for the local blocks, in any order → inputs → forwards → examples → loss or
// metrics.
// Threads: the rank threads of a process share one Model, which is const after construction. A Block belongs to one
// rank.
// Errors: the constructor throws Error(config) for options that do not fit the schema of the data.
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/batch.h"
#include "core/generation.h"
#include "core/layers.h"

namespace convoy {

using TensorList = std::vector<at::Tensor>;

class Block;  // core/model.h
using BlockPtr = std::shared_ptr<Block>;
class PairScorer;  // core/ranking/pair_scorer.h

// Inputs of a loss. The model defines the shapes; dimension 0 (after members) is rows.
struct Examples {
  at::Tensor prediction;
  at::Tensor target;
  at::Tensor weight;  // per row or per element of the loss; undefined: all ones
};

// A sum and a weight, never a mean: correct for uneven shares, accumulation and ranks without rows. Shapes: [] or
// [members].
struct Loss {
  at::Tensor sum;     // differentiable
  at::Tensor weight;  // rows or tokens, multiplied by row weights; no gradient
};

// Additive over shares, batches and ranks: value = sum / weight. `coverage` and `gini`: `sum` counts how often each
// item is recommended, [items] or [members, items]; the value is the share of items with a count, or the counts' Gini
// index.
struct Metric {
  enum class Form : uint8_t { ratio, coverage, gini };

  std::string name;  // "accuracy", "hr@10"
  at::Tensor sum;    // float64, [] or [members]
  at::Tensor weight;
  bool lower_is_better = false;
  Form form = Form::ratio;
};

class LossFunction {
 public:
  virtual ~LossFunction() = default;
  virtual Loss operator()(const Examples& examples, Layers& layers) const = 0;
};
using LossPtr = std::shared_ptr<const LossFunction>;

class Model {
 public:
  virtual ~Model() = default;
  virtual int64_t blocks() const = 0;
  virtual std::string block_name(int64_t index) const = 0;          // scope of its layers
  virtual BlockPtr block(int64_t index, Layers& layers) const = 0;  // `layers` is already scoped
  virtual TensorList inputs(const Batch& batch) const = 0;          // inputs of block 0
  // Returns by default the first output, the batch's field `target` and, if it exists, the field `weight`.
  virtual Examples examples(const TensorList& outputs, const Batch& batch) const {
    return {outputs[0], batch.at("target"), batch.optional("weight")};
  }
  virtual std::string default_loss() const = 0;  // name in the catalogue of losses
  // Metrics of an evaluation batch, besides the loss; may be empty.
  virtual std::vector<Metric> metrics(const TensorList& outputs, const Batch& batch, Layers& layers) const = 0;
  // Optional: scores of many items for each row. They equal the model's only output up to rounding. `blocks`: all
  // blocks of this model, on the CPU. Null if the model or its layers do not support it.
  virtual std::shared_ptr<PairScorer> pair_scorer(const std::vector<BlockPtr>& /*blocks*/) const { return nullptr; }
  // For `convoy generate`: continues a sequence with these parameters. Null: the model does not generate text.
  virtual std::unique_ptr<TokenDecoder> decoder(const ParameterValues& /*values*/) const { return nullptr; }
};
using ModelPtr = std::shared_ptr<const Model>;

// Decorator: forwards every call to another model. Base of models that observe or change a few calls.
class WrappedModel : public Model {
 public:
  explicit WrappedModel(ModelPtr inner) : inner_(std::move(inner)) {}

  int64_t blocks() const override { return inner_->blocks(); }
  std::string block_name(int64_t index) const override { return inner_->block_name(index); }
  BlockPtr block(int64_t index, Layers& layers) const override { return inner_->block(index, layers); }
  TensorList inputs(const Batch& batch) const override { return inner_->inputs(batch); }
  Examples examples(const TensorList& outputs, const Batch& batch) const override {
    return inner_->examples(outputs, batch);
  }
  std::string default_loss() const override { return inner_->default_loss(); }
  std::vector<Metric> metrics(const TensorList& outputs, const Batch& batch, Layers& layers) const override {
    return inner_->metrics(outputs, batch, layers);
  }
  std::shared_ptr<PairScorer> pair_scorer(const std::vector<BlockPtr>& blocks) const override {
    return inner_->pair_scorer(blocks);
  }
  std::unique_ptr<TokenDecoder> decoder(const ParameterValues& values) const override {
    return inner_->decoder(values);
  }

 protected:
  const Model& wrapped() const { return *inner_; }

 private:
  ModelPtr inner_;
};

}  // namespace convoy
