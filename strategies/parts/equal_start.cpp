#include "strategies/parts/equal_start.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <sstream>

#include "core/error.h"
#include "core/random_keys.h"
#include "strategies/parts/rows/row_table.h"

namespace convoy {
namespace {

// Of a row table that is dealt out, the whole of it.
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

// The ranks along an axis of the mesh have the same `lines`.
void check_equal_along(const std::string& axis, const Context& context, const std::vector<std::string>& lines) {
  const std::string text = join(lines, "\n");
  const std::vector<int> group = context.mesh.group(context.rank, axis);
  const auto size = static_cast<int>(group.size());
  if (size == 1) return;
  const int index = context.mesh.coordinate(context.rank, axis);
  const std::string key = convoy::str("parameters/", axis, "/", group.front());
  const auto timeout = Timeout(static_cast<int64_t>(context.config.launch.rendezvous * 1000));
  const std::string digest = convoy::str(text.size(), "/", random_key(0, text));
  const auto digests = context.channel->agree(key + "/digest", index, size, digest, timeout);
  bool equal = true;
  for (const std::string& other : digests) equal = equal && other == digests.front();
  if (equal) return;
  // Every rank has seen every digest, so all of them come here together.
  const auto texts = context.channel->agree(key + "/list", index, size, text, timeout);
  const std::vector<std::string> first = split_lines(texts.front());
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    const std::vector<std::string> other = split_lines(texts[rank]);
    for (size_t i = 0; i < std::max(first.size(), other.size()); ++i) {
      if (line_or_none(first, i) == line_or_none(other, i)) continue;
      throw Error(
          Failure::disagreement,
          convoy::str("ranks have different models: parameter ", i, " is ", line_or_none(first, i), " on rank ",
                      group.front(), " and ", line_or_none(other, i), " on rank ", group[rank],
                      "; all ranks must build the same model: look for what its constructor takes from the machine"));
    }
  }
  throw Error(Failure::disagreement, "ranks have different models, and their lists of parameters are equal");
}

}  // namespace

void check_equal_start(const Context& context, const std::vector<ModelPart*>& parts) {
  check_equal_along("data", context, description_of(parts, true));
  // Layers are cut there, and the shapes of what is held differ.
  check_equal_along("tensor", context, description_of(parts, false));
}

void share_foreign_values(const std::vector<ModelPart*>& parts, Communicator& group) {
  at::NoGradGuard no_grad;
  for (const ModelPart* part : parts)
    for (const auto* list : {&part->parameters(), &part->frozen()})
      for (const ParameterPtr& parameter : *list)
        if (parameter->foreign) group.broadcast(parameter->value.detach(), 0, {parameter->name, {}})->wait();
}

}  // namespace convoy
