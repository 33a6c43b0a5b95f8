// Model, Block, Loss: what is trained. A model never knows how.
//
// Role: a Model is a recipe without tensors; a Block is a torch module from tensors to tensors, the unit of placement, of
// stages, of gathering and of recomputation. Block i+1 takes what block i returned; block 0 takes `inputs(batch)`.
// Call order: configure → blocks() → block(i, layers) for the blocks a rank holds, in any order → inputs → forwards →
// examples → loss or metrics.
// Threads: a Model is shared by the rank threads of a process and const after construction; a Block belongs to one rank.
// Failure: Error(config) from the constructor for options that do not fit the data's schema.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/batch.h"
#include "core/layers.h"

namespace convoy {

using TensorList = std::vector<at::Tensor>;

class Block;  // core/model.h
using BlockPtr = std::shared_ptr<Block>;

// What a loss compares. Shapes are the model's; dimension 0 (after members) is rows.
struct Examples {
  at::Tensor prediction;
  at::Tensor target;
  at::Tensor weight;  // per row (or per element of the loss); undefined: all one
};

// A sum and a weight, never a mean: right for ragged shares, accumulation and ranks without rows. Shapes: [] or [members].
struct Loss {
  at::Tensor sum;     // differentiable
  at::Tensor weight;  // rows or tokens, by sample weight; no gradient
};

// Additive, so that shares, batches and ranks add up: value = sum / weight.
struct Metric {
  std::string name;  // "accuracy", "hr@10"
  at::Tensor sum;    // float64, [] or [members]
  at::Tensor weight;
  bool lower_is_better = false;
};

class LossFunction {
 public:
  virtual ~LossFunction() = default;
  virtual Loss operator()(const Examples& examples, Layers& layers) const = 0;
};

class Model {
 public:
  virtual ~Model() = default;
  virtual int64_t blocks() const = 0;
  virtual std::string block_name(int64_t index) const = 0;          // scope of its layers
  virtual BlockPtr block(int64_t index, Layers& layers) const = 0;  // `layers` is already scoped
  virtual TensorList inputs(const Batch& batch) const = 0;          // of block 0
  virtual Examples examples(const TensorList& outputs, const Batch& batch) const = 0;
  virtual std::string default_loss() const = 0;  // name in the losses' catalogue
  // Of an evaluation batch, beside the loss; empty when the loss says all.
  virtual std::vector<Metric> metrics(const TensorList& outputs, const Batch& batch, Layers& layers) const = 0;
};
using ModelPtr = std::shared_ptr<const Model>;

}  // namespace convoy
