// ModelPart: consecutive blocks of a model on one device, with their forward, backward and evaluation. A whole model where
// nothing is cut along its depth.
//
// Call order: construct; then for each micro-batch forward → (loss, on the last part) → backward, in any order over
// micro-batches that keeps each one's own. Threads: the rank's own (on CUDA, backward runs autograd's). Failure:
// Error(training) with block and step for what a model throws, its what() kept; a failure with a kind of its own keeps it;
// CommError passes through.
#pragma once
#include <torch/csrc/autograd/edge.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/context.h"
#include "core/model_interface.h"
#include "strategies/parts/block_hooks.h"
#include "strategies/parts/plain_layers.h"
#include "strategies/parts/recompute.h"

namespace convoy {

// Which blocks, where, and what their layers are.
struct PartRequest {
  int64_t begin = 0, end = -1;       // blocks [begin, end); -1: to the last
  std::optional<at::Device> device;  // none: the rank's main one
  bool counts = true;                // this rank counts (in norms) and owns what no group cuts
  CommunicatorPtr batch_norm;        // ranks over whose rows batch norm takes its figures; null: this rank's
  Recompute recompute;               // blocks that are run again in backward
  bool deferred = false;  // parameters of Layers get no memory (Parameter::initial): the data axis makes values
  std::shared_ptr<const RowRule> rows;  // which embeddings are row tables; null: none may be
  std::function<std::shared_ptr<Layers>(std::shared_ptr<LayerStore>)> layers;  // none: PlainLayers
};

// What a strategy's options say about its parts: `batch_norm`, `recompute`. Collective along the axis `data`.
PartRequest part_request(const Context& context, const Options& strategy);

// Where backward begins: the graph behind a part's outputs, which themselves may be dropped.
struct Roots {
  std::vector<torch::autograd::Edge> edges;  // of the outputs that want a gradient, in order
};
Roots roots_of(const TensorList& outputs);

class ModelPart {
 public:
  // Builds its blocks with their initial values.
  ModelPart(const Context& context, ModelPtr model, std::shared_ptr<const LossFunction> loss, PartRequest request = {});

  const std::vector<ParameterPtr>& parameters() const { return parameters_; }  // trained ones, in order of creation
  const std::vector<ParameterPtr>& tables() const { return tables_; }          // row tables, which are none of those
  const std::vector<ParameterPtr>& frozen() const { return frozen_; }          // those that want no gradient
  const std::vector<NamedBuffer>& buffers() const { return buffers_; }
  size_t blocks() const { return blocks_.size(); }
  std::string block_name(size_t block) const { return model_->block_name(begin_ + static_cast<int64_t>(block)); }
  // Trained ones that the block uses: its own, and those of earlier blocks of this part that it is tied to.
  const std::vector<ParameterPtr>& block_parameters(size_t block) const { return block_parameters_[block]; }
  // Called around every block from now on. They outlive every forward and backward.
  void set_hooks(BlockHooks* hooks) { hooks_ = hooks; }
  const std::shared_ptr<LayerStore>& store() const { return store_; }
  const std::shared_ptr<ForwardState>& state() const { return store_->state; }
  at::Device device() const { return store_->device; }
  at::ScalarType dtype() const { return store_->dtype; }
  bool first() const { return begin_ == 0; }
  bool last() const { return begin_ + static_cast<int64_t>(blocks_.size()) == model_->blocks(); }

  // Training, with graph: what the blocks make of `inputs`, the outputs of the part before (the first part takes them from
  // the batch instead). `batch` is one micro-batch; `step` keys random draws.
  TensorList forward(const Batch& batch, int64_t step, const TensorList& inputs = {});
  // Of the last part's outputs.
  Loss loss(const TensorList& outputs, const Batch& batch);
  // Gradients of loss.sum × ForwardState::loss_scale ÷ nominal. `inputs_done` is called as soon as the gradients of the part's
  // inputs are there: those of parameters are then partly still to come, and are there when backward returns.
  void backward(const Loss& loss, double nominal, const std::function<void()>& inputs_done = {});
  // From the outputs' graph: one gradient for each root, all defined.
  void backward(const Roots& roots, const TensorList& gradients, const std::function<void()>& inputs_done = {});

  // No gradient, no dropout.
  TensorList evaluate(const Batch& batch, const TensorList& inputs = {});
  // Of the last part's outputs: "loss" first, then the model's metrics.
  std::vector<Metric> metrics(const TensorList& outputs, const Batch& batch);

 private:
  void build_block(int64_t index);
  void adopt_foreign(int64_t index);
  void note_parameters(int64_t index, size_t before);
  void check_recompute(const Recompute& recompute) const;
  void check_unique_names() const;
  void set_training(bool training);
  void set_rows(const Batch& batch);
  Batch prepared(const Batch& batch) const;
  TensorList outputs_of(const Batch& batch, const TensorList& inputs);
  TensorList run_block(size_t index, const TensorList& inputs);
  TensorList run_recomputed(size_t index, const TensorList& inputs);
  TensorList border(size_t index, const TensorList& values);
  Loss loss_of(const TensorList& outputs, const Batch& batch);
  bool products_may_wait() const;
  double waiting_bytes() const;  // the most that they may keep alive
  void collect(const std::function<void()>& work);
  // Throws the exception under way again, with `where` in front.
  [[noreturn]] void rethrow(const std::string& where) const;

  ModelPtr model_;
  std::shared_ptr<const LossFunction> loss_;
  std::string model_name_, loss_name_;  // for messages
  int64_t begin_;                       // the first block's number
  std::shared_ptr<LayerStore> store_;
  std::shared_ptr<Layers> layers_;
  std::vector<std::shared_ptr<Layers>> scopes_;  // blocks may keep a reference to theirs
  std::vector<BlockPtr> blocks_;
  std::vector<ParameterPtr> parameters_;
  std::vector<ParameterPtr> tables_;
  std::vector<ParameterPtr> frozen_;
  std::vector<NamedBuffer> buffers_;
  std::vector<std::vector<ParameterPtr>> block_parameters_;
  std::vector<TensorList> block_tensors_;  // what each block's backward may reach, copies of other parts' tensors too
  std::vector<char> recomputes_;           // by block
  bool own_generators_;                    // no other rank draws from this process' default generators
  BlockHooks* hooks_ = nullptr;
  std::optional<at::ScalarType> autocast_;
  bool training_ = true;
};

// The metric of a loss: sum and weight as float64, without graph.
Metric loss_metric(const Loss& loss);
// Into the one of the list that has its name, else behind it.
void add_metric(std::vector<Metric>& metrics, Metric metric);

}  // namespace convoy
