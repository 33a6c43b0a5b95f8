#include "core/training/membership.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <map>
#include <string>

#include "core/base/error.h"
#include "core/control/assignment.h"

namespace convoy {
namespace {

using KeptTensors = std::map<std::string, at::Tensor>;  // by key and piece

// A rank may hold two pieces of one tensor, in the same order under every membership.
std::string numbered(const std::string& key, std::map<std::string, int>& times) { return str(key, "#", times[key]++); }

KeptTensors tensors_of(const KeptTraining& kept) {
  KeptTensors tensors;
  std::map<std::string, int> times;
  for (const StateEntry& entry : kept.entries) tensors[numbered(entry.key(), times)] = entry.tensor;
  return tensors;
}

void fill(const std::vector<StateEntry>& entries, const KeptTensors& tensors) {
  std::map<std::string, int> times;
  for (const StateEntry& entry : entries) {
    const auto found = tensors.find(numbered(entry.key(), times));
    CONVOY_CHECK(found != tensors.end() && found->second.sizes() == entry.tensor.sizes(), "state entry ", entry.key(),
                 " has another layout than before the ranks changed");
    at::Tensor to = entry.tensor;
    to.copy_(found->second);
  }
}

// Sends the entries of `source` to the ranks of the group, several in one message: many models have hundreds of small
// tensors.
void broadcast(Communicator& group, const std::vector<StateEntry>& entries, int source) {
  constexpr int64_t message_bytes = int64_t{16} << 20;
  for (size_t first = 0; first < entries.size();) {
    std::vector<at::Tensor> parts;
    int64_t bytes = 0;
    size_t next = first;
    for (; next < entries.size() && (parts.empty() || bytes < message_bytes); ++next) {
      parts.push_back(entries[next].tensor.contiguous().reshape({-1}).view(at::kByte));
      bytes += parts.back().numel();
    }
    const at::Tensor message = at::cat(parts);
    group.broadcast(message, source, {"state of the training", {}})->wait();
    int64_t at = 0;
    for (; first < next; ++first) {
      at::Tensor to = entries[first].tensor;
      const int64_t length = int64_t(to.nbytes());
      // A copy, because a view of another type needs an aligned beginning.
      const at::Tensor received = message.narrow(0, at, length).clone();
      if (group.rank() != source && length > 0) to.copy_(received.view(to.scalar_type()).reshape(to.sizes()));
      at += length;
    }
  }
}

}  // namespace

std::vector<StateEntry> kept_entries(Strategy& strategy) {
  std::vector<StateEntry> entries;
  strategy.visit_state([&](const StateEntry& entry) { entries.push_back(entry); });
  return entries;
}

void BufferCopies::begin(Strategy& strategy) {
  const at::NoGradGuard no_grad;
  buffers_.clear();
  for (const StateEntry& entry : kept_entries(strategy))
    if (entry.kind == StateKind::buffer) buffers_.emplace_back(entry.tensor, entry.tensor.clone());
}

void BufferCopies::take() {
  const at::NoGradGuard no_grad;
  for (auto& [live, copy] : buffers_) copy.copy_(live);
}

void BufferCopies::restore() {
  const at::NoGradGuard no_grad;
  for (auto& [live, copy] : buffers_) live.copy_(copy);
}

void BufferCopies::replace_in(std::vector<StateEntry>& entries) const {
  size_t buffer = 0;
  for (StateEntry& entry : entries)
    if (entry.kind == StateKind::buffer) entry.tensor = buffers_.at(buffer++).second;
}

std::optional<Json> take_over(const Context& context, Strategy& strategy, const KeptTraining& kept) {
  const at::NoGradGuard no_grad;
  const auto limit = timeout_of(context.config.launch.rendezvous);
  const Json mine{{"steps", kept.steps}, {"trainer", kept.trainer}};
  std::vector<Json> all;
  for (const std::string& text :
       context.channel->agree("kept training", context.rank, context.size, mine.dump(), limit))
    all.push_back(Json::parse(text));
  const auto steps_of = [&](int rank) { return all[static_cast<size_t>(rank)].at("steps").get<int64_t>(); };
  int source = 0;
  for (int rank = 1; rank < context.size; ++rank)
    if (steps_of(rank) > steps_of(source)) source = rank;
  const int64_t furthest = steps_of(source);
  const auto is_furthest = [&](int rank) { return steps_of(rank) == furthest; };
  if (furthest < 0) return std::nullopt;
  for (int rank = 0; rank < context.size; ++rank) {
    const std::vector<int> copies = context.mesh.group(rank, "data");
    if (std::none_of(copies.begin(), copies.end(), is_furthest)) return std::nullopt;
  }
  const std::vector<StateEntry> entries = kept_entries(strategy);
  if (kept.steps == furthest) fill(entries, tensors_of(kept));
  const std::vector<int> copies = context.mesh.group(context.rank, "data");
  const auto first = std::find_if(copies.begin(), copies.end(), is_furthest);
  if (!std::all_of(copies.begin(), copies.end(), is_furthest))
    broadcast(*context.axis("data"), entries, static_cast<int>(first - copies.begin()));
  return all[static_cast<size_t>(source)].at("trainer");
}

void end_membership(const Context& context) {
  context.world->barrier({"end of training", {}})->wait();
  if (context.channel->compare_set(protocol::membership_end, "", protocol::complete) != protocol::complete)
    throw CommError(Failure::peer_lost, -1, "the ranks of the job change after the last step");
}

}  // namespace convoy
