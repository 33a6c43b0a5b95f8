// How far one tensor of a state is from the reference's: what core/compare.h finds and `convoy verify` prints. Plain data,
// without LibTorch.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/options.h"

namespace convoy {

struct TensorDifference {
  std::string kind;  // "parameter", "gradient", "buffer", "counter", or the name of a moment: "exp_avg"
  std::string name;  // canonical, with "@member" and "@replica" where they apply
  std::vector<int64_t> shape;
  double absolute = 0;      // max|a−b|
  double relative = 0;      // see core/compare.h; infinity with a fault, or where a value is not finite
  bool same_bytes = false;  // equal bit for bit
  std::string fault;        // why there is nothing to compare: missing on one side, or of another shape; else ""
};

// All tensors after `step` global batches; 0: the initial values.
struct StepDifferences {
  int64_t step = 0;
  std::vector<TensorDifference> tensors;
};

// Where one of the two made an update and the other did not.
StepDifferences update_of_one(int64_t step, const std::string& fault);

Json to_json(const StepDifferences& step);
StepDifferences step_differences_from_json(const Json& json);

}  // namespace convoy
