// GradientCollector: writes gradients to Parameter::gradient during the strategy's backward and reports each complete
// gradient.
//
// A hook before every parameter's gradient accumulator takes the gradient from autograd. The first gradient of an
// accumulation overwrites and later ones are added, so nothing must be zeroed. The hook runs once per backward, after
// all uses of a parameter (tied ones too), in the thread of backward. It never runs for a parameter without a gradient;
// `finish` zeroes those gradients. If a product of a gradient waits (Parameter::awaited), the whole gradient waits.
// The collector keeps the nodes alive: autograd has only weak references, so hooks would be lost without an error.
#pragma once
#include <torch/csrc/autograd/function.h>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/model_interface.h"
#include "core/optim/optimizer.h"
#include "strategies/common/layers/parameter.h"

namespace convoy {

// Parameters that one fused optimizer loop may update together.
struct ParameterGroup {
  GroupSettings group;
  bool counted = true;
  std::vector<int> indices;  // into the parameters
};

// Returns groups of `listed` by learning-rate factor, weight decay and `counted`. Groups and their parameters keep the
// order of `listed`.
std::vector<ParameterGroup> parameter_groups(const std::vector<ParameterPtr>& parameters,
                                             const std::vector<int>& listed, const Component& optimizer);

// BlockHooks: actions around the blocks of a part, such as gathering and freeing parameters.
//
// Call order, forward: before_forward and after_forward for each block in order, with a graph (GradMode) or without.
// Backward of one forward: begin_backward; backward_at with decreasing boundaries; end_backward. Boundary i is before
// block i: at its call, blocks from i on are differentiated and block i−1 is next. Boundaries without gradients are
// left out. An implementation that must act equally on every rank catches up on those.
// Threads: the thread of the forward or backward.
class BlockHooks {
 public:
  virtual ~BlockHooks() = default;
  virtual void before_forward(int64_t block) = 0;  // index within the part
  virtual void after_forward(int64_t block) = 0;
  virtual void begin_backward() = 0;
  virtual void backward_at(int64_t boundary) = 0;
  virtual void end_backward() = 0;
};

// Returns the same values. Backward calls `reached` when the gradients of all of them exist, before the nodes that
// computed them. It is not called if none requires a gradient.
TensorList with_boundary(const TensorList& values, std::function<void()> reached);

class GradientCollector {
 public:
  // `ready` is called with the parameter's index when its gradient is complete. `open` is called when a gradient
  // arrives and Parameter::gradient is undefined; it sets Parameter::gradient. Null: that case is an error.
  GradientCollector(std::vector<ParameterPtr> parameters, StatePtr state, std::function<void(int)> ready,
                    std::function<void(int)> open = nullptr);
  ~GradientCollector();
  GradientCollector(const GradientCollector&) = delete;
  GradientCollector& operator=(const GradientCollector&) = delete;

  // Watches each parameter's gradient accumulator. Call it again after `set_` of a parameter: LibTorch then makes a new
  // one, which the graph of a forward may use already.
  void watch();
  // Makes the next gradients overwrite the old ones.
  void begin();
  // Zeroes gradients without a write since `begin`.
  void finish();

 private:
  struct Shared;
  class Hook;
  std::shared_ptr<Shared> shared_;  // hooks may outlive this object, in graphs that callers keep
  std::vector<std::shared_ptr<torch::autograd::Node>> nodes_;
};

}  // namespace convoy
