#include "strategies/common/step/start_checks.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <map>
#include <sstream>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/random_keys.h"
#include "core/control/channel.h"
#include "strategies/common/layers/sparse_table.h"

namespace convoy {
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

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string line_or_none(const std::vector<std::string>& lines, size_t index) {
  return index < lines.size() ? lines[index] : "no parameter";
}

// Throws if the ranks along an axis of the mesh have different `lines`, one for each parameter. `call` is another text
// for each call, and `advice` the end of the message.
void check_equal_along(const std::string& axis, const Context& context, const std::vector<std::string>& lines,
                       const std::string& call, const std::string& advice) {
  const std::string text = join(lines, "\n");
  const std::vector<int> group = context.mesh.group(context.rank, axis);
  const auto size = int(group.size());
  if (size == 1) return;
  const int index = context.mesh.coordinate(context.rank, axis);
  const std::string key = convoy::str(call, "/", axis, "/", group.front());
  const auto timeout = Timeout(int64_t(context.config.launch.rendezvous * 1000));
  const std::string digest = convoy::str(text.size(), "/", random_key(0, text));
  const auto digests = context.channel->agree(key + "/digest", index, size, digest, timeout);
  bool equal = true;
  for (const std::string& other : digests) equal = equal && other == digests.front();
  if (equal) return;
  // Every rank has seen every digest, so all of them reach this call.
  const auto texts = context.channel->agree(key + "/list", index, size, text, timeout);
  const std::vector<std::string> first = split_lines(texts.front());
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    const std::vector<std::string> other = split_lines(texts[rank]);
    for (size_t i = 0; i < std::max(first.size(), other.size()); ++i) {
      if (line_or_none(first, i) == line_or_none(other, i)) continue;
      throw Error(Failure::disagreement, "ranks have different models: parameter ", i, " is ", line_or_none(first, i),
                  " on rank ", group.front(), " and ", line_or_none(other, i), " on rank ", group[rank], "; ", advice);
    }
  }
  throw Error(Failure::disagreement, "ranks have different models, and their lists of parameters are equal");
}

}  // namespace

void check_equal_parameters(const Context& context, const std::vector<ModelPart*>& parts, int number) {
  const std::string call = convoy::str("parameters/", number);
  const std::string advice =
      "all ranks must build the same model: look for what its constructor takes from the machine";
  check_equal_along("data", context, description_of(parts, true), call, advice);
  // Layers are sharded along this axis, so local shapes differ.
  check_equal_along("tensor", context, description_of(parts, false), call, advice);
}

void check_equal_values(const Context& context, const std::vector<ParameterPtr>& parameters, int number) {
  if (context.axis("data")->size() == 1) return;  // hashing reads all values
  std::vector<std::string> lines;
  for (const ParameterPtr& parameter : parameters) {
    const at::Tensor value = parameter->value.detach().cpu().contiguous();
    lines.push_back(
        convoy::str(parameter->name, " with values of hash ", hash_hex(value.data_ptr(), size_t(value.nbytes()))));
  }
  check_equal_along("data", context, lines, convoy::str("values/", number),
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
