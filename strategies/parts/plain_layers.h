// PlainLayers: every layer whole on this rank's device. What single and ddp give to models, and what the layers of other
// strategies fall back to.
//
// Initial values follow parts/init.h, dropout parts/keyed_dropout.h. Linear products write their gradients to
// Parameter::gradient where a strategy has set it (parts/linear_function.h).
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/layers.h"
#include "strategies/parts/block_borders.h"
#include "strategies/parts/parameter.h"
#include "strategies/parts/rows/row_rule.h"

namespace convoy {

// What all scopes of one rank's layers share.
struct LayerStore {
  at::Device device{at::kCPU};
  at::ScalarType dtype = at::kFloat;
  uint64_t seed = 0;
  bool counts = true;                   // this rank counts and owns (Parameter::counted) what no group cuts
  bool deferred = false;                // parameters get no memory, but Parameter::initial
  CommunicatorPtr batch_norm;           // ranks over whose rows batch norm takes its figures; null: this rank's
  std::shared_ptr<const RowRule> rows;  // which embeddings are row tables; null: none may be
  std::shared_ptr<ForwardState> state = std::make_shared<ForwardState>();
  std::vector<ParameterPtr> parameters;  // in order of creation
  std::map<std::string, ParameterPtr> by_name;
  std::vector<NamedBuffer> buffers;
  std::shared_ptr<BlockBorders> borders;  // null: what goes from block to block goes as it is
  // Where a model is built in several parts, gives this part's copy of a tensor that a layer is tied to and that none of its
  // own layers has made (parts/stages/ties.h). Null: there are no other parts.
  std::function<ParameterPtr(const std::string& name, at::IntArrayRef shape)> distant;
  std::vector<ParameterPtr> followers;  // copies that another part's parameter of this rank stands for
};

// Makes a parameter of its own, with its initial values, and records it. `large`: in huge pages where there are any.
ParameterPtr make_parameter(LayerStore& store, const std::string& name, at::IntArrayRef shape, const Init& init,
                            bool large = false);
// Records one. Error(config) for a name that is there.
void record_parameter(LayerStore& store, const ParameterPtr& parameter);
// Error(config) for a size below zero.
void check_sizes(const std::string& name, at::IntArrayRef shape);

class PlainLayers : public Layers {
 public:
  explicit PlainLayers(std::shared_ptr<LayerStore> store, std::string prefix = "");

  std::shared_ptr<Layers> scope(const std::string& name) override;
  std::string name(const std::string& layer) const override;

  Layer linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options) override;
  Layer embedding(const std::string& name, int64_t rows, int64_t dim, const EmbeddingOptions& options) override;
  Layer conv2d(const std::string& name, int64_t in, int64_t out, int64_t kernel, const Conv2dOptions& options) override;
  Layer layer_norm(const std::string& name, int64_t dim, double eps) override;
  Layer batch_norm(const std::string& name, int64_t channels, double eps, double momentum) override;
  Layer dropout(const std::string& name, double p) override;
  std::unique_ptr<ParameterHandle> parameter(const std::string& name, at::IntArrayRef shape, const Init& init) override;

  at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target) override;
  at::Tensor target_rank(const at::Tensor& logits, const at::Tensor& target) override;
  at::Tensor gathered(const at::Tensor& output) override { return output; }

  at::Device device() const override { return store_->device; }
  at::ScalarType dtype() const override { return store_->dtype; }
  int64_t members() const override { return 0; }

 private:
  // The tensor "NAME" of this scope, made and recorded.
  ParameterPtr make(const std::string& name, at::IntArrayRef shape, const Init& init);
  ParameterPtr make_bias(const std::string& name, int64_t size, int64_t fan_in, const std::optional<Init>& init);
  ParameterPtr tied(const std::string& name, const std::string& to, at::IntArrayRef shape);
  at::Tensor make_buffer(const std::string& name, int64_t size, double value);

  std::shared_ptr<LayerStore> store_;
  std::string prefix_;
};

}  // namespace convoy
