// StackedLayers: layers of K members of an ensemble, run as one batched product; activations are [K, B, …].
//
// Parameters are [K, …] tensors, member first, without memory at first. A StackedStorage provides memory and the values
// that each member would have alone (core/tensors/init.h, with the member's seed). Random draws are keyed in the same
// way. Row k of a tensor is the tensor of the same name in a run of member k alone. Convolutions and batch norms run
// member by member, or grouped: one convolution with K times the channels.
#pragma once
#include <ATen/core/Tensor.h>
#include <memory>
#include <string>
#include <vector>

#include "strategies/common/layers/default_layers.h"
#include "strategies/common/layers/parameter.h"

namespace convoy {

struct StackedParameter {
  ParameterPtr parameter;      // value and gradient [K, …]
  std::vector<int64_t> shape;  // shape of one member's tensor
  Init init;
};

// Stack: state shared by the layers of one stack.
struct Stack {
  std::vector<uint64_t> seeds;  // seeds of the members
  bool grouped = false;         // convolutions and batch norms are grouped
  bool convolves = false;       // the model has a convolution
  std::vector<StackedParameter> parameters;
  int64_t members() const { return int64_t(seeds.size()); }
};

class StackedLayers : public DefaultLayers {
 public:
  StackedLayers(std::shared_ptr<LayerStore> store, std::shared_ptr<Stack> stack, std::string prefix = "");

  std::shared_ptr<Layers> scope(const std::string& name) override;

  Layer linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options) override;
  Layer embedding(const std::string& name, int64_t rows, int64_t dim, const EmbeddingOptions& options) override;
  Layer conv2d(const std::string& name, int64_t in, int64_t out, int64_t kernel, const Conv2dOptions& options) override;
  Layer layer_norm(const std::string& name, int64_t dim, double eps) override;
  Layer rms_norm(const std::string& name, int64_t dim, double eps) override;
  Layer batch_norm(const std::string& name, int64_t channels, double eps, double momentum) override;
  Layer dropout(const std::string& name, double p) override;

  int64_t members() const override { return stack_->members(); }

 private:
  ParameterPtr make(const std::string& name, at::IntArrayRef shape, const Init& init) override;

  std::shared_ptr<Stack> stack_;
};

}  // namespace convoy
