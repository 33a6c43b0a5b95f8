// TiedParameters: parameters that several parts of a model use under one name. The parts are on different ranks, on
// different devices of a rank, or are different stages of a rank.
//
// The rank of the layer that creates a tensor owns it. A rank that only uses it has a copy of the same name. The owner
// broadcasts the first value over a group of exactly the ranks with the tensor. The gradient is a partial sum over that
// group (Parameter::partial). All of them make the same update.
// Within a rank the first part with the tensor is the leader, and further parts are followers. A follower has the
// leader's value (the same memory on one device). Its gradient is added to the leader's before the leader's last
// backward of a step.
// Call order: `with_ties` for each part in the model's order, before its construction; connect; then in each step
// refresh, and fold for each part.
// Threads: the rank's thread; fold in the thread that runs the part.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/context.h"
#include "strategies/common/model/model_part.h"
#include "strategies/common/step/gradient_collector.h"

namespace convoy {

class TiedParameters {
 public:
  TiedParameters() = default;

  // Returns the request for the part at `stage` of the model. Its layers can tie to layers of other parts. This object
  // must outlive the construction of the part.
  PartRequest with_ties(PartRequest request, int stage);
  // Collective over the axis `pipeline`, after all parts are built. Error(config) for a tie to a tensor that no layer
  // of an earlier stage has created, or with a different shape.
  void connect(const Context& context);

  // Copies leaders' values to their followers.
  void refresh();
  // Adds the gradients of followers to the leaders in this part.
  void fold(int part);

 private:
  struct Part {
    int stage = 0;
    std::shared_ptr<LayerStore> store;
  };
  struct Follower {
    ParameterPtr leader;
    ParameterPtr copy;
    size_t leading_part = 0;
    size_t part = 0;
  };
  struct Awaited {  // another rank makes it
    ParameterPtr copy;
    int stage = 0;
  };
  ParameterPtr copy_of(size_t part, const std::string& name, at::IntArrayRef shape);
  ParameterPtr follow(size_t part, size_t leading_part, const ParameterPtr& leader);
  void collect();

  std::vector<Part> parts_;
  std::vector<Follower> followers_;
  std::vector<Awaited> awaited_;
  std::vector<std::unique_ptr<GradientCollector>> collectors_;  // collectors of followers, by model part
};

}  // namespace convoy
