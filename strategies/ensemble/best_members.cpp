#include "strategies/ensemble/best_members.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "strategies/common/model/visit_parts.h"

namespace convoy {
namespace {

// Tensors of a member, as views of its row.
std::vector<std::pair<std::string, at::Tensor>> tensors_in_row(const StackedStorage& storage, int64_t row) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const StackedStorage::Tensor& tensor : storage.tensors())
    tensors.emplace_back(tensor.name, storage.view(tensor, storage.groups()[tensor.group].values, row));
  for (const NamedBuffer& buffer : storage.buffers()) tensors.emplace_back(buffer.name, buffer.value.select(0, row));
  return tensors;
}

}  // namespace

BestMembers::BestMembers(const StackedStorage& storage, const std::vector<MemberSettings>& rows) {
  for (size_t row = 0; row < rows.size(); ++row) {
    if (rows[row].patience == 0) continue;
    Copy& copy = copies_[rows[row].number];
    for (const auto& [name, tensor] : tensors_in_row(storage, int64_t(row)))
      copy.tensors.emplace_back(name, at::zeros_like(tensor, at::MemoryFormat::Contiguous));
    copy.kept = at::zeros({1}, at::kBool);
  }
}

void BestMembers::keep(const StackedStorage& storage, int64_t row, int64_t member) {
  const auto found = copies_.find(member);
  if (found == copies_.end()) return;
  at::NoGradGuard no_grad;
  const auto now = tensors_in_row(storage, row);
  for (size_t i = 0; i < now.size(); ++i) found->second.tensors[i].second.copy_(now[i].second);
  found->second.kept.fill_(true);
}

void BestMembers::restore(const StackedStorage& storage, int64_t row, int64_t member) const {
  const auto found = copies_.find(member);
  if (found == copies_.end() || !found->second.kept.item<bool>()) return;
  at::NoGradGuard no_grad;
  const auto now = tensors_in_row(storage, row);
  for (size_t i = 0; i < now.size(); ++i) now[i].second.copy_(found->second.tensors[i].second);
}

void BestMembers::reset() {
  for (auto& [member, copy] : copies_) copy.kept.fill_(false);
}

void BestMembers::visit_state(const StateVisitor& visit) const {
  for (const auto& [member, copy] : copies_) {
    const auto show = [&, number = int(member)](const std::string& name, const at::Tensor& tensor) {
      StateEntry entry = state_entry(name, StateKind::counter, tensor);
      entry.member = number;
      visit(entry);
    };
    for (const auto& [name, tensor] : copy.tensors) show("early_stop_weights." + name, tensor);
    show("early_stop_kept", copy.kept);
  }
}

}  // namespace convoy
