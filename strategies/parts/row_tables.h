// What is done with all row tables of a rank alike (row_table.h).
#pragma once
#include <vector>

#include "strategies/parts/model_part.h"
#include "strategies/parts/parameter.h"

namespace convoy {

std::vector<ParameterPtr> tables_of(const std::vector<ModelPart*>& parts);
// An accumulation begins.
void begin_rows(const std::vector<ParameterPtr>& tables);
// The update is made of what this rank has touched.
void take_rows(const std::vector<ParameterPtr>& tables);

}  // namespace convoy
