#include "strategies/common/step/start_checks.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "core/base/error.h"
#include "core/base/log.h"
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

// Throws if the ranks along an axis of the mesh have different `lines`.
void check_equal_along(const std::string& axis, const Context& context, const std::vector<std::string>& lines,
                       int number) {
  const std::string text = join(lines, "\n");
  const std::vector<int> group = context.mesh.group(context.rank, axis);
  const auto size = int(group.size());
  if (size == 1) return;
  const int index = context.mesh.coordinate(context.rank, axis);
  const std::string key = convoy::str("parameters/", number, "/", axis, "/", group.front());
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
                  " on rank ", group.front(), " and ", line_or_none(other, i), " on rank ", group[rank],
                  "; all ranks must build the same model: look for what its constructor takes from the machine");
    }
  }
  throw Error(Failure::disagreement, "ranks have different models, and their lists of parameters are equal");
}

}  // namespace

void check_equal_parameters(const Context& context, const std::vector<ModelPart*>& parts, int number) {
  check_equal_along("data", context, description_of(parts, true), number);
  // Layers are sharded along this axis, so local shapes differ.
  check_equal_along("tensor", context, description_of(parts, false), number);
}

std::vector<ParameterPtr> tables_of(const std::vector<ModelPart*>& parts) {
  std::vector<ParameterPtr> all;
  for (const ModelPart* part : parts) all.insert(all.end(), part->tables().begin(), part->tables().end());
  return all;
}

void warn_if_lazy_is_unused(const Context& context, const std::vector<ParameterPtr>& tables) {
  const Options& optimizer = context.config.optimizer.options;
  if (context.rank != 0 || !tables.empty() || !optimizer.has("lazy") || !optimizer.boolean("lazy")) return;
  log::warning(
      "optimizer.lazy: true has no effect: it applies to sparse embeddings, and this run has none; take model.rows: "
      "true, or "
      "leave it out");
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

namespace {

using Names = std::set<std::string>;

Names names_in(const std::vector<std::string>& answers) {
  Names names;
  for (const std::string& answer : answers)
    for (const Json& name : Json::parse(answer)) names.insert(name.get<std::string>());
  return names;
}

void warn(const Names& missing) {
  constexpr size_t most = 10;
  if (missing.empty()) return;
  std::vector<std::string> shown(missing.begin(), missing.end());
  if (shown.size() > most) {
    shown.resize(most);
    shown.push_back(str("and ", missing.size() - most, " more"));
  }
  log::warning(str("no gradient for ", missing.size(), missing.size() == 1 ? " parameter" : " parameters",
                   " in the first update: ", join(shown, ", "),
                   ". The loss does not depend on them: does forward use them, and is nothing detached in between? "
                   "If a model uses them only at times, ignore this warning"));
}

}  // namespace

void GradientCoverage::updated(const std::vector<ModelPart*>& parts) {
  if (std::exchange(done_, true)) return;
  Names reached, missing;
  for (const ModelPart* part : parts)
    for (const ParameterPtr& parameter : part->parameters())
      (parameter->reached ? reached : missing).insert(parameter->name);
  for (const std::string& name : reached) missing.erase(name);
  if (size_ == 1) return warn(missing);
  SupervisedChannel* const channel = channel_->supervised();
  if (channel == nullptr) return;
  // Two rounds: parameters without a gradient on some rank; then, if there are any, ranks that have one.
  const auto compare = [weak = std::weak_ptr<Channel>(channel_), rank = rank_, size = size_,
                        reached](const std::vector<std::string>& answers) {
    const Names asked = names_in(answers);
    const std::shared_ptr<Channel> alive = weak.lock();
    if (asked.empty() || !alive) return;
    Json mine = Json::array();
    for (const std::string& name : asked)
      if (reached.count(name) != 0) mine.push_back(name);
    alive->supervised()->agree_later("gradients that came", rank, size, mine.dump(),
                                     [asked, rank](const std::vector<std::string>& answers) {
                                       Names left = asked;
                                       for (const std::string& name : names_in(answers)) left.erase(name);
                                       if (rank == 0) warn(left);
                                     });
  };
  channel->agree_later("gradients that did not come", rank_, size_, Json(missing).dump(), compare);
}

}  // namespace convoy
