#include "core/loss_check.h"

#include <ATen/ops/isfinite.h>

#include <limits>

#include "core/base/error.h"
#include "core/control/channel.h"
#include "core/rank_state/position.h"

namespace convoy {

void LossCheck::check_finite(const StepResult& result, int64_t step) {
  const at::Tensor& loss = result.metrics.front().sum;
  unchecked_.losses.emplace_back(step, result.updated ? loss : loss.clone());
  if (!result.updated) return;
  unchecked_.finite = result.finite;
  Unchecked update = std::exchange(unchecked_, {});
  if (!update.finite.defined()) return;
  // On CUDA, read the flag of the previous update, so that the host does not wait for the current step.
  if (update.finite.is_cuda()) {
    std::swap(update, pending_);
    if (!update.finite.defined()) return;
  }
  // Read a CPU flag directly: small models make thousands of steps per second.
  const at::Tensor& flag = update.finite;
  const bool finite = flag.is_cpu() && flag.numel() == 1 ? *flag.const_data_ptr<bool>() : flag.all().item<bool>();
  if (!finite) end_not_finite(update, step);
}

void LossCheck::end_not_finite(const Unchecked& update, int64_t step) {
  constexpr int64_t never = std::numeric_limits<int64_t>::max();
  int64_t first = never;
  for (const auto& [number, loss] : update.losses)
    if (first == never && !at::isfinite(loss).all().item<bool>()) first = number;
  const std::vector<std::string> first_steps =
      context_.channel->agree(str("nonfinite/", step), context_.rank, context_.size, std::to_string(first),
                              Timeout(static_cast<int64_t>(context_.config.launch.rendezvous * 1000)));
  int failing_rank = -1;
  int64_t when = never;
  for (size_t rank = 0; rank < first_steps.size(); ++rank) {
    const int64_t vote = std::stoll(first_steps[rank]);
    if (vote >= when) continue;
    when = vote;
    failing_rank = static_cast<int>(rank);
  }
  if (failing_rank < 0) when = update.losses.back().first;
  context_.state->step(when);  // the failure is reported at that step
  const std::string what = failing_rank < 0 ? "a gradient is not finite though every rank's loss is"
                                            : str("the loss of rank ", failing_rank, " is not finite");
  const std::string message = str(what, " at step ", when,
                                  "; the update was not applied and nothing was saved. Try a smaller optimizer.lr, "
                                  "optimizer.clip_norm, or look at the data of that step");
  if (failing_rank == context_.rank) throw Error(Failure::training, message);
  // A summed gradient does not show which rank it came from.
  if (failing_rank < 0 && context_.rank == 0) throw CommError(Failure::training, -1, message);
  throw CommError(Failure::peer_lost, failing_rank, message);
}

void LossCheck::check_weight(const MetricValue& loss, int64_t epoch, bool ends) {
  weighted_ = weighted_ || loss.weight != 0;
  const bool negative = loss.negative_weight < 0;
  if (!negative && (!ends || std::exchange(weighted_, false))) return;
  const RunConfig& config = context_.config;
  const std::string name =
      config.loss.name.empty() ? "the loss of model " + config.model.name : "the loss " + config.loss.name;
  const std::string message =
      negative ? str(name, " has batches with a weight below 0 in epoch ", epoch, ", ", loss.negative_weight,
                     " together: such a batch trains away from the targets; return the number of rows, or the sum of "
                     "their weights, as weight, and give data with weights of at least 0 (data.weight, "
                     "data.columns.weight)")
               : str(name, " had the weight 0 in every batch of epoch ", epoch,
                     ": nothing was trained; give data with weights above 0 (data.weight, data.columns.weight), do "
                     "not ignore all targets (loss.ignore), or return a weight above 0");
  if (context_.rank == 0) throw Error(Failure::config, message);
  throw CommError(Failure::peer_lost, 0, message);
}

}  // namespace convoy
