// What `convoy verify` makes of the differences: the table, and whether the two runs agree.
#pragma once
#include <string>
#include <vector>

#include "core/difference.h"

namespace convoy {

struct VerifyVerdict {
  bool agree = false;
  std::string table;  // lines with their ends: a row per tensor, a column per kind, the first step above the tolerance
  std::string text;   // one line or more, the last word
};

// `steps` in order, the first with the initial values (step 0). They agree when the initial values are equal bit for bit
// and no parameter, gradient, moment or counter is ever off by more than the tolerance. Buffers are shown and, after step 0,
// not held against anybody: batch norm's running figures are what each layout makes of its shares.
VerifyVerdict verdict_of(std::vector<StepDifferences> steps, double tolerance, const std::string& reference);

}  // namespace convoy
