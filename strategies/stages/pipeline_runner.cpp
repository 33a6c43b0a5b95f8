#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/error.h"
#include "core/context.h"
#include "strategies/common/memory/block_counts.h"
#include "strategies/plans/schedule.h"
#include "strategies/plans/stages.h"
#include "strategies/stages/runners.h"
#include "strategies/stages/stage_loop.h"

namespace convoy {

// --- RankLink ---

// RankLink: boundaries between stages on different ranks of the axis `pipeline`.
//
// Messages between two ranks follow the sender's schedule, which the receiver knows. So only the tensors are sent.
// Receives are posted ahead, and the rank waits for its sends at the end of the step. So both overlap with computation.
// Shapes are not declared. When a batch with new tensor sizes first crosses a boundary, a header precedes it: number of
// tensors; dtype, shape and trained flag of each. Both sides remember it. Gradients need no header. Consecutive stages
// of one rank pass tensors without a copy.
// Memory: two receives ahead of the current action. Failure: CommError; Error(training) if a stage's outputs change
// shape for batches of equal sizes.
class RankLink : public StageLink {
 public:
  // Collective. `context` has the axis `pipeline`. Tensors arrive on `device`.
  RankLink(const Context& context, at::Device device);

  // Begins a step; call it equally on all ranks. Waits until earlier sends have arrived.
  void begin(const StepSchedule& schedule, const std::vector<Batch>& micro, bool training);
  // Waits until all sends have arrived.
  void finish();

  void ahead(size_t index) override;
  void give_activations(int stage, int micro, Activations activations) override;
  Activations take_activations(int stage, int micro) override;
  void give_gradients(int stage, int micro, TensorList gradients) override;
  TensorList take_gradients(int stage, int micro) override;

 private:
  struct Shape {
    at::ScalarType dtype = at::kFloat;
    std::vector<int64_t> sizes;
    bool trained = false;
    bool operator==(const Shape& other) const {
      return dtype == other.dtype && sizes == other.sizes && trained == other.trained;
    }
  };
  using Shapes = std::vector<Shape>;
  using MessageKey = std::tuple<Action::Kind, int, int>;  // kind, receiving stage, micro-batch
  struct Incoming {
    MessageKey key;
    size_t due = 0;  // action by which it must be posted, because a later message is needed there
    TensorList tensors;
    WorkPtr work;
  };
  struct Peer {
    std::deque<Incoming> incoming;  // in the peer's sending order
    size_t posted = 0;
  };

  int rank_of(int stage) const { return rank_of_[size_t(stage)]; }
  CommunicatorPtr group_for(int from, int to) const { return from < to ? down_ : up_; }
  void expect(const StepSchedule& schedule, int peer);
  bool post(int peer, Incoming& incoming, bool may_wait);
  void post_until(int peer, size_t action, bool may_wait);
  TensorList take(int peer, const MessageKey& key);
  Activations take_local(const MessageKey& key);
  void send(int peer, const TensorList& tensors, const std::string& name);
  std::string boundary(int stage, int micro) const;
  void send_shapes(int peer, const std::string& boundary, const Shapes& shapes);
  Shapes receive_shapes(int peer);
  const Shapes& shapes_of(int stage, int micro) const;  // shapes of the inputs of `stage`

  int rank_;
  at::Device device_;
  CommunicatorPtr down_, up_;  // from lower to higher ranks, and back
  std::vector<int> rank_of_;
  std::vector<std::string> sizes_;       // size of each micro-batch; shapes at boundaries follow from them
  std::map<MessageKey, size_t> needed_;  // action that uses the message
  std::map<int, Peer> peers_;
  std::map<MessageKey, Activations> local_messages_;  // between stages of this rank; for gradients only the tensors
  std::map<std::string, Shapes> known_;               // by boundary
  std::deque<WorkPtr> sent_;                          // in order; finished ones leave at the front
};

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

// --- PipelineRunner ---

namespace {

class PipelineRunner : public StepRunner {
 public:
  PipelineRunner(const Context& context, ModelPtr model, LossPtr loss, const PipelineOptions& options,
                 int64_t micro_batches, const PartRequest& base)
      : schedule_(options.schedule),
        chunks_(options.virtual_stages),
        micro_batches_(micro_batches),
        group_(context.axis("pipeline")),
        device_(base.device.value_or(context.devices.front())),
        link_(context, device_) {
    rank_of_ = round_robin(group_->size(), chunks_);
    const auto ranges = stage_ranges(options, int(rank_of_.size()), count_blocks(*model, 0));
    std::vector<LocalStage> local;
    for (int stage = group_->rank(); stage < int(ranges.size()); stage += group_->size()) {
      PartRequest request = base;
      request.begin = ranges[size_t(stage)].begin;
      request.end = ranges[size_t(stage)].end;
      models_.push_back(std::make_unique<ModelPart>(context, model, loss, ties_.with_ties(std::move(request), stage)));
      parts_.push_back(models_.back().get());
      local.push_back({stage, int(local.size()), parts_.back()});
    }
    loop_ = std::make_unique<StageLoop>(std::move(local), ties_);
    ties_.connect(context);
  }

