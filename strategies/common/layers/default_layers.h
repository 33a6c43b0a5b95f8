// DefaultLayers: every layer whole on this rank's device. `single` and `ddp` use them; layers of other strategies use
// them for all layers that they do not change.
//
// Initial values follow core/tensors/init.h. Linear products write their gradients to Parameter::gradient if a strategy
// has set it (layers/linear_function.h).
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/model.h"
#include "strategies/common/layers/parameter.h"
#include "strategies/common/layers/sparse_table.h"

namespace convoy {

// --- Dropout ---
//
// The mask is a function of (seed, step, layer name, global row, element in the row). Every layout of the same global
// batch, and a checkpointed forward, drops the same elements.

// Elements of a row in a tensor: all, or [begin, begin + n) of `whole` if a layer's output is sharded.
struct DropoutShard {
  int64_t begin = 0;
  int64_t whole = 0;  // size of the last dimension; 0: not sharded
};

// Returns the factors of dropout, 0 or 1 ÷ (1 − p), in the shape, dtype and device of `like`. Rows are its leading
// dimensions: each has numel ÷ state.rows elements. p is rounded to 1/65536.
at::Tensor dropout_mask(const at::Tensor& like, double p, const std::string& name, const ForwardState& state,
                        const DropoutShard& cut = {});

// --- Layers ---

// BlockBoundaries: observes a forward through the blocks of a model part, and may change tensors between blocks. For
// layers that depend on more than their input.
//
// Call order: begin; enter for each block in the model's order; leave. `again` may come at any time, before a
// checkpointed block runs again. All ranks that share the part make the same calls. Threads: the thread of the forward.
class BlockBoundaries {
 public:
  using Tensors = std::vector<at::Tensor>;
  virtual ~BlockBoundaries() = default;

  virtual void begin() = 0;                                             // before a part's first block
  virtual Tensors enter(const std::string& block, Tensors inputs) = 0;  // before a block
  virtual void again(const std::string& block) = 0;  // before a block runs again, with the results of its `enter`
  virtual Tensors leave(Tensors outputs) = 0;        // after the part's last block
};

// Batch norm in training. input: [B, C, …], any float dtype; weight, bias and running buffers [C]. Updates the running
// buffers in place. `name`: of the layer, for stall reports.
using BatchNormFunction = std::function<at::Tensor(
    const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& running_mean,
    const at::Tensor& running_var, double momentum, double eps, const std::string& name)>;

// State shared by all scopes of one rank's layers.
struct LayerStore {
  at::Device device{at::kCPU};
  at::ScalarType dtype = at::kFloat;
  uint64_t seed = 0;
  bool counts = true;            // this rank counts (Parameter::counted) and owns tensors that no group shards
  bool deferred = false;         // parameters get Parameter::initial instead of memory
  BatchNormFunction batch_norm;  // training with the rows of several ranks; null: only this rank's
  std::shared_ptr<const SparseRule> rows;  // decides which embeddings are sparse; null: none
  std::shared_ptr<ForwardState> state = std::make_shared<ForwardState>();
  std::vector<ParameterPtr> parameters;  // in order of creation
  std::map<std::string, ParameterPtr> by_name;
  std::vector<NamedBuffer> buffers;
  std::shared_ptr<BlockBoundaries> boundaries;  // null: tensors pass between blocks unchanged
  // For a model in several parts: returns this part's copy of a tensor that another part owns and a layer is tied to
  // (strategies/stages/stage_loop.h). Null: there is only one part.
  std::function<ParameterPtr(const std::string& name, at::IntArrayRef shape)> distant;
  std::vector<ParameterPtr> followers;  // local copies of a parameter that another part of this rank owns
};

// Creates a parameter with its initial values and records it. `large`: in huge pages if the system has any.
ParameterPtr make_parameter(LayerStore& store, const std::string& name, at::IntArrayRef shape, const Init& init,
                            bool large = false);
// Adds a trained parameter to the store. Error(config) for a name that exists already.
ParameterPtr add_parameter(LayerStore& store, const std::string& name, at::Tensor value);
// Returns Parameter::initial for a tensor of this shape.
std::function<void(const at::Tensor& out, int64_t first)> initial_values(const LayerStore& store,
                                                                         const std::string& name, at::IntArrayRef shape,
                                                                         const Init& init);
// Throws Error(config) for a negative size.
void check_sizes(const std::string& name, at::IntArrayRef shape);

struct Weights {
  ParameterPtr weight, bias;  // null: no bias
};

using LayersFactory = std::function<std::shared_ptr<Layers>(std::shared_ptr<LayerStore>)>;

class DefaultLayers : public Layers {
 public:
  explicit DefaultLayers(std::shared_ptr<LayerStore> store, std::string prefix = "");

