#include "strategies/ensemble/stacked_storage.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "core/base/error.h"
#include "core/optim/catalogue/catalogue.h"
#include "core/optim/optimizer.h"
#include "core/tensors/init.h"
#include "strategies/common/model/visit_parts.h"

namespace convoy {
namespace {

constexpr int64_t alignment = 64;  // bytes: size of a cache line and of the widest vector register

at::Tensor reordered(const at::Tensor& tensor, const at::Tensor& order) {
  return tensor.index_select(0, order.to(tensor.device()));
}

// Replaces the parameter's memory; the leaf keeps its identity.
void show(Parameter& parameter, const at::Tensor& value, const at::Tensor& gradient) {
  parameter.value.set_data(value);
  parameter.gradient = gradient;
  parameter.written = false;
}

}  // namespace

StackedStorage::StackedStorage(const ModelPart& like, bool like_is_stack, const std::vector<MemberSettings>& rows,
                               const Component& optimizer)
    : rows_(int64_t(rows.size())) {
  at::NoGradGuard no_grad;
  lay_out(like.parameters(), like_is_stack, rows, optimizer);
  const auto options = at::TensorOptions(like.dtype()).device(like.device());
  for (Group& group : groups_) {
    group.values = at::zeros({rows_, group.elements}, options);
    group.gradients = at::zeros({rows_, group.elements}, options);
  }
  for (const NamedBuffer& buffer : like.buffers()) {
    std::vector<int64_t> shape = buffer.value.sizes().vec();
    if (!like_is_stack) shape.insert(shape.begin(), rows_);
    at::Tensor value = at::empty(shape, buffer.value.options().requires_grad(false));
    value.copy_(like_is_stack ? buffer.value : buffer.value.unsqueeze(0).expand(shape));
    buffers_.push_back({buffer.name, value});
  }
}

void StackedStorage::lay_out(const std::vector<ParameterPtr>& parameters, bool stacked,
                             const std::vector<MemberSettings>& rows, const Component& optimizer) {
  std::vector<OptimizerOptions> optimizers;
  for (const MemberSettings& member : rows) optimizers.push_back(optimizer_options(optimizer_of(optimizer, member)));
  for (const ParameterPtr& parameter : parameters) {
    Group group;
    for (const OptimizerOptions& own : optimizers) {
      const GroupSettings settings = group_settings(own, parameter->name);
      group.rate_factors.push_back(settings.learning_rate_factor);
      group.weight_decays.push_back(settings.weight_decay);
    }
    size_t index = 0;
    while (index < groups_.size() &&
           (groups_[index].rate_factors != group.rate_factors || groups_[index].weight_decays != group.weight_decays))
      ++index;
    if (index == groups_.size()) groups_.push_back(std::move(group));
    Tensor tensor{parameter->name, parameter->value.sizes().slice(stacked ? 1 : 0).vec(), index,
                  groups_[index].elements};
    const int64_t unit = alignment / int64_t(parameter->value.element_size());
    const int64_t elements = parameter->value.numel() / (stacked ? rows_ : 1);
    groups_[index].elements += (elements + unit - 1) / unit * unit;
    tensors_.push_back(std::move(tensor));
  }
}

void StackedStorage::fill(int64_t row, const Stack& stack, uint64_t seed) {
  for (size_t i = 0; i < stack.parameters.size(); ++i) {
    const StackedParameter& described = stack.parameters[i];
    const Tensor& tensor = tensors_[i];
    CONVOY_CHECK(tensor.name == described.parameter->name, tensor.name, " where ", described.parameter->name, " is");
    fill_initial(view(tensor, groups_[tensor.group].values, row), described.init, fans_of(described.shape), seed,
                 tensor.name);
  }
}

void StackedStorage::copy(int64_t row, const ModelPart& part) {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < tensors_.size(); ++i)
    view(tensors_[i], groups_[tensors_[i].group].values, row).copy_(part.parameters()[i]->value);
  for (size_t i = 0; i < buffers_.size(); ++i) buffers_[i].value.select(0, row).copy_(part.buffers()[i].value);
}

void StackedStorage::bind(ModelPart& stack, int64_t rows) const {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const Tensor& tensor = tensors_[i];
    const Group& group = groups_[tensor.group];
    Parameter& parameter = *stack.parameters()[i];
    std::vector<int64_t> shape = tensor.shape;
    shape.insert(shape.begin(), rows);
    const int64_t elements = view(tensor, group.values, 0).numel();
    const auto part = [&](const at::Tensor& flat) {
      return flat.narrow(0, 0, rows).narrow(1, tensor.offset, elements).view(shape);
    };
    show(parameter, part(group.values), part(group.gradients));
  }
  for (size_t i = 0; i < buffers_.size(); ++i) {
    at::Tensor buffer = stack.buffers()[i].value;
    buffer.set_data(buffers_[i].value.narrow(0, 0, rows));
  }
}

void StackedStorage::bind_row(ModelPart& part, int64_t row) const {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const Group& group = groups_[tensors_[i].group];
    CONVOY_CHECK(tensors_[i].name == part.parameters()[i]->name, tensors_[i].name, " where ",
                 part.parameters()[i]->name, " is");
    show(*part.parameters()[i], view(tensors_[i], group.values, row), view(tensors_[i], group.gradients, row));
  }
  for (size_t i = 0; i < buffers_.size(); ++i) {
    at::Tensor buffer = part.buffers()[i].value;
    buffer.set_data(buffers_[i].value.select(0, row));
  }
}

at::Tensor StackedStorage::view(const Tensor& tensor, const at::Tensor& flat, int64_t row) const {
  int64_t elements = 1;
  for (int64_t size : tensor.shape) elements *= size;
  return flat.select(0, row).narrow(0, tensor.offset, elements).view(tensor.shape);
}

void StackedStorage::reorder(const std::vector<int64_t>& order) {
  at::NoGradGuard no_grad;
  const at::Tensor index = at::tensor(order, at::kLong);
  const auto of_rows = [&](std::vector<double>& values) {
    const std::vector<double> before = values;
    for (size_t row = 0; row < order.size(); ++row) values[row] = before[size_t(order[row])];
  };
  for (Group& group : groups_) {
    group.values.copy_(reordered(group.values, index));
    group.gradients.copy_(reordered(group.gradients, index));
    of_rows(group.rate_factors);
    of_rows(group.weight_decays);
  }
  for (NamedBuffer& buffer : buffers_) buffer.value.copy_(reordered(buffer.value, index));
}

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
