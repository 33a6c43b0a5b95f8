// The losses, described.
#include "core/describe.h"
#include "core/losses/entries.h"

namespace convoy {
namespace {

Option label_smoothing() {
  return describe::real("label_smoothing", "share of the target spread evenly over all classes", 0)
      .at_least(0)
      .at_most(1);
}

}  // namespace

Entry bce_entry() {
  return {"bce", "binary cross-entropy of logits with targets between 0 and 1", {label_smoothing()}};
}

Entry mse_entry() { return {"mse", "squared difference of prediction and target", {}}; }

Entry cross_entropy_entry() {
  return {"cross_entropy",
          "cross-entropy of logits over classes with the target's class",
          {label_smoothing(), describe::integer("ignore", "targets of this class count for nothing (padding)")
                                  .at_least(-2147483648.0)
                                  .at_most(2147483647)
                                  .may_be_null()}};
}

Entry bpr_entry() {
  return {
      "bpr", "ranking (Bayesian personalised): each row's first score, the positive's, above each of the others", {}};
}

}  // namespace convoy
