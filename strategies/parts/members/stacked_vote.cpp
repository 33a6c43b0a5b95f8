#include "strategies/parts/members/stacked_vote.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include "core/losses/losses.h"
#include "core/metrics/ranking.h"
#include "strategies/parts/model_checks.h"
#include "strategies/parts/model_part.h"

namespace convoy {
namespace {

// A class for each row or position of the logits.
bool over_classes(const Examples& examples) {
  return examples.target.defined() && at::isIntegralType(examples.target.scalar_type(), true) &&
         examples.prediction.dim() == examples.target.dim() + 1 &&
         examples.prediction.sizes().slice(0, static_cast<size_t>(examples.target.dim())) == examples.target.sizes();
}

}  // namespace

Vote::Vote(ModelPtr model, std::shared_ptr<const LossFunction> loss, const std::string& loss_name, int64_t members,
           std::shared_ptr<Layers> plain, CommunicatorPtr world)
    : model_(std::move(model)),
      loss_(std::move(loss)),
      scores_(loss_name == "bce" || loss_name == "bpr"),
      members_(members),
      plain_(std::move(plain)),
      world_(std::move(world)) {}

std::vector<Metric> Vote::judged(const at::Tensor& output, const Batch& batch, const std::string& prefix,
                                 bool with_loss) const {
  const TensorList outputs{output};
  std::vector<Metric> metrics;
  if (with_loss)
    metrics.push_back(loss_metric(
        checked_loss((*loss_)(examples_of_new_items(model_->examples(outputs, batch), batch), *plain_), *plain_)));
  for (Metric& metric : checked_metrics(model_->metrics(scores_of_new_items(outputs, batch), batch, *plain_), *plain_))
    metrics.push_back(std::move(metric));
  for (Metric& metric : metrics) {
    metric.name = prefix + metric.name;
    // All ranks hold the same sums.
    if (world_->rank() == 0) continue;
    metric.sum = at::zeros_like(metric.sum);
    metric.weight = at::zeros_like(metric.weight);
  }
  return metrics;
}

std::vector<Metric> Vote::operator()(const TensorList& outputs, const Batch& batch) const {
  if (outputs.size() != 1) return {};
  at::NoGradGuard no_grad;
  const at::Tensor each = at_least_float(outputs.front());
  const bool classes = over_classes(model_->examples({each.select(0, 0)}, batch));
  const auto over_all = [&](at::Tensor sum) {
    world_->all_reduce(sum, ReduceOp::sum, {"votes", {}})->wait();
    return sum;
  };
  if (!classes) {
    const at::Tensor mean = over_all((scores_ ? each.sigmoid() : each).sum(0)) / static_cast<double>(members_);
    return judged(scores_ ? mean.logit(1e-7) : mean, batch, "mean_", true);
  }
  const at::Tensor votes = at::zeros_like(each).scatter_(-1, each.argmax(-1, true), 1).sum(0);
  const at::Tensor sums = over_all(at::stack({each.softmax(-1).sum(0), votes}));
  const at::Tensor mean = sums[0] / static_cast<double>(members_);
  std::vector<Metric> metrics = judged(mean.clamp_min(1e-30).log(), batch, "mean_", true);
  for (Metric& metric : judged(sums[1] + mean, batch, "vote_", false)) metrics.push_back(std::move(metric));
  return metrics;
}

}  // namespace convoy
