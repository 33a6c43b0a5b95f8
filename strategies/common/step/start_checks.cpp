#include "strategies/common/step/start_checks.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <map>
#include <set>
#include <utility>

#include "core/base/hash.h"
#include "core/base/log.h"
#include "core/model_checks.h"
#include "core/optim/catalogue/catalogue.h"
#include "strategies/common/layers/sparse_table.h"

namespace convoy {

// --- Warnings ---

std::vector<ParameterPtr> tables_of(const std::vector<ModelPart*>& parts) {
  std::vector<ParameterPtr> all;
  for (const ModelPart* part : parts) all.insert(all.end(), part->tables().begin(), part->tables().end());
  return all;
}

void warn_if_lazy_is_unused(const Context& context, const std::vector<ParameterPtr>& tables) {
  if (context.rank != 0 || !tables.empty() || !optimizer_options(context.config.optimizer).lazy) return;
  log::warning(
      "optimizer.lazy: true has no effect: it applies to sparse embeddings, and this run has none; set model.rows: "
      "true, or leave it out");
}

void GradientCoverage::updated(const std::vector<ModelPart*>& parts) {
  if (std::exchange(done_, true)) return;
  std::set<std::string> reached, missing;
  for (const ModelPart* part : parts)
    for (const ParameterPtr& parameter : part->parameters())
      (parameter->reached ? reached : missing).insert(parameter->name);
  for (const std::string& name : reached) missing.erase(name);
  warn_without_gradient(channel_, rank_, size_, missing, reached);
}

// --- Equal parameters and values ---

namespace {

// Shape of the whole tensor, also for a sharded embedding.
std::vector<int64_t> shape_of(const Parameter& parameter) {
  return parameter.table ? parameter.table->shape() : parameter.value.sizes().vec();
}

std::vector<std::string> description_of(const std::vector<ModelPart*>& parts, bool shapes) {
  std::vector<std::string> lines;
  const auto add = [&](const std::string& name, const at::Tensor& value, at::IntArrayRef sizes) {
    lines.push_back(shapes ? convoy::str(name, " ", sizes, " ", value.dtype().name())
                           : convoy::str(name, " ", value.dim(), "-dimensional ", value.dtype().name()));
  };
  for (const ModelPart* part : parts) {
    for (const auto* list : {&part->parameters(), &part->tables(), &part->frozen()})
      for (const ParameterPtr& parameter : *list) add(parameter->name, parameter->value, shape_of(*parameter));
    for (const NamedBuffer& buffer : part->buffers()) add(buffer.name, buffer.value, buffer.value.sizes());
  }
  return lines;
}

}  // namespace

void check_equal_parameters(const Context& context, const std::vector<ModelPart*>& parts, int number) {
  const std::string call = convoy::str("parameters/", number);
  const std::string advice = "all ranks must build the same model: look for what its constructor takes from the host";
  check_equal_lines("data", context, description_of(parts, true), call, advice);
  // Layers are sharded along this axis, so local shapes differ.
  check_equal_lines("tensor", context, description_of(parts, false), call, advice);
}

void check_equal_values(const Context& context, const std::vector<ParameterPtr>& parameters, int number) {
  if (context.axis("data")->size() == 1) return;  // hashing reads all values
  std::vector<std::string> lines;
  for (const ParameterPtr& parameter : parameters) {
    const at::Tensor value = parameter->value.detach().cpu().contiguous();
    lines.push_back(
        convoy::str(parameter->name, " with values of hash ", hash_hex(value.data_ptr(), size_t(value.nbytes()))));
  }
  check_equal_lines("data", context, lines, convoy::str("values/", number),
                    "all ranks make equal updates, so the program changed it on some ranks only: make the same change "
                    "on every rank");
}

namespace {

// One message for each dtype.
void share_buffers(const std::vector<NamedBuffer>& buffers, Communicator& group) {
  if (group.size() == 1) return;
  std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype;
  for (const NamedBuffer& buffer : buffers) by_dtype[buffer.value.scalar_type()].push_back(buffer.value);
  for (const auto& entry : by_dtype) {
    std::vector<at::Tensor> pieces;
    for (const at::Tensor& tensor : entry.second) pieces.push_back(tensor.reshape({-1}));
    const at::Tensor flat = at::cat(pieces);
    group.broadcast(flat, 0, {convoy::str("first buffers of ", flat.dtype().name()), {}})->wait();
    int64_t offset = 0;
    for (at::Tensor tensor : entry.second) {
      tensor.copy_(flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
      offset += tensor.numel();
    }
  }
}

}  // namespace

void share_foreign_values(const std::vector<ModelPart*>& parts, Communicator& group) {
  at::NoGradGuard no_grad;
  for (const ModelPart* part : parts)
    for (const auto* list : {&part->parameters(), &part->frozen()})
      for (const ParameterPtr& parameter : *list)
        if (parameter->foreign) group.broadcast(parameter->value.detach(), 0, {parameter->name, {}})->wait();
  for (const ModelPart* part : parts) share_buffers(part->buffers(), group);
}

}  // namespace convoy