  std::shared_ptr<Layers> scope(const std::string& name) override;
  std::string name(const std::string& layer) const override;

  Layer linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options) override;
  Layer embedding(const std::string& name, int64_t rows, int64_t dim, const EmbeddingOptions& options) override;
  Layer conv2d(const std::string& name, int64_t in, int64_t out, int64_t kernel, const Conv2dOptions& options) override;
  Layer layer_norm(const std::string& name, int64_t dim, double eps) override;
  Layer rms_norm(const std::string& name, int64_t dim, double eps) override;
  Layer batch_norm(const std::string& name, int64_t channels, double eps, double momentum) override;
  Layer dropout(const std::string& name, double p) override;
  std::unique_ptr<ParameterHandle> parameter(const std::string& name, at::IntArrayRef shape, const Init& init) override;

  at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target) override;
  at::Tensor target_rank(const at::Tensor& logits, const at::Tensor& target) override;
  at::Tensor gathered(const at::Tensor& output) override { return output; }

  at::Device device() const override { return store_->device; }
  at::ScalarType dtype() const override { return store_->dtype; }
  int64_t members() const override { return 0; }

 protected:
  // Creates and records the tensor "NAME" of this scope; `shape` is without members().
  virtual ParameterPtr make(const std::string& name, at::IntArrayRef shape, const Init& init);
  std::vector<int64_t> with_members(at::IntArrayRef shape) const;
  at::Tensor make_buffer(const std::string& name, int64_t size, double value);

  Weights linear_weights(const std::string& name, int64_t in, int64_t out, const LinearOptions& options);
  Weights conv2d_weights(const std::string& name, int64_t in, int64_t out, int64_t kernel,
                         const Conv2dOptions& options);
  Weights norm_weights(const std::string& name, int64_t dim);

  std::shared_ptr<LayerStore> store_;
  std::string prefix_;

 private:
  ParameterPtr tied(const std::string& name, const std::string& to, at::IntArrayRef shape);
};

// --- Common code of layers with whole parameters: of one model (default_layers.h) or of several (stacked_layers.h) ---

// Throw Error(config). `name`: the layer's canonical name.
void check_dropout(const std::string& name, double p);
[[noreturn]] void fail_tie(const std::string& name, const std::string& to);

// False for at most one value per channel. Such a share has no variance, so batch norm uses the running buffers to
// avoid NaN.
inline bool has_variance(int64_t elements, int64_t channels) { return channels > 0 && elements / channels > 1; }

// A layer with a weight and, if not null, a bias, which are registered under these names.
struct WeightedLayer : LayerModule {
  explicit WeightedLayer(const Weights& weights) : weight_(weights.weight), bias_(weights.bias) {
    register_parameter("weight", weight_->value);
    if (bias_) register_parameter("bias", bias_->value);
  }

 protected:
  ParameterPtr weight_, bias_;
};

struct WholeParameter : ParameterHandle {
  explicit WholeParameter(at::Tensor value) : value_(std::move(value)) {}
  const at::Tensor& get() override { return value_; }

 private:
  at::Tensor value_;
};

}  // namespace convoy
