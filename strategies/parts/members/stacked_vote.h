// What an ensemble says as one: its members' mean and, over classes, their majority, judged by the model's own metrics.
//
//   classes (cross-entropy's logits): mean of probabilities, and one vote each for the likeliest class, ties by that mean
//   marks and scores (bce, bpr):      mean of their sigmoids
//   numbers (mse):                    mean
//
// Sent per evaluation batch: one all-reduce of the sums over members, which may be on several ranks.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "core/model_interface.h"

namespace convoy {

class Vote {
 public:
  // `members` over all ranks; `loss_name` as configured or the model's own; `plain`: layers without members.
  Vote(ModelPtr model, std::shared_ptr<const LossFunction> loss, const std::string& loss_name, int64_t members,
       std::shared_ptr<Layers> plain, CommunicatorPtr world);

  // outputs of this rank's members [members here, …]; the batch that all of them saw. "mean_loss", "mean_X" for each of the
  // model's metrics X and, over classes, "vote_X"; zeros on ranks but the first. Nothing for a model of several outputs.
  std::vector<Metric> operator()(const TensorList& outputs, const Batch& batch) const;

 private:
  std::vector<Metric> judged(const at::Tensor& output, const Batch& batch, const std::string& prefix,
                             bool with_loss) const;

  ModelPtr model_;
  std::shared_ptr<const LossFunction> loss_;
  bool scores_;  // whose sigmoid is a probability
  int64_t members_;
  std::shared_ptr<Layers> plain_;
  CommunicatorPtr world_;
};

}  // namespace convoy
