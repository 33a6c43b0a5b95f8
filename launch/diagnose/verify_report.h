// Report of `convoy verify`: the table of differences, and whether the two runs agree.
#pragma once
#include <string>
#include <vector>

#include "core/base/difference.h"

namespace convoy {

struct VerifyResult {
  bool agree = false;
  std::string table;  // a row per tensor, a column per kind, the first step above the tolerance
  std::string text;   // one line or more: the result
};

// `steps` in order; the first has the initial values (step 0). The runs agree if the initial values are equal bit for
// bit and every parameter, gradient, moment and counter stays within the tolerance. Buffers are shown but not compared
// after step 0: running statistics of batch norm depend on the layout's shares.
VerifyResult verify_result(std::vector<StepDifferences> steps, double tolerance, const std::string& reference);

}  // namespace convoy
