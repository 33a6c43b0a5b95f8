// The end of every strategy's step: gradients → (norm, finite) → clipping → optimizer.
//
// All scalars are device tensors with a leading member dimension; nothing is read to the host. `finite` covers the loss
// and all gradients: an update with any that is not finite leaves parameters, moments and the count as they were.
// Call order: attach; then for each update begin → reduced(bucket) in order → finish. Threads: the rank's own.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/context.h"
#include "core/optim/optimizer.h"
#include "strategies/parts/flat_parameters.h"

namespace convoy {

struct UpdateFigures {
  at::Tensor norm;           // float64 (float32 on CUDA), []: of the mean gradient, before clipping
  at::Tensor finite;         // bool, []
  at::Tensor learning_rate;  // [1]; overwritten by the next update
};

class Update {
 public:
  // `every`: micro-steps an update. `cut`: groups over which ranks hold different pieces of the gradients, whose figures
  // are summed; none where every rank holds them whole.
  Update(const Context& context, int64_t every, std::vector<CommunicatorPtr> cut = {});

  // Takes the slots of `flat`, which must outlive the next attach. Moments of the layout before move along.
  void attach(const FlatParameters& flat);

  // Gradients are those of loss.sum ÷ nominal, summed over ranks and micro-steps; the header holds the loss' weight and
  // sum, alike summed.
  void begin(double nominal);
  void reduced(int bucket);
  UpdateFigures finish();

  // Moments of a parameter, in its shape.
  std::vector<std::pair<std::string, at::Tensor>> moments(size_t parameter);
  // Gradient of a parameter in the update before, in its shape: of the mean loss over all rows, before clipping. A copy;
  // undefined until there was an update. Valid until the next backward.
  at::Tensor gradient(size_t parameter) const;
  const at::Tensor& count() const { return count_; }  // updates applied, int64 [1]
  void restored();                                    // count() was written to from outside

 private:
  UpdateScalars scalars_on(at::Device device) const;

  Component optimizer_options_;
  std::unique_ptr<Optimizer> optimizer_;
  Schedule schedule_;
  std::vector<CommunicatorPtr> cut_;
  double clip_norm_ = 0;  // 0: no clipping
  const FlatParameters* flat_ = nullptr;
  int64_t updates_ = 0;  // host's copy of count_, for the schedule; counts attempts too
  at::Tensor count_;
  at::Tensor figures_;  // [2]: sum of squares, number of values that are not finite
  UpdateScalars scalars_;
  at::Tensor mean_scale_;  // what makes the gradients those of the mean loss; gradient_scale clips too
  bool updated_ = false;   // the flat buffer holds the gradients of an update
};

}  // namespace convoy
