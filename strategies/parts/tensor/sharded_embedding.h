// An embedding whose rows the ranks of a tensor group share out.
#pragma once
#include "strategies/parts/tensor/tensor_group.h"

namespace convoy {

// ids [.., B, …] int64 → [.., B, …, dim], whole: each rank looks up the rows that it has, and the sum is all of them.
// `rows` is the cut of the table. Error(training) for an id that is no row of the table (checked on the CPU).
Layer make_cut_embedding(const LayerPlace& place, const ParameterPtr& weight, const DimensionCut& rows);

// Numbers in [0, whole), as positions in this rank's share.
struct OwnPositions {
  at::Tensor index;    // within the share; any of it where the number is another rank's
  at::Tensor foreign;  // bool
};
// Error(training) for one that is not in [0, whole): checked on the CPU. `what` names them in its message.
OwnPositions own_positions(const at::Tensor& numbers, const DimensionCut& cut, const std::string& what);

}  // namespace convoy
