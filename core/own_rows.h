// OwnRows: how the trainer evaluates members that leave folds out on these folds, and what early stopping of members needs.
//
// Role: a Strategy may be an OwnRows too; the trainer looks for it. Call order, threads, failure: as Strategy::evaluate.
#pragma once
#include <vector>

#include "core/batch.h"
#include "core/member_draw.h"
#include "core/model_interface.h"

namespace convoy {

class OwnRows {
 public:
  virtual ~OwnRows() = default;

  // Of all members of this rank, those too whose training has ended.
  virtual std::vector<MemberDraw> draws() const = 0;
  // Loss and the model's metrics of each of them on rows of its own: tensors are [members, rows, …]. In the form in which
  // `evaluate` gives members' metrics; no gradient, no dropout.
  virtual std::vector<Metric> evaluate_own(const Batch& batch) = 0;
  // Called after Strategy::state_restored where figures of later evaluations cannot be compared with those before the
  // checkpoint: the data, the loss or the watched metric differ. Early stopping starts anew.
  virtual void figures_changed() = 0;
};

}  // namespace convoy
