// ModelPart: consecutive blocks of a model on one device, with their forward, backward and evaluation. Without pipeline
// parallelism it is the whole model.
//
// Call order: construct; then for each micro-batch forward → (loss, on the last part) → backward. Micro-batches may
// interleave.
// Threads: the rank's thread (on CUDA, autograd's threads run backward).
// Failure: Error(training) with block and step for an exception of the model, with its what(). An Error keeps its kind;
// CommError passes through.
#pragma once
#include <torch/csrc/autograd/edge.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/name_pattern.h"
#include "core/context.h"
#include "core/model_interface.h"
#include "core/rank_state/state_file.h"
#include "strategies/common/layers/default_layers.h"
#include "strategies/common/memory/recompute.h"
#include "strategies/common/step/gradient_collector.h"
#include "strategies/plans/options/step_options.h"

namespace convoy {

// Runs the forward of a block, and may check what it calls.
using WrappedForward = std::function<TensorList(const std::string& block, const std::function<TensorList()>& forward)>;

// The blocks of a part, their device, and their layers.
struct PartRequest {
  int64_t begin = 0, end = -1;       // blocks [begin, end); -1: to the last
  std::optional<at::Device> device;  // none: the rank's main device
  bool counts = true;                // this rank counts (in norms) and owns tensors that no group shards
  BatchNormFunction batch_norm;      // see LayerStore
  Recompute recompute;               // blocks with activation checkpointing
  bool keep_dtypes = false;          // foreign modules keep the dtypes of their tensors
  bool deferred = false;  // parameters of Layers get no memory (Parameter::initial); the data axis creates their values
  std::shared_ptr<const SparseRule> rows;  // decides which embeddings are sparse; null: none
  LayersFactory layers;                    // null: DefaultLayers
  WrappedForward first_forward;            // wraps each block's first training forward; null: not wrapped
};

// Returns the batch on a device, with real numbers and bytes of images converted to this dtype.
Batch prepared(const Batch& batch, at::Device device, at::ScalarType dtype);

// Start of backward: edges of the outputs that require a gradient, in order. The outputs themselves may be freed.
using Roots = std::vector<torch::autograd::Edge>;
Roots roots_of(const TensorList& outputs);

class ModelPart {
 public:
  // Builds the blocks with their initial values.
  ModelPart(const Context& context, ModelPtr model, LossPtr loss, PartRequest request = {});

  const std::vector<ParameterPtr>& parameters() const { return parameters_; }  // trained, dense, in order of creation
  const std::vector<ParameterPtr>& tables() const { return tables_; }          // sparse embeddings
  const std::vector<ParameterPtr>& frozen() const { return frozen_; }          // parameters without gradients
  const std::vector<NamedBuffer>& buffers() const { return buffers_; }
  size_t blocks() const { return blocks_.size(); }
  const BlockPtr& block(size_t index) const { return blocks_.at(index); }
  std::string block_name(size_t block) const { return model_->block_name(begin_ + int64_t(block)); }
  // Trained parameters that the block uses, with tied ones of earlier blocks of this part.
  const std::vector<ParameterPtr>& block_parameters(size_t block) const { return block_parameters_[block]; }
  // Sets hooks around every block. They must outlive every forward and backward.
  void set_hooks(BlockHooks* hooks) { hooks_ = hooks; }
  const std::shared_ptr<LayerStore>& store() const { return store_; }
  const std::shared_ptr<ForwardState>& state() const { return store_->state; }
  at::Device device() const { return store_->device; }
  at::ScalarType dtype() const { return store_->dtype; }
  bool first() const { return begin_ == 0; }
  bool last() const { return begin_ + int64_t(blocks_.size()) == model_->blocks(); }

  // Runs a training forward, with graph. `inputs`: outputs of the previous part; the first part reads them from the
  // batch. `batch`: one micro-batch. `step` keys random draws.
  TensorList forward(const Batch& batch, int64_t step, const TensorList& inputs = {});
  // Returns the loss of the last part's outputs.
  Loss loss(const TensorList& outputs, const Batch& batch);
  // Computes gradients of loss.sum × ForwardState::loss_scale ÷ nominal. Calls `inputs_done` as soon as the gradients
  // of the part's inputs exist. Gradients of parameters are complete when backward returns.
  void backward(const Loss& loss, double nominal, const std::function<void()>& inputs_done = {});
  // Does the same from the graph of outputs: one gradient per root, all defined.
  void backward(const Roots& roots, const TensorList& gradients, const std::function<void()>& inputs_done = {});

  // Calls the hooks of a training forward, but no block. For a rank without rows.
  void pass_over();

  // Runs a forward without gradients and dropout.
  TensorList evaluate(const Batch& batch, const TensorList& inputs = {});
  // Returns scores of many items for each row: the model's PairScorer if it has one for these layers, else by forward.
  // The part is the whole model. Valid as long as the part, until parameters change.
  std::shared_ptr<PairScorer> pair_scorer();
  // Returns metrics of the last part's outputs: "loss" first, then the model's metrics.
  std::vector<Metric> metrics(const TensorList& outputs, const Batch& batch);

 private:
  void build_block(int64_t index);
  void add_parameter_of_layers(const ParameterPtr& parameter);
  void adopt_foreign(int64_t index);
  void note_parameters(int64_t index, size_t before);
  void check_recompute(const Recompute& recompute) const;
  void check_names() const;
  void set_training(bool training);
  void set_rows(const Batch& batch);
  TensorList outputs_of(const Batch& batch, const TensorList& inputs);
  TensorList ranked_outputs(const Batch& batch);
  std::shared_ptr<PairScorer> model_scorer() const;
  TensorList run_block(size_t index, const TensorList& inputs);
  TensorList run_recomputed(size_t index, const TensorList& inputs);
  TensorList boundary(size_t index, const TensorList& values);
  Loss loss_of(const TensorList& outputs, const Batch& batch);
  bool products_may_wait() const;
  double waiting_bytes() const;  // limit of memory that waiting products keep alive
  void collect(const std::function<void()>& work);
  // Rethrows the current exception with `where` before its text.
  [[noreturn]] void rethrow(const std::string& where) const;

  ModelPtr model_;
  LossPtr loss_;
  std::string model_name_, loss_name_;  // for messages
  int64_t begin_;                       // index of the first block
  std::shared_ptr<LayerStore> store_;
  std::shared_ptr<Layers> layers_;
  std::vector<std::shared_ptr<Layers>> scopes_;  // blocks may keep references to them
  std::vector<BlockPtr> blocks_;
  std::vector<CrashNote> forward_notes_;  // by block
  std::vector<ParameterPtr> parameters_;
  std::vector<ParameterPtr> tables_;
  std::vector<ParameterPtr> frozen_;
  std::vector<NamedBuffer> buffers_;
  std::vector<std::vector<ParameterPtr>> block_parameters_;
  std::vector<TensorList> block_tensors_;  // tensors that a block's backward may reach, also copies of other parts
  std::vector<char> recomputes_;           // by block
  std::optional<NamePattern> freeze_;      // names of parameters that are not trained
  bool keep_dtypes_;
  std::shared_ptr<TimeBreakdown> times_;
  bool own_generators_;  // only this rank uses this process's default generators
  BlockHooks* hooks_ = nullptr;
  std::optional<at::ScalarType> autocast_;
  bool training_ = true;
  WrappedForward first_forward_;  // null after the first training forward
};

// Returns the metric of a loss: sum and weight as float64, without graph.
Metric loss_metric(const Loss& loss);
// Adds to the metric of the same name, else appends.
void add_metric(std::vector<Metric>& metrics, Metric metric);

}  // namespace convoy
