// What rows to train on are good for beside that.
#pragma once
#include "core/data/dataset.h"

namespace convoy {

// Whether rows to train on can be evaluated on as well: not so where an evaluation row is another thing, such as a user with
// candidates. Gathers a row of each split.
bool trained_rows_evaluate(const Dataset& data);

}  // namespace convoy
