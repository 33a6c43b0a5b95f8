// Checks of the results of a model and its loss, so that an author's mistake or a divergence ends with a clear error.
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/batch.h"
#include "core/context.h"
#include "core/metrics/accumulator.h"
#include "core/model_interface.h"
#include "core/strategy.h"

namespace convoy {

// The next functions check shapes and dtypes only; nothing is read from a device. Failure: Error(training).

// Checks a block's output: at least one tensor, all of them defined.
void check_outputs(const TensorList& outputs);
void check_examples(const Examples& examples);

// Checks that sum and weight are real numbers of shape [], or [members] if the layers have members. Returns a weight
// without graph.
Loss checked_loss(Loss loss, const Layers& layers);
// Checks that a training loss of `rows` rows has a graph or weight zero.
void check_graph(const Loss& loss, int64_t rows);

// Returns the metrics as float64 on the layers' device. Names must be unique, consist of letters, digits and _ - . @ /
// + % :, and differ from names that convoy uses ("loss", "out_of_fold_…"). Shapes are those of a loss.
std::vector<Metric> checked_metrics(std::vector<Metric> metrics, const Layers& layers);

// Finds calls of LibTorch's batch norm, such as torch::batch_norm in a block, with statistics of this rank's share.
// The planner finds modules; functions show only when they run.
//
// Layers::batch_norm of synchronised ranks does not call LibTorch's. Instance norm does, with statistics of each row:
// such a call counts only if it updates running statistics, by which evaluation normalises.
// Returns the result of `forward` of a block under batch_norm: sync. Throws Error(config) if it makes such a call.
TensorList refuse_local_batch_norm(const std::string& block, const std::function<TensorList()>& forward);

// Compares `lines`, one for each parameter, of the ranks along an axis of the mesh. Throws Error(disagreement) with the
// first one that differs and both ranks' versions. Collective over the control channel. `call`: a text that no other
// call has; `advice`: end of the message.
void check_equal_lines(const std::string& axis, const Context& context, const std::vector<std::string>& lines,
                       const std::string& call, const std::string& advice);

// Warns on rank 0 about parameters that are `missing` on some rank and `reached` by a gradient on none. Every rank
// calls it once. The ranks compare over the control channel, without waiting.
void warn_without_gradient(const std::shared_ptr<Channel>& channel, int rank, int size,
                           const std::set<std::string>& missing, const std::set<std::string>& reached);

// Advice after a value that is not finite: keys of the file, or the API for a program of the user.
std::string divergence_advice(const RunConfig& config);

// LossCheck: ends the training if a loss or gradient is not finite, or if the losses of an epoch have no weight.
//
// Threads: one rank's thread. Every rank makes the same calls in the same order. Failure: every rank fails at the same
// step. One rank throws Error(training) or Error(config) with the reason; the others throw CommError, which names this
// rank.
class LossCheck {
 public:
  explicit LossCheck(const Context& context) : context_(context) {}

  // Call it after each step. The flag of the result is equal on all ranks. If it is false, the ranks exchange the steps
  // of their losses over the control channel, so that the error names one rank.
  void check_finite(const StepResult& result, int64_t step);

  // Call it before the first step. `within_epoch`: another process began the epoch; its batches count as weighted.
  void begin_weights(bool within_epoch) { weighted_ = within_epoch; }
  // Checks the weight of the loss. `loss`: sum over all ranks since the last call. `ends`: the epoch or the run ends
  // here. A batch may have no weight. An epoch without weight is an error, because it trains nothing. A batch of
  // negative weight is an error, whatever the other batches weigh, because it reverses the gradients.
  void check_weight(const MetricValue& loss, int64_t epoch, bool ends);

 private:
  // Values that later decide if an update was finite: the flag, and this rank's losses of the accumulated steps.
  struct Unchecked {
    at::Tensor finite;
    std::vector<std::pair<int64_t, at::Tensor>> losses;  // by step
  };
  [[noreturn]] void end_not_finite(const Unchecked& update, int64_t step);

  const Context& context_;
  Unchecked unchecked_;    // collected since the last update
  Unchecked pending_;      // losses of the previous update, on CUDA
  bool weighted_ = false;  // the loss had weight in this epoch
};

}  // namespace convoy
