// Run::each_batch: a training loop that continues with other ranks (launch.min_ranks).
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <iterator>
#include <utility>

#include "api/run/run_impl.h"
#include "api/trained_impl.h"
#include "core/base/log.h"
#include "core/control/assignment.h"
#include "core/rank_state/position.h"

namespace convoy {

void Run::Impl::check_may_share() const {
  if (job.impl().continues())
    throw Error(Failure::config, "share: launch.min_ranks is ", context.config.launch.min_ranks,
                ", and a loop over share cannot repeat a step with other ranks; call run.each_batch(data, options, "
                "[&](convoy::ShareBatch& batch) { ... }) instead, or set launch.min_ranks=0");
}

void Run::Impl::each_batch(const OpenData& data, const ShareOptions& options, const BatchBody& body) {
  const bool continues = job.impl().continues();
  if (continues && settings)
    throw Error(Failure::config, "each_batch: launch.min_ranks is ", context.config.launch.min_ranks,
                ", and a rank that joins later runs the program from its beginning, so all steps must be in one call; "
                "give it all epochs, and evaluate in its body where batch.ends_epoch is true");
  while (true) {
    std::exception_ptr lost;
    try {
      ShareBatch batch;
      begin_loop(data, options);
      job.impl().enter_loop(true);
      while (next(batch)) body(batch);
      if (continues) end_membership(context);
      job.impl().enter_loop(false);
      return;
    } catch (...) {
      if (!continues || translate_exception(Failure::training).kind != Failure::peer_lost) throw;
      lost = std::current_exception();
      keep_training();
    }
    if (!continue_with_others()) std::rethrow_exception(lost);
  }
}

// --- The state while the ranks change ---

// Records the state at the beginning of the next body, before the body changes it.
void Run::Impl::note_body() {
  if (!has_state_) return;
  const int64_t step = position_.completed = progress->step();
  // After a lost peer, the ranks return to the body of the last update, to the body after it, or to this one.
  for (auto start = starts_.begin(); start != starts_.end();) {
    const bool needed = start->first + 1 == position_.updated || start->first == position_.updated;
    start = needed ? std::next(start) : starts_.erase(start);
  }
  BodyStart start;
  start.trainer = progress->trainer_section(step, progress->rows());
  start.trainer["evaluations"] = progress->evaluations();
  for (const auto& [name, object] : kept_) start.kept[name] = object.save();
  start.rates = trained.impl().learning_rates();
  starts_[step] = std::move(start);
}

void Run::Impl::note_update() {
  if (!has_state_ || !open_) return;
  position_.updated = progress->step() + 1;
  position_.calls = trained_calls() - calls_before_;
  ++position_.updates;
  buffers_.take();
}

void Run::Impl::begin_keeping() {
  if (!job.impl().continues() || has_state_) return;
  position_ = Position();
  position_.completed = position_.updated = progress->step();
  position_.updates = 0;
  starts_.clear();
  buffers_.begin(strategy);
  has_state_ = true;
}

// Keeps the state after the last update. If this membership has no state, that of an earlier membership stays.
void Run::Impl::keep_training() {
  open_ = false;
  if (!std::exchange(has_state_, false)) return;
  const at::NoGradGuard no_grad;
  position_.owes_save |= progress->save_unconfirmed();
  strategy.flush();
  kept_training_.steps = position_.updates;
  kept_training_.entries = kept_entries(strategy);
  buffers_.replace_in(kept_training_.entries);
  for (StateEntry& entry : kept_training_.entries)  // the next strategy writes to the memory of parameters
    if (entry.kind != StateKind::buffer && entry.kind != StateKind::moment) entry.tensor = entry.tensor.clone();
}

// Joins the next membership with the state that the ranks keep. Returns false if the job ends.
bool Run::Impl::continue_with_others() {
  while (true) {
    try {
      batches.reset();
      progress.reset();
      metrics.reset();
      trained.impl().detach();
      if (!job.impl().leave_membership()) return false;
      job.impl().connect();
      trained.impl().attach(context);
      begin_progress();
      settings.reset();
      losses_.clear();
      comparisons_ = 0;
      updated_ = loop_ended_ = true;
      repeated_ = checkpoint_owed_ = save_postponed_ = saved_ = nothing_left_ = false;
      context.state->phase(loading_phase);
      if (!take_over_training()) restore_stored();
      context.state->phase("training");
      return true;
    } catch (...) {
      if (translate_exception(Failure::training).kind != Failure::peer_lost) throw;
    }
  }
}

// No rank had begun its first step: begins as Job::resume does.
void Run::Impl::restore_stored() {
  from_.reset();
  taken_over_ = false;
  if (!resumed_path_.empty()) {
    context.config.train.resume = resumed_path_;
    progress->set_length(context.config.train, {}, {});
  }
  if (const std::optional<CheckpointInfo> info = progress->checkpoint()) restore(*info);
  for (const auto& [name, object] : kept_) restore_kept(name, object);
  if (context.rank == 0)
    context.channel->post(protocol::continued, Json{{"step", from_ ? from_->step : 0}, {"in_memory", false}});
}

// Collective. Takes over the state with the most updates. The loop repeats from the earliest batch whose body a rank
// has not completed. Returns false on all ranks if no rank has a state, or the job does not continue without peers.
bool Run::Impl::take_over_training() {
  if (!job.impl().continues() || !take_over(context, strategy, kept_training_)) return false;
  const auto limit = timeout_of(context.config.launch.rendezvous);
  Json mine{{"completed", position_.completed}, {"updated", position_.updated},     {"calls", position_.calls},
            {"updates", position_.updates},     {"owes_save", position_.owes_save}, {"starts", Json::array()}};
  for (const auto& [batch, start] : starts_) mine["starts"].push_back(batch);
  std::vector<Json> all;
  for (const std::string& text :
       context.channel->agree("position of the training", context.rank, context.size, mine.dump(), limit))
    all.push_back(Json::parse(text));
  const auto furthest = std::max_element(all.begin(), all.end(), [](const Json& a, const Json& b) {
    return a.at("updates").get<int64_t>() < b.at("updates").get<int64_t>();
  });
  Position position;
  position.updated = furthest->at("updated");
  position.calls = furthest->at("calls");
  position.updates = furthest->at("updates");
  position.completed = position.updated;  // gradients that were accumulated since are lost
  for (const Json& rank : all) {
    const int64_t completed = rank.at("completed");
    if (completed >= 0) position.completed = std::min(position.completed, completed);
    position.owes_save |= rank.at("owes_save").get<bool>();
  }
  const auto has_start = [&](const Json& rank) {
    const Json& starts = rank.at("starts");
    return std::find(starts.begin(), starts.end(), Json(position.completed)) != starts.end();
  };
  const auto source = std::find_if(all.begin(), all.end(), has_start);
  CONVOY_CHECK(source != all.end() && position.completed + 1 >= position.updated, "no rank has the beginning of batch ",
               position.completed, ", and the state has ", position.updated, " batches");
  BodyStart start = starts_.count(position.completed) > 0 ? starts_[position.completed] : BodyStart();
  if (!std::all_of(all.begin(), all.end(), has_start)) {
    const BodyStart received = broadcast(start, static_cast<int>(source - all.begin()));
    if (starts_.count(position.completed) == 0) start = received;
  }
  progress->continue_from(strategy, start.trainer);
  trained.impl().set_learning_rates(start.rates);
  position_ = position;
  updated_ = position_.completed >= position_.updated;  // else no stop and no save before the body is repeated
  starts_ = {{position.completed, std::move(start)}};
  taken_over_ = has_state_ = true;
  from_.reset();
  checkpoint_owed_ = position.owes_save;
  position_.owes_save = false;
  for (const auto& [name, object] : kept_) restore_kept(name, object);
  trained.impl().set_steps(position.completed);
  buffers_.begin(strategy);
  kept_training_.clear();
  if (context.rank == 0)
    context.channel->post(protocol::continued, Json{{"step", position.completed}, {"in_memory", true}});
  return true;
}

// Collective. Objects that the body keeps may be large, so they are not sent over the control channel.
Run::Impl::BodyStart Run::Impl::broadcast(const BodyStart& start, int source) const {
  const at::Device device = context.devices.front();
  Json json{{"trainer", start.trainer}, {"rates", start.rates}, {"kept", Json::object()}};
  for (const auto& [name, text] : start.kept)
    json["kept"][name] = Json::binary(std::vector<uint8_t>(text.begin(), text.end()));
  const std::vector<uint8_t> text = Json::to_cbor(json);
  at::Tensor size = at::scalar_tensor(static_cast<int64_t>(text.size()), at::TensorOptions(at::kLong).device(device));
  context.world->broadcast(size, source, {"size of kept objects", {}})->wait();
  at::Tensor bytes = at::empty({size.item<int64_t>()}, at::kByte);
  if (context.rank == source) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  at::Tensor message = bytes.to(device);
  context.world->broadcast(message, source, {"kept objects", {}})->wait();
  bytes = message.cpu();
  const auto* const begin = static_cast<const uint8_t*>(bytes.const_data_ptr());
  const Json received = Json::from_cbor(begin, begin + bytes.numel());
  BodyStart result;
  result.trainer = received.at("trainer");
  result.rates = received.at("rates").get<std::vector<double>>();
  for (const auto& [name, object] : received.at("kept").items())
    result.kept[name].assign(object.get_binary().begin(), object.get_binary().end());
  return result;
}

// If the state already has the update of this batch, the repeated body does not update again.
void Run::Impl::repeat_body() {
  if (!has_state_) return;
  repeated_ = progress->step() < position_.updated;
  // The forward passes of the body change buffers again.
  trained.impl().skip_calls(repeated_ ? position_.calls : 0, [this] { buffers_.restore(); });
}

}  // namespace convoy
