// GradientCollector: writes gradients to Parameter::gradient during the strategy's backward and tells when each is done.
//
// A hook in front of every parameter's gradient accumulator takes what autograd hands it: the first gradient of an
// accumulation is copied over what was there, later ones are added, so nothing has to be zeroed. The hook runs once per
// backward, after all uses of a parameter (tied ones too) have come in, in the thread that runs backward, and never for a
// parameter that took no part: `finish` zeroes those. Where a part of a gradient waits (Parameter::awaited), so does the rest.
// The nodes are held, since autograd keeps only weak references to them and hooks would vanish silently.
#pragma once
#include <torch/csrc/autograd/function.h>

#include <functional>
#include <memory>
#include <vector>

#include "strategies/parts/parameter.h"

namespace convoy {

class GradientCollector {
 public:
  // `ready` is called with the parameter's index.
  GradientCollector(std::vector<ParameterPtr> parameters, std::shared_ptr<const ForwardState> state,
                    std::function<void(int)> ready);
  ~GradientCollector();
  GradientCollector(const GradientCollector&) = delete;
  GradientCollector& operator=(const GradientCollector&) = delete;

  // The next gradients overwrite the old ones.
  void begin();
  // Zeroes the gradients that nothing was written to since `begin`.
  void finish();

 private:
  struct Shared;
  class Hook;
  std::shared_ptr<Shared> shared_;  // hooks may outlive this object, in graphs that somebody keeps
  std::vector<std::shared_ptr<torch::autograd::Node>> nodes_;
};

}  // namespace convoy
