#include "core/training/progress.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "core/base/log.h"
#include "core/control/channel.h"
#include "core/files/limits.h"
#include "core/rank_state/position.h"
#include "core/rank_state/summary.h"
#include "core/tensors/tensor_memory.h"
#include "core/training/time_report.h"

namespace convoy {
namespace {

// CPU time without spinning in waits, divided by the wall time of this rank's cores.
double cpu_efficiency(const Context& context, const ResourceUsage& loop) {
  const double cpu = loop.cpu / context.process_ranks - loop.wait_cpu;
  return loop.wall > 0 ? cpu / loop.wall / std::max(context.threads, 1) : 0;
}

}  // namespace

ResourceUsage ResourceUsage::now(const Context& context) {
  const Communicator& world = *context.world;
  // CPU time of the threads that send heartbeats, check collectives and answer stall inquiries.
  SupervisedChannel* const channel = context.channel->supervised();
  return {std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(),
          process_cpu_seconds(),
          channel != nullptr ? channel->cpu_seconds() / context.process_ranks : 0,
          world.wait_seconds(),
          world.wait_cpu_seconds(),
          world.bytes_sent()};
}

ResourceUsage ResourceUsage::operator-(const ResourceUsage& before) const {
  return {wall - before.wall,   cpu - before.cpu,           supervision_cpu - before.supervision_cpu,
          waits - before.waits, wait_cpu - before.wait_cpu, bytes - before.bytes};
}

namespace {

// Returns this rank's part of the summary; `loop`: usage of the `steps` steps of the loop.
Json rank_statistics(const Context& context, const ResourceUsage& loop, int64_t steps, const DataTime& data) {
  steps = std::max<int64_t>(steps, 1);
  const MemoryStatistics memory = memory_statistics();
  const double state_cpu =
      state_file_cpu_seconds(read_collective_records(str(context.folder, "/logs/rank", context.rank, ".state")), steps);
  return {{"data_seconds", data.waited},
          {"data_cpu_seconds", data.cpu},
          {"wait_seconds", loop.waits},
          {"cpu_seconds", loop.cpu},
          {"supervision_cpu_seconds", loop.supervision_cpu + state_cpu},
          {"wall_seconds", loop.wall},
          {"bytes_sent_per_step", static_cast<double>(loop.bytes) / static_cast<double>(steps)},
          {"peak_tensor_bytes", memory.tensors_peak},
          {"peak_resident_bytes", memory.resident_peak},
          {"cpu_efficiency", cpu_efficiency(context, loop)}};
}

}  // namespace

void add_statistics(const Context& context, const Json& rank, Json& summary) {
  const at::Device device = context.devices.front();
  const std::vector<std::string> names = {"data_seconds", "data_cpu_seconds", "wait_seconds", "bytes_sent_per_step"};
  std::vector<double> mine;
  for (const std::string& name : names) mine.push_back(rank.at(name).get<double>());
  at::Tensor worst = at::tensor(mine, at::kDouble).to(device);
  context.world->all_reduce(worst, ReduceOp::max, {"rank statistics", {}})->wait();
  at::Tensor efficiency =
      at::scalar_tensor(rank.at("cpu_efficiency").get<double>(), at::TensorOptions(at::kDouble).device(device));
  context.world->all_reduce(efficiency, ReduceOp::sum, {"efficiency", {}})->wait();
  summary["cpu_efficiency"] = efficiency.item<double>() / context.size;
  worst = worst.to(at::kCPU);
  for (size_t i = 0; i < names.size(); ++i) summary[names[i]] = worst.data_ptr<double>()[i];
}

TrainingProgress::TrainingProgress(const Context& context, ProgressOptions options)
    : context_(context),
      options_(std::move(options)),
      train_(context.config.train),
      generators_(context, options_.shares_device),
      stop_(context.channel, context.rank, context.size, timeout_of(context.config.launch.rendezvous)),
      trace_(context) {
  context.times->set_owner();
  // The flag outlives this object, because the channel may call back during destruction.
  context.channel->on_abort([flag = aborted_](const Abort&) { flag->store(true); });
}

void TrainingProgress::set_length(const TrainConfig& train, const TrainingLength& length, const RowCounts& rows) {
  train_ = train;
  length_ = length;
  row_counts_ = rows;
}

// --- Beginning ---

Checkpoints TrainingProgress::checkpoints() const {
  return Checkpoints(context_, context_.folder + "/checkpoints", train_.keep_last,
                     options_.files != nullptr ? *options_.files : system_files());
}

std::optional<CheckpointInfo> TrainingProgress::checkpoint() {
  if (train_.resume == "never") return std::nullopt;
  return train_.resume == "auto" ? checkpoints().newest(true) : checkpoints().find(train_.resume);
}

void TrainingProgress::load(Strategy& strategy, const CheckpointInfo& info, const Dataset* data) {
  checkpoints().load(strategy, info, data);
  strategy.state_restored();
  restore_generators_ = [this, trainer = info.trainer, path = info.path] { generators_.restore(trainer, path); };
  rows_before_ = info.trainer.at("rows").get<int64_t>();
  train_seconds_before_ = info.trainer.at("train_seconds").get<double>();
  evaluate_seconds_ = info.trainer.value("evaluate_seconds", 0.0);
}

void TrainingProgress::log_notes(const Resumed& from) const {
  if (context_.rank != 0) return;
  for (const std::string& note : from.notes) log::info(note);
  for (const std::string* warning : {&from.rate_note, &from.split_note})
    if (!warning->empty()) log::warning(*warning);
}

void TrainingProgress::continue_at(Strategy& strategy, const CheckpointInfo& info, int64_t step) {
  strategy.renumbered(step);
  step_ = first_step_ = step;
  recorded_ = std::min(step_, info.step);
  repeats_evaluation_ = recorded_ == info.step && info.trainer.value("evaluation_owed", false);
}

void TrainingProgress::continue_from(Strategy& strategy, const Json& trainer) {
  strategy.state_restored();
  restore_generators_ = [this, trainer] { generators_.restore(trainer, "in memory"); };
  rows_before_ = trainer.at("rows").get<int64_t>();
  train_seconds_before_ = trainer.at("train_seconds").get<double>();
  evaluate_seconds_ = trainer.at("evaluate_seconds").get<double>();
  step_ = first_step_ = recorded_ = trainer.at("step").get<int64_t>();
  best_.restore(trainer.at("metrics"));
  evaluations_ = trainer.value("evaluations", Json::array());
  repeats_evaluation_ = !trainer.value("evaluated", true);
}

void TrainingProgress::open_sinks() {
  if (context_.rank != 0) return;
  if (context_.config.log.tensorboard) {
    auto board = std::make_unique<TensorBoard>(context_.folder + "/tensorboard", recorded_,
                                               to_yaml(without_locations(context_.config.resolved)));
    board_ = board.get();
    sinks_.push_back(std::move(board));
  }
  sinks_.push_back(make_channel_sink(context_.channel));
  // The last sink: if rank 0 is lost between two sinks, the next rank 0 finds the missing evaluations by this file.
  const std::string path = context_.folder + "/metrics.jsonl";
  sinks_.push_back(make_jsonl_sink(path, recorded_, !repeats_evaluation_));
  if (evaluations_.empty()) return;
  const size_t there = evaluations_in(path, recorded_);
  for (size_t i = there; i < evaluations_.size(); ++i)
    if (evaluations_[i]["step"] == recorded_) write(record_of(evaluations_[i]));
}

void TrainingProgress::start() {
  if (const int64_t first = context_.config.profile.first; first > length_.total_steps && context_.rank == 0)
    log::warning(str("profile.steps: step ", first, " comes after the ", length_.total_steps,
                     " steps that are planned, so there will be no trace; give earlier steps"));
  generators_.seed();
  if (restore_generators_) restore_generators_();
  restore_generators_ = nullptr;
  before_ = ResourceUsage::now(context_);
  measure_clock(context_);
  started_ = lap_ = Clock::now();
  context_.times->phase(TimePart::other);
}

// --- Steps ---

void TrainingProgress::reached(InjectPoint point, int64_t number) {
  if (!options_.reached) return;
  if (saver_) attempt_save([this] { saver_->wait_for_background(); });
  options_.reached(point, number);
}

void TrainingProgress::begin_step() {
  trace_.begin_step(step_ + 1);
  context_.state->step(step_);
  context_.state->phase("loader");
  context_.times->phase(TimePart::data);
  if (length_.ends_epoch(step_)) reached(InjectPoint::epoch, step_ / length_.steps_per_epoch + 1);
  reached(InjectPoint::step, step_);
}

bool TrainingProgress::stops() { return stopped_ = stop_.stops_before(stop_points_++); }

void TrainingProgress::check_aborted() {
  if (saver_) attempt_save([this] { saver_->check_background(); });
  confirm_save();
  if (!aborted_->load(std::memory_order_relaxed)) return;
  const std::optional<Abort> reason = context_.channel->aborted();
  throw CommError(Failure::peer_lost, reason ? reason->rank : -1, "rank ", context_.rank, " ends at step ", step_, ": ",
                  reason ? reason->message : "the job was ended");
}

bool TrainingProgress::logs_step(int64_t done) const {
  return done % train_.log_every == 0 || done == first_step_ + 1 || length_.ends_epoch(done) ||
         done == length_.total_steps;
}

void TrainingProgress::count(const StepResult& result) {
  if (result.updated) {
    if (result.learning_rate.defined()) learning_rate_ = result.learning_rate;
    gradient_norm_ = result.gradient_norm;
    if (result.skipped.defined())
      skipped_ = skipped_.defined() ? skipped_ + result.skipped : result.skipped.to(at::kLong);
    ++updates_;
  }
  train_metrics_.add(result.metrics);
}

void TrainingProgress::warn_if_all_skipped(const char* key) const {
  if (stopped_ || context_.rank != 0 || !skipped_.defined() || updates_ == 0) return;
  if (skipped_.min().item<int64_t>() == updates_)
    log::warning(str("none of ", updates_,
                     " updates was applied: half-precision gradients overflowed while the loss scale was falling; "
                     "train longer, or set ",
                     key, " lower"));
}

// --- Reports ---

void TrainingProgress::report_first_step() const {
  if (context_.rank != 0) return;
  const double seconds = seconds_since(started_);
  context_.channel->post(protocol::first_step, Json{{"seconds", seconds}});
}

void TrainingProgress::record_training(int64_t done, const std::map<std::string, MetricValue>& values) {
  if (const auto loss = values.find("loss"); loss != values.end()) last_loss_ = loss->second.value;
  Record record = full_record("train", done);
  if (gradient_norm_.defined() && gradient_norm_.numel() == 1) record.gradient_norm = gradient_norm_.item<double>();
  for (const auto& [name, metric] : values) record.metrics[name] = metric.value;
  if (skipped_.defined()) record.metrics["skipped_updates"] = skipped_.sum().item<double>();
  write(record);
}

void TrainingProgress::record_evaluation(int64_t done, const std::map<std::string, MetricValue>& values) {
  best_.add(values, done);
  Record record = full_record("evaluate", done);
  for (const auto& [name, metric] : values) {
    record.metrics[name] = metric.value;
    if (!metric.members.empty()) record.members[name] = metric.members;
    if (metric.lower_is_better) record.lower_is_better.push_back(name);
  }
  if (!evaluations_.empty() && evaluations_.back()["step"] != done) evaluations_.clear();
  evaluations_.push_back(to_json(record));
  write(record);
}

void TrainingProgress::post_progress(int64_t done, bool log_step) {
  report_resources(std::chrono::seconds(5));
  if (context_.rank != 0) return;
  const Clock::time_point now = Clock::now();
  if (!log_step && now - reported_ < std::chrono::milliseconds(250)) return;
  reported_ = now;
  Json progress = to_json(record("train", done));
  if (!length_.open_ended) {
    progress["steps"] = length_.total_steps;
    progress["epochs"] = length_.epoch_of(length_.total_steps);
  }
  if (std::isfinite(last_loss_)) progress["loss"] = last_loss_;
  progress["times"] = time_parts_of(context_);
  context_.channel->post(protocol::progress, progress);
}

Record TrainingProgress::record(const std::string& kind, int64_t done) const {
  Record record;
  record.kind = kind;
  record.step = done;
  record.epoch = length_.epoch_of(done);
  const double here = training_seconds();
  record.seconds = train_seconds_before_ + here;
  if (here > 0) record.samples_per_second = static_cast<double>(instances(rows_)) / here;
  if (done > first_step_ && !length_.open_ended)
    record.remaining_seconds =
        here / static_cast<double>(done - first_step_) * static_cast<double>(length_.total_steps - done);
  return record;
}

// Record for the sinks, with the values that are read from the device.
Record TrainingProgress::full_record(const std::string& kind, int64_t done) const {
  Record record = this->record(kind, done);
  if (learning_rate_.defined()) record.learning_rate = learning_rate_[0].item<double>();
  return record;
}

void TrainingProgress::write(const Record& record) {
  for (auto& sink : sinks_) sink->write(record);
}

// --- Training clock ---

double TrainingProgress::training_seconds() const { return train_seconds_ + (training_ ? seconds_since(lap_) : 0); }

void TrainingProgress::pause_clock() {
  train_seconds_ = training_seconds();
  training_ = false;
}

void TrainingProgress::resume_clock() {
  lap_ = Clock::now();
  training_ = true;
}

// --- Checkpoints and the end ---

void TrainingProgress::attempt_save(const std::function<void()>& save) {
  try {
    save();
  } catch (const Error& error) {
    if (!train_.continue_after_save_error || error.kind() != Failure::io) throw;
    ++failed_saves_;
    lost_save_ = true;
    if (context_.rank != 0) return;
    context_.channel->post(failed_saves_topic, step_);
    log::warning(str("a checkpoint is lost, and the training continues (train.on_save_error): ", error.what()));
  }
}

bool TrainingProgress::last_save_lost() {
  if (!saver_) return false;
  const TimePart before = context_.times->phase(TimePart::checkpoint);
  attempt_save([this] { saver_->wait_for_background(); });
  confirm_save();
  context_.times->phase(before);
  return lost_save_;
}

void TrainingProgress::wait_for_save() {
  if (!saver_) return;
  const TimePart before = context_.times->phase(TimePart::checkpoint);
  saver_->wait_for_background();
  confirm_save();
  context_.times->phase(before);
}

Json TrainingProgress::trainer_section(int64_t done, int64_t rows) const {
  return {{"step", done},
          {"rows", rows_before_ + rows},
          {"seed", context_.config.seed},
          {"global_rows", length_.global_rows},
          {"steps_per_epoch", length_.steps_per_epoch},
          {"total_steps", length_.total_steps},
          {"world_size", context_.size},
          {"train_seconds", train_seconds_before_ + training_seconds()},
          {"evaluate_seconds", evaluate_seconds_},
          {"generators", generators_.description()},
          {"metrics", metrics_section()}};
}

void TrainingProgress::save(Strategy& strategy, int64_t done, const SavedState& more) {
  pause_clock();
  context_.state->phase("saving");
  const TimePart before = context_.times->phase(TimePart::checkpoint);
  if (saver_) attempt_save([this] { saver_->wait_for_background(); });
  lost_save_ = false;
  reached(InjectPoint::save, ++saves_);
  const bool in_background = !more.last && train_.checkpoint_async != false;
  const auto most_copied = [this] {
    constexpr int64_t unlimited = std::numeric_limits<int64_t>::max();
    // All ranks of the host ask at the same time.
    return train_.checkpoint_async ? unlimited : memory_left().value_or(unlimited) / 2 / context_.local_size;
  };
  in_background ? strategy.flush_and_copy(most_copied()) : strategy.flush();
  Json trainer = trainer_section(done, rows_);
  trainer["evaluation_owed"] = more.evaluation_owed;
  trainer.update(more.trainer);
  Json rank = more.rank;
  if (const Json states = generators_.states(); rank.is_null())
    rank = states;
  else if (!states.is_null())
    rank.update(states);
  if (!saver_)
    saver_.emplace(context_, context_.folder + "/checkpoints", train_.keep_last,
                   options_.files != nullptr ? *options_.files : uncached_files());
  const SaveRequest request{done, trainer, rank, more.data, more.best};
  save_unconfirmed_ = true;
  if (!in_background) {
    const auto write = [&] { saver_->save(strategy, request); };
    more.last ? write() : attempt_save(write);
  } else {
    attempt_save([&] { saver_->save_in_background(strategy, request, most_copied()); });
  }
  confirm_save();
  context_.state->phase("training");
  context_.times->phase(before);
  resume_clock();
}

void TrainingProgress::end_loop(const DataTime& data) {
  trace_.end();
  rank_ = rank_statistics(context_, ResourceUsage::now(context_) - before_, step_ - first_step_, data);
}

TrainingResult TrainingProgress::result(Strategy& strategy) {
  TrainingResult result{stopped_, summary(strategy, rank_), rank_};
  report_resources(std::chrono::seconds(1));
  result.rank.update(time_report(context_));
  return result;
}

void TrainingProgress::report_resources(Clock::duration interval) {
  const Clock::time_point now = Clock::now();
  if (now - resources_at_ < interval) return;
  resources_at_ = now;
  const Json report = resource_report(context_);
  context_.channel->post(protocol::resources, report);
  if (board_ != nullptr) board_->resources(step_, report);
}

void TrainingProgress::record_histograms(Strategy& strategy, int64_t done, bool updated) {
  const int64_t every = context_.config.log.histograms;
  if (board_ == nullptr || every == 0) return;
  histograms_owed_ |= done % every == 0;
  if (!histograms_owed_ || !updated) return;
  histograms_owed_ = false;
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  const auto add = [&](const char* folder, StateKind kind) {
    return [&tensors, folder, kind](const StateEntry& entry) {
      if (entry.kind != kind) return;
      tensors.emplace_back(str(folder, entry.name, entry.member < 0 ? "" : str("@member", entry.member)), entry.tensor);
    };
  };
  strategy.visit_state(add("weights/", StateKind::parameter));
  strategy.visit_gradients(add("gradients/", StateKind::gradient));
  board_->histograms(done, tensors);
}

Json TrainingProgress::summary(Strategy& strategy, const Json& rank) {
  // Parameters are summed over their owners.
  int64_t parameters = 0;
  strategy.visit_state([&](const StateEntry& entry) {
    if (entry.kind == StateKind::parameter && entry.owner && entry.replica < 0) parameters += entry.tensor.numel();
  });
  at::Tensor count = at::scalar_tensor(parameters, at::TensorOptions(at::kLong).device(context_.devices.front()));
  context_.world->all_reduce(count, ReduceOp::sum, {"parameter count", {}})->wait();

  const int64_t samples = instances(rows_before_ + rows_);
  const double seconds = train_seconds_before_ + train_seconds_;
  Json json = {{"parameters", count.item<int64_t>()},
               {"epochs", static_cast<double>(step_) / static_cast<double>(length_.steps_per_epoch)},
               {"steps", step_},
               {"steps_here", step_ - first_step_},
               {"samples", samples},
               {"train_seconds", seconds},
               {"samples_per_second", seconds > 0 ? static_cast<double>(samples) / seconds : 0.0},
               {"evaluate_seconds", evaluate_seconds_},
               {"metrics", best_.json()}};
  if (failed_saves_ > 0) json["failed_saves"] = failed_saves_;
  if (row_counts_.tokens > 0) json["tokens"] = samples * row_counts_.tokens;
  add_statistics(context_, rank, json);
  return json;
}

}  // namespace convoy
