// Differences between the tensors of a state and of the reference's state. core/tensors/compare.h computes them and
// `convoy verify` prints them. Plain data, without LibTorch.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/json.h"

namespace convoy {

struct TensorDifference {
  std::string kind;  // "parameter", "gradient", "buffer", "counter", or the name of a moment: "exp_avg"
  std::string name;  // canonical, with "@member" and "@replica" where they apply
  std::vector<int64_t> shape;
  double absolute = 0;      // max|a−b|
  double relative = 0;      // see core/tensors/compare.h; infinity with a fault or a non-finite value
  bool same_bytes = false;  // bitwise equal
  std::string fault;        // why the tensors cannot be compared: one is missing, or the shapes differ; otherwise ""
};

// Differences of all tensors after `step` global batches; 0: the initial values.
struct StepDifferences {
  int64_t step = 0;
  std::vector<TensorDifference> tensors;
};

// Result for a step in which only one of the two runs made an update.
StepDifferences update_in_one_run(int64_t step, const std::string& fault);

Json to_json(const StepDifferences& step);
StepDifferences step_differences_from_json(const Json& json);

}  // namespace convoy
