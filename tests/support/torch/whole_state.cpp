#include "tests/support/torch/whole_state.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "core/base/error.h"
#include "core/state.h"

namespace convoy::testing {

void WholeState::add(const StateEntry& entry) {
  if (entry.kind == StateKind::buffer && !entry.owner) return;
  at::NoGradGuard no_grad;
  const at::Tensor part = entry.tensor.detach().cpu().contiguous();
  const Piece all = Piece::whole(entry.piece.global_shape);
  std::lock_guard<std::mutex> lock(mutex_);
  Gathered& gathered = gathered_[entry.key()];
  if (!gathered.value.defined()) {
    gathered.value = at::zeros(all.global_shape, part.options());
    gathered.seen = at::zeros(all.global_shape, at::kBool);
  }
  at::Tensor value = gathered.value.clone(), here = at::zeros_like(gathered.seen);
  copy_overlap(all, value, entry.piece, part);
  copy_overlap(all, here, entry.piece, at::ones(part.sizes(), at::kBool));
  const at::Tensor twice = here.logical_and(gathered.seen);
  CONVOY_CHECK(value.masked_select(twice).equal(gathered.value.masked_select(twice)), entry.key(),
               " differs between ranks");
  gathered.value = value;
  gathered.seen = gathered.seen.logical_or(here);
}

std::map<std::string, at::Tensor> WholeState::tensors() const {
  std::map<std::string, at::Tensor> whole;
  for (const auto& [key, gathered] : gathered_) {
    CONVOY_CHECK(gathered.seen.all().item<bool>(), "the ranks together do not hold all of ", key);
    whole.emplace(key, gathered.value);
  }
  return whole;
}

}  // namespace convoy::testing
