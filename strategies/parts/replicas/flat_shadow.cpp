#include "strategies/parts/replicas/flat_shadow.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include "strategies/parts/visit_parts.h"

namespace convoy {

void FlatShadow::attach(const FlatParameters* before, const FlatParameters& flat,
                        const std::function<bool(int bucket)>& wanted) {
  at::NoGradGuard no_grad;
  FlatShadow made;
  for (int bucket = 0; bucket < static_cast<int>(flat.buckets().size()); ++bucket)
    made.buckets_.push_back(wanted(bucket) ? at::zeros_like(flat.bucket_values(bucket)) : at::Tensor());
  for (size_t parameter = 0; before != nullptr && parameter < flat.parameters().size(); ++parameter) {
    const at::Tensor from = view(*before, parameter), to = made.view(flat, parameter);
    if (from.defined() && to.defined()) to.copy_(from);
  }
  *this = std::move(made);
}

bool FlatShadow::has(int bucket) const {
  return static_cast<size_t>(bucket) < buckets_.size() && buckets_[static_cast<size_t>(bucket)].defined();
}

at::Tensor FlatShadow::view(const FlatParameters& flat, size_t parameter) const {
  const FlatParameters::Place& place = flat.place(parameter);
  if (!has(place.bucket)) return {};
  const at::Tensor& value = flat.parameters()[parameter]->value;
  const int64_t begin = flat.buckets()[static_cast<size_t>(place.bucket)].begin;
  return buckets_[static_cast<size_t>(place.bucket)].narrow(0, place.offset - begin, value.numel()).view(value.sizes());
}

void visit_beside(const Parameter& parameter, StateKind kind, const std::string& moment, const at::Tensor& tensor,
                  int replica, bool owner, const StateVisitor& visit) {
  visit_range(parameter, kind, moment, tensor.view({-1}), 0, tensor.numel(), [&](StateEntry entry) {
    entry.replica = replica;
    entry.owner = entry.owner && owner;
    visit(entry);
  });
}

}  // namespace convoy
