// Catalogue of losses, one entry each.

#include "core/losses/catalogue/catalogue.h"

#include "core/base/describe.h"

namespace convoy {
namespace {

Option label_smoothing() {
  return describe::real("label_smoothing", "fraction of the target that is spread evenly over all classes", 0)
      .between(0, 1);
}

}  // namespace

const std::vector<Entry>& loss_catalogue() {
  static const std::vector<Entry> entries{
      {"bce", "binary cross-entropy of logits with targets between 0 and 1", {label_smoothing()}},
      {"mse", "squared difference of prediction and target", {}},
      {"cross_entropy",
       "cross-entropy of logits over classes with the target's class",
       {label_smoothing(), describe::integer("ignore", "targets of this class are ignored (padding)")
                               .between(-2147483648.0, 2147483647)
                               .may_be_null()}},
      {"bpr",
       "Bayesian personalised ranking: the positive, a row's first item, should get a higher score than each other "
       "item",
       {}}};
  return entries;
}

}  // namespace convoy
