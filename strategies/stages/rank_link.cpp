#include "strategies/stages/rank_link.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "core/base/error.h"

namespace convoy {
namespace {

using Kind = Action::Kind;

constexpr size_t look_ahead = 2;  // actions whose receives are posted in advance

// Sizes of all tensors of the batch: the shapes of a block's outputs may depend on nothing else.
std::string sizes_of(const Batch& batch) {
  std::string text = std::to_string(batch.rows);
  for (const auto& [name, tensor] : batch.tensors) text += convoy::str(";", name, tensor.sizes());
  return text;
}

std::string name_of(Kind kind, int stage, int micro) {
  return convoy::str(kind == Kind::forward ? "inputs of stage " : "gradients for stage ", stage, ", micro-batch ",
                     micro);
}

WorkPtr transfer(Communicator& group, Transfer::Kind kind, int peer, const TensorList& tensors,
                 const std::string& name) {
  if (tensors.size() == 1)
    return kind == Transfer::Kind::send ? group.send(tensors[0], peer, {name, {}})
                                        : group.receive(tensors[0], peer, {name, {}});
  std::vector<Transfer> transfers;
  for (const at::Tensor& tensor : tensors) transfers.push_back({kind, tensor, peer});
  return group.group(transfers, {name, {}});
}

}  // namespace

RankLink::RankLink(const Context& context, at::Device device) : device_(device) {
  const CommunicatorPtr group = context.axis("pipeline");
  rank_ = group->rank();
  down_ = up_ = group;
  // On a GPU a posted receive occupies the stream of its pair of ranks. So each direction needs a separate group.
  if (device.is_cuda()) {
    down_ = group->split(0, rank_, {"pipeline, down", {}});
    up_ = group->split(0, rank_, {"pipeline, up", {}});
  }
}

void RankLink::begin(const StepSchedule& schedule, const std::vector<Batch>& micro, bool training) {
  finish();
  rank_of_ = schedule.rank_of;
  sizes_.clear();
  for (const Batch& batch : micro) sizes_.push_back(convoy::str(training ? "train " : "evaluate ", sizes_of(batch)));
  needed_.clear();
  peers_.clear();
  local_messages_.clear();
  const std::vector<Action>& actions = schedule.actions[size_t(rank_)];
  for (size_t index = 0; index < actions.size(); ++index)
    needed_[{actions[index].kind, actions[index].stage, actions[index].micro}] = index;
  for (int peer = 0; peer < schedule.ranks(); ++peer)
    if (peer != rank_) expect(schedule, peer);
}

void RankLink::expect(const StepSchedule& schedule, int peer) {
  const std::vector<Message> expected = messages(schedule, peer, rank_);
  if (expected.empty()) return;
  std::deque<Incoming>& incoming = peers_[peer].incoming;
  size_t due = std::numeric_limits<size_t>::max();
  for (auto message = expected.rbegin(); message != expected.rend(); ++message) {
    const MessageKey key{message->kind, message->stage, message->micro};
    due = std::min(due, needed_.at(key));
    incoming.push_front({key, due, {}, nullptr});
  }
}

void RankLink::finish() {
  for (const WorkPtr& work : sent_) work->wait();
  sent_.clear();
}

void RankLink::ahead(size_t index) {
  for (auto& entry : peers_) post_until(entry.first, index + look_ahead, false);
}

void RankLink::post_until(int peer, size_t action, bool may_wait) {
  Peer& from = peers_.at(peer);
  while (from.posted < from.incoming.size() && from.incoming[from.posted].due <= action) {
    if (!post(peer, from.incoming[from.posted], may_wait)) return;
    ++from.posted;
  }
}

// Posts a receive. Returns false if its shapes are unknown and receiving them would block.
bool RankLink::post(int peer, Incoming& incoming, bool may_wait) {
  const auto& [kind, stage, micro] = incoming.key;
  const int receiver =
      kind == Kind::forward ? stage : stage + 1;  // stage that receives the activations at this boundary
  if (known_.count(boundary(receiver, micro)) == 0) {
    if (!may_wait) return false;
    if (kind == Kind::forward) known_[boundary(receiver, micro)] = receive_shapes(peer);
  }
  for (const Shape& shape : shapes_of(receiver, micro))
    if (kind == Kind::forward || shape.trained)
      incoming.tensors.push_back(at::empty(shape.sizes, at::TensorOptions(shape.dtype).device(device_)));
  if (incoming.tensors.empty()) return true;
  incoming.work =
      transfer(*group_for(peer, rank_), Transfer::Kind::receive, peer, incoming.tensors, name_of(kind, stage, micro));
  return true;
}

TensorList RankLink::take(int peer, const MessageKey& key) {
  Peer& from = peers_.at(peer);
  post_until(peer, needed_.at(key), true);
  for (Incoming& incoming : from.incoming) {
    if (incoming.key != key) continue;
    if (incoming.work) incoming.work->wait();
    incoming.work = nullptr;
    return std::move(incoming.tensors);
  }
  throw Error(Failure::internal, name_of(std::get<0>(key), std::get<1>(key), std::get<2>(key)),
              " do not come from rank ", peer);
}

Activations RankLink::take_local(const MessageKey& key) {
  const auto& [kind, stage, micro] = key;
  const auto found = local_messages_.find(key);
  CONVOY_CHECK(found != local_messages_.end(), name_of(kind, stage, micro), " are missing");
  Activations activations = std::move(found->second);
  local_messages_.erase(found);
  return activations;
}

void RankLink::send(int peer, const TensorList& tensors, const std::string& name) {
  if (tensors.empty()) return;
  // Releases tensors that have arrived.
  for (; !sent_.empty() && sent_.front()->done(); sent_.pop_front()) sent_.front()->wait();
  sent_.push_back(transfer(*group_for(rank_, peer), Transfer::Kind::send, peer, tensors, name));
}

std::string RankLink::boundary(int stage, int micro) const { return convoy::str(stage, " ", sizes_[size_t(micro)]); }

const RankLink::Shapes& RankLink::shapes_of(int stage, int micro) const {
  const auto found = known_.find(boundary(stage, micro));
  CONVOY_CHECK(found != known_.end(), "unknown shapes of the inputs of stage ", stage);
  return found->second;
}

// Sends the header: its length; then the number of tensors, and dtype, trained flag, dimensions and sizes of each.
void RankLink::send_shapes(int peer, const std::string& boundary, const Shapes& shapes) {
  std::vector<int64_t> header{int64_t(shapes.size())};
  for (const Shape& shape : shapes) {
    header.insert(header.end(), {int64_t(shape.dtype), shape.trained ? 1 : 0, int64_t(shape.sizes.size())});
    header.insert(header.end(), shape.sizes.begin(), shape.sizes.end());
  }
  const at::Tensor content = at::tensor(header, at::kLong).to(device_);
  const at::Tensor length = at::tensor({int64_t(header.size())}, at::kLong).to(device_);
  send(peer, {length}, "header");
  send(peer, {content}, "header");
  known_[boundary] = shapes;
}

RankLink::Shapes RankLink::receive_shapes(int peer) {
  const CommunicatorPtr group = group_for(peer, rank_);
  at::Tensor length = at::zeros({1}, at::TensorOptions(at::kLong).device(device_));
  group->receive(length, peer, {"header", {}})->wait();
  at::Tensor content = at::zeros({length.item<int64_t>()}, length.options());
  group->receive(content, peer, {"header", {}})->wait();
  content = content.cpu();
  const int64_t* next = content.const_data_ptr<int64_t>();
  Shapes shapes(static_cast<size_t>(*next++));
  for (Shape& shape : shapes) {
    shape.dtype = static_cast<at::ScalarType>(*next++);
    shape.trained = *next++ != 0;
    const int64_t dimensions = *next++;
    shape.sizes.assign(next, next + dimensions);
    next += dimensions;
  }
  return shapes;
}

void RankLink::give_activations(int stage, int micro, Activations activations) {
  const int peer = rank_of(stage);
  if (peer == rank_) {
    local_messages_[{Kind::forward, stage, micro}] = std::move(activations);
    return;
  }
  Shapes shapes;
  for (size_t i = 0; i < activations.tensors.size(); ++i) {
    const at::Tensor& tensor = activations.tensors[i];
    CONVOY_CHECK(tensor.defined(), "output ", i, " before stage ", stage, " is undefined");
    shapes.push_back({tensor.scalar_type(), tensor.sizes().vec(), activations.trained[i] != 0});
  }
  const std::string key = boundary(stage, micro);
  const auto known = known_.find(key);
  if (known == known_.end())
    send_shapes(peer, key, shapes);
  else if (known->second != shapes)
    throw Error(Failure::training, "the outputs before stage ", stage,
                " have other shapes, dtypes or gradients than "
                "before, for a batch of the same sizes; a block's outputs may depend on nothing else");
  send(peer, activations.tensors, name_of(Kind::forward, stage, micro));
}

Activations RankLink::take_activations(int stage, int micro) {
  const MessageKey key{Kind::forward, stage, micro};
  const int peer = rank_of(stage - 1);
  if (peer == rank_) return take_local(key);
  Activations activations;
  activations.tensors = take(peer, key);
  for (const Shape& shape : shapes_of(stage, micro)) activations.trained.push_back(shape.trained ? 1 : 0);
  return activations;
}

void RankLink::give_gradients(int stage, int micro, TensorList gradients) {
  const int peer = rank_of(stage);
  if (peer == rank_)
    local_messages_[{Kind::backward, stage, micro}] = {std::move(gradients), {}};
  else
    send(peer, gradients, name_of(Kind::backward, stage, micro));
}

TensorList RankLink::take_gradients(int stage, int micro) {
  const MessageKey key{Kind::backward, stage, micro};
  const int peer = rank_of(stage + 1);
  return peer == rank_ ? take_local(key).tensors : take(peer, key);
}

}  // namespace convoy
