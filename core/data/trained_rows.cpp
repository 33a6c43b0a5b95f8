#include "core/data/trained_rows.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

namespace convoy {

bool trained_rows_evaluate(const Dataset& data) {
  if (data.size(Split::evaluate) == 0) return data.instances_per_row() == 1;
  const at::Tensor first = at::zeros({1}, at::kLong);
  const Batch trained = data.gather_once(Split::train, first, 0),
              evaluated = data.gather_once(Split::evaluate, first, 0);
  bool same = trained.tensors.size() == evaluated.tensors.size();
  for (size_t i = 0; same && i < trained.tensors.size(); ++i)
    same = trained.tensors[i].first == evaluated.tensors[i].first &&
           trained.tensors[i].second.sizes() == evaluated.tensors[i].second.sizes();
  return same;
}

}  // namespace convoy
