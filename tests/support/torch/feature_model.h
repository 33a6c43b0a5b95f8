// Base of small test models: from the field `features` to a first output, which is compared with the field `target`.
#pragma once
#include <string>
#include <vector>

#include "core/base/text.h"
#include "core/model.h"

namespace convoy::testing {

class FeatureModel : public Model {
 public:
  std::string block_name(int64_t index) const override { return convoy::str("blocks.", index); }
  TensorList inputs(const Batch& batch) const override { return {batch.at("features")}; }
  Examples examples(const TensorList& outputs, const Batch& batch) const override {
    return {outputs[0], batch.at("target"), {}};
  }
  std::string default_loss() const override { return "cross_entropy"; }
  std::vector<Metric> metrics(const TensorList&, const Batch&, Layers&) const override { return {}; }
};

}  // namespace convoy::testing