  const std::vector<ModelPart*>& parts() const override { return parts_; }

  void train(const std::vector<Batch>& micro, int64_t step, double nominal, const Hooks& hooks) override {
    ties_.refresh();
    const StepSchedule& schedule = training_schedule(int(micro.size()));
    link_.begin(schedule, micro, true);
    loop_->train(mine(schedule), {micro, step, nominal, hooks}, link_);
    link_.finish();
  }

  std::vector<Metric> evaluate(const Batch& batch) override {
    ties_.refresh();
    const std::vector<Batch> micro_batches = evaluation_micro_batches(batch, micro_batches_);
    const StepSchedule schedule = forward_only(rank_of_, int(micro_batches.size()));
    // Messages of this batch may still be in flight when the next batch begins: ranks work on several batches at once.
    link_.begin(schedule, micro_batches, false);
    std::vector<Metric> metrics = loop_->evaluate(mine(schedule), micro_batches, link_);
    if (zero_metrics_.empty()) broadcast_names(metrics);
    if (!parts_.back()->last()) return zero_metrics_;
    if (metrics.size() != zero_metrics_.size())
      throw Error(Failure::training, "the model's metrics were ", zero_metrics_.size(), " and are now ", metrics.size(),
                  "; it gives the same ones for every batch");
    return metrics;
  }

 private:
  const std::vector<Action>& mine(const StepSchedule& schedule) const {
    return schedule.actions[size_t(group_->rank())];
  }

  const StepSchedule& training_schedule(int micro) {
    const auto known = schedules_.find(micro);
    if (known != schedules_.end()) return known->second;
    return schedules_[micro] = schedule_of(schedule_, group_->size(), chunks_, micro);
  }

  // The rank of the last stage sends all others the names, directions and shapes of the metrics.
  void broadcast_names(const std::vector<Metric>& metrics) {
    Json described = Json::array();
    for (const Metric& metric : metrics)
      described.push_back({metric.name, metric.lower_is_better, metric.sum.sizes().vec(), metric.weight.sizes().vec(),
                           static_cast<int>(metric.form)});
    std::string text = described.dump();
    at::Tensor length = at::tensor({int64_t(text.size())}, at::kLong).to(device_);
    const int root = group_->size() - 1;
    group_->broadcast(length, root, {"names of metrics", {}})->wait();
    text.resize(size_t(length.item<int64_t>()));
    at::Tensor bytes = at::empty({int64_t(text.size())}, at::kByte);
    std::copy(text.begin(), text.end(), bytes.mutable_data_ptr<uint8_t>());
    bytes = bytes.to(device_);
    group_->broadcast(bytes, root, {"names of metrics", {}})->wait();
    bytes = bytes.cpu();
    const uint8_t* first = bytes.const_data_ptr<uint8_t>();
    const Json received = Json::parse(first, first + bytes.numel());
    for (const Json& item : received) {
      const auto zeros = [&](size_t shape) {
        return at::zeros(item.at(shape).get<std::vector<int64_t>>(), at::TensorOptions(at::kDouble).device(device_));
      };
      zero_metrics_.push_back({item.at(0).get<std::string>(), zeros(2), zeros(3), item.at(1).get<bool>(),
                               static_cast<Metric::Form>(item.at(4).get<int>())});
    }
  }

  const ScheduleKind schedule_;
  const int chunks_;  // virtual stages
  const int64_t micro_batches_;
  CommunicatorPtr group_;
  at::Device device_;
  std::vector<int> rank_of_;  // rank of each stage
  TiedParameters ties_;
  std::vector<std::unique_ptr<ModelPart>> models_;
  std::vector<ModelPart*> parts_;
  std::unique_ptr<StageLoop> loop_;
  RankLink link_;
  std::map<int, StepSchedule> schedules_;  // by number of micro-batches
  std::vector<Metric> zero_metrics_;       // zero metrics of ranks without the last stage; empty until names are known
};

}  // namespace

std::unique_ptr<StepRunner> make_pipeline_runner(const Context& context, ModelPtr model, LossPtr loss,
                                                 const PipelineOptions& options, int64_t micro_batches,
                                                 const PartRequest& base) {
  return std::make_unique<PipelineRunner>(context, std::move(model), std::move(loss), options, micro_batches, base);
}

}  // namespace convoy
