// Execution of a pipeline schedule by one rank or device.
//
// Sections: StageLink, evaluation in micro-batches, StageLoop, TiedParameters.
#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/batch.h"
#include "core/context.h"
#include "core/model_interface.h"
#include "strategies/common/model/model_part.h"
#include "strategies/common/step/gradient_collector.h"
#include "strategies/common/step/mesh_strategy.h"
#include "strategies/plans/schedule.h"

namespace convoy {

// --- StageLink: boundaries between stages ---

// Outputs of a stage that are inputs of the next one; they have no graph.
struct Activations {
  TensorList tensors;
  std::vector<char> trained;  // by tensor: a gradient comes back
};

// StageLink: carries activations forward and gradients back across the boundaries between stages.
//
// Call order, for each action of a schedule (strategies/plans/schedule.h): ahead, then the takes and gives of the
// action. Each item is given once and taken once.
// Threads: one link per executing thread. Ownership: do not change a given tensor; it may be in flight after the call.
// Failure: between ranks, CommError; between devices of a rank, the exception that stopped the other device's thread.
class StageLink {
 public:
  virtual ~StageLink() = default;

  // Announces action `index` of the schedule. The link may now start receives for the actions that follow.
  virtual void ahead(size_t index) = 0;
  // Sends the activations that are inputs of `stage`.
  virtual void give_activations(int stage, int micro, Activations activations) = 0;
  virtual Activations take_activations(int stage, int micro) = 0;
  // Sends the gradients of the trained outputs of `stage`, in order.
  virtual void give_gradients(int stage, int micro, TensorList gradients) = 0;
  virtual TensorList take_gradients(int stage, int micro) = 0;
};

// --- Evaluation in micro-batches: stages work on several at once, and memory is limited to that of a step ---

// Returns the batch's micro-batches. If it has none, divides its rows into at most `count` micro-batches, at least one,
// whose sizes differ by at most one row.
inline std::vector<Batch> evaluation_micro_batches(const Batch& batch, int64_t count) {
  if (!batch.micro.empty()) return batch.micro_batches();
  const int64_t micro_batches = std::max<int64_t>(1, std::min(count, batch.rows));
  std::vector<Batch> all;
  for (int64_t micro = 0; micro < micro_batches; ++micro) {
    const auto [begin, end] = share_of(batch.rows, micro, micro_batches);
    all.push_back(batch.slice(begin, end));
  }
  return all;
}

// --- StageLoop: stages of one thread ---

class TiedParameters;

// StageInputs: inputs of a stage that come from another stage. For autograd they are results of a trained operation;
// backward leaves their gradients here.
class StageInputs {
 public:
  // Takes activations without a graph. The tensors are no leaves, so a block may change them in place, like the outputs
  // of an earlier block.
  explicit StageInputs(const Activations& activations);

  const TensorList& tensors() const { return tensors_; }
  bool trained() const { return keeper_ != nullptr; }  // another stage needs gradients
  // Returns the gradients of the trained inputs after backward, in order; zeros if none arrived. Call it once.
  TensorList gradients();

 private:
  class Keeper;
  TensorList tensors_;
  std::shared_ptr<Keeper> keeper_;  // null: no input is trained
};

// A stage that this loop executes.
struct LocalStage {
  int stage = 0;
  int part = 0;  // index among the rank's parts
  ModelPart* model = nullptr;
};

// Arguments of StepRunner::train.
struct StepWork {
  const std::vector<Batch>& micro;
  int64_t step = 0;
  double nominal = 1;  // divisor of the losses in backward
  const StepRunner::Hooks& hooks;
};

// StageLoop: executes the actions of one rank, or of one device, on its stages of the model.
//
// Memory: the activations of each micro-batch between its forward and its backward. Outputs are not kept: backward
// needs only their graph. After the last forward of a step a backward may delay weight gradients; it then also keeps
// their inputs, at most as many bytes as parameters and gradients have.
// Threads: one thread per loop. Failure: as for ModelPart and the link.
class StageLoop {
 public:
  // `ties`: ties of the rank's parts; outlives the loop.
  StageLoop(std::vector<LocalStage> stages, TiedParameters& ties) : stages_(std::move(stages)), ties_(ties) {}

  void train(const std::vector<Action>& actions, const StepWork& work, StageLink& link);
  // Returns metrics summed over micro-batches; none if the last stage is elsewhere.
  std::vector<Metric> evaluate(const std::vector<Action>& actions, const std::vector<Batch>& micro, StageLink& link);

 private:
  // State of a micro-batch between its forward and its backward.
  struct Live {
    std::unique_ptr<StageInputs> inputs;  // null: first stage
    Roots roots;
    Loss loss;  // loss of the last stage
  };
  const LocalStage* find(int stage) const;  // null: another rank or device executes it
  const LocalStage& local_stage(int stage) const;
  void forward(const Action& action, const StepWork& work, StageLink& link);
  void backward(const Action& action, const StepWork& work, StageLink& link, bool draining);

  std::vector<LocalStage> stages_;
  TiedParameters& ties_;
  std::map<std::pair<int, int>, Live> live_;  // by stage and micro-batch
};

// --- TiedParameters: one tensor in several parts ---

// TiedParameters: parameters that several parts of a model use under one name. The parts are on different ranks, on
// different devices of a rank, or are different stages of a rank.
//
// The rank of the layer that creates a tensor owns it. A rank that only uses it has a copy of the same name. These
// ranks form a group. The owner broadcasts the first value to the group. Each rank's gradient is a term of a sum over
// the group (Parameter::partial), so all its ranks make the same update.
// Within a rank the first part with the tensor is the leader, and further parts are followers. A follower has the
// leader's value (the same memory on one device). Its gradient is added to the leader's before the leader's last
// backward of a step.
// Call order: `with_ties` for each part in the model's order, before its construction; connect; then in each step
// refresh, and fold for each part.
// Threads: the rank's thread; fold in the thread that runs the part.
class TiedParameters {
 public:
  TiedParameters() = default;

  // Returns the request for the part at `stage` of the model. Its layers can tie to layers of other parts. This object
  // must outlive the construction of the part.
  PartRequest with_ties(PartRequest request, int stage);
  // Collective over the axis `pipeline`, after all parts are built. Error(config) if no layer of an earlier stage
  // creates the tensor of a tie, or if its shape is different.
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
  struct Awaited {  // copy of a tensor that another rank creates
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
