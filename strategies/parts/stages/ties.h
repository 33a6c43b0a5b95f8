// Ties: tensors that several parts of a model use by one name, when the parts are on different ranks, on different devices of
// a rank, or different stages of a rank.
//
// The rank whose layer makes a tensor owns it. A rank that only uses it holds a copy under the same name: its first value is
// broadcast from the owner over a group of just the ranks that hold the tensor, its gradient is a part of a sum over that group
// (Parameter::partial), and all of them make the same update. Within a rank the first part that holds the tensor leads;
// further parts follow: theirs is the leader's value (the same memory on one device), and their gradients are added to the
// leader's in front of its last backward of a step.
// Call order: `watched` for each part in the model's order, whose construction follows; connect; then in each step refresh,
// and fold for each part. Threads: the rank's; fold in the one that runs that part.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/context.h"
#include "strategies/parts/gradient_collector.h"
#include "strategies/parts/model_part.h"

namespace convoy {

class Ties {
 public:
  Ties() = default;
  Ties(const Ties&) = delete;
  Ties& operator=(const Ties&) = delete;

  // The request for the part that is `stage` of the model, with layers whose ties to other parts are served here. This
  // object must live as long as the part is being built.
  PartRequest watched(PartRequest request, int stage);
  // Collective over the axis `pipeline`, once all parts stand. Error(config) for a tie to what no layer of an earlier stage
  // has made, or to another shape.
  void connect(const Context& context);

  // Followers take their leaders' values.
  void refresh();
  // What followers of parameters of this part have gathered goes to their leaders.
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
  struct Awaited {  // made by another rank
    ParameterPtr copy;
    int stage = 0;
  };
  ParameterPtr copy_of(size_t part, const std::string& name, at::IntArrayRef shape);
  ParameterPtr follow(size_t part, size_t leading_part, const ParameterPtr& leader);
  void collect();

  std::vector<Part> parts_;
  std::vector<Follower> followers_;
  std::vector<Awaited> awaited_;
  std::vector<std::unique_ptr<GradientCollector>> collectors_;  // of followers, by part
};

}  // namespace convoy
