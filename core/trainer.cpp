#include "core/trainer.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>

#include "core/checkpoint/checkpoint.h"
#include "core/control/call_notes.h"
#include "core/control/phases.h"
#include "core/control/protocol.h"
#include "core/control/stop.h"
#include "core/control/supervised_channel.h"
#include "core/data/fingerprint.h"
#include "core/data/loader.h"
#include "core/data/samples.h"
#include "core/data/trained_rows.h"
#include "core/default_generators.h"
#include "core/limits.h"
#include "core/log.h"
#include "core/metrics/accumulator.h"
#include "core/metrics/best_metrics.h"
#include "core/metrics/same_metrics.h"
#include "core/metrics/sink.h"
#include "core/own_rows.h"
#include "core/resume.h"
#include "core/tensor_memory.h"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// One run of the loop. Members are the loop's variables, so that its phases read as sentences.
class Training {
 public:
  Training(const Context& context, const TrainingParts& parts)
      : context_(context),
        parts_(parts),
        config_(context.config),
        strategy_(*parts.strategy),
        sampling_(strategy_.sampling()),
        epoch_rows_(rows_read(sampling_, config_, rows_to_train_on(parts))),
        length_(training_length(config_.train, epoch_rows_, sampling_.count)),
        sampler_(rows_to_train_on(parts), length_.global_rows, draw_read(sampling_, config_)),
        generators_(context, parts.shares_device),
        same_metrics_(context),
        stop_(context.channel, context.rank, context.size, timeout(config_.launch.rendezvous)),
        checkpoints_(context, context.folder + "/checkpoints", config_.train.keep_last,
                     parts.files != nullptr ? *parts.files : system_files()) {
    own_rows_ = dynamic_cast<OwnRows*>(&strategy_);
    holds_out_ = sampler_.draws().held_out() > 0 && (own_rows_ != nullptr || sampling_.job_members == 0) &&
                 trained_rows_evaluate(*parts.data);
    // The flag outlives this object: the channel may still call back while we are being destroyed.
    context.channel->on_abort([flag = aborted_](const Abort&) { flag->store(true); });
  }

  TrainingResult run() {
    generators_.seed();
    restore();
    open_sinks();
    const Spent before = spent();
    const int64_t first = step_;
    if (parts_.after_update) parts_.after_update(step_);
    started_ = lap_ = Clock::now();
    // A request to stop came during it, or it is the first of members that were trained apart.
    if (evaluation_owed_) evaluate(step_, true);
    if (step_ < length_.total_steps && !finished_) loop();
    end_loader();
    // All at one moment: what the last evaluation and checkpoint take would come on top of a time that has ended.
    const Spent loop = spent() - before;
    finish();

    TrainingResult result;
    result.stopped = stopped_;
    const int64_t steps = std::max<int64_t>(step_ - first, 1);
    const MemoryFigures memory = memory_figures();
    result.rank = Json{{"data_seconds", waited_},
                       {"data_cpu_seconds", data_cpu_},
                       {"wait_seconds", loop.waits},
                       {"cpu_seconds", loop.cpu},
                       {"supervision_cpu_seconds",
                        loop.supervision_cpu +
                            state_file_cpu_seconds(
                                read_call_notes(str(context_.folder, "/logs/rank", context_.rank, ".state")), steps)},
                       {"wall_seconds", loop.wall},
                       {"bytes_sent_per_step", static_cast<double>(loop.bytes) / static_cast<double>(steps)},
                       {"peak_tensor_bytes", memory.tensors_peak},
                       {"peak_resident_bytes", memory.resident_peak},
                       {"cpu_efficiency", cpu_efficiency(loop)}};
    result.summary = summary(result.rank);
    return result;
  }

 private:
  static Timeout timeout(double seconds) { return Timeout(static_cast<int64_t>(seconds * 1000)); }

  LoaderOptions loader_options() const {
    LoaderOptions options = LoaderOptions::from(config_.data.options, config_.seed);
    options.share_index = sampling_.index;
    options.share_count = sampling_.count;
    options.micro_batches = sampling_.micro_batches;
    options.device = context_.devices.front();
    options.draws = sampling_.draws;
    return options;
  }

  // Ready for the step to come, with the members that there are now.
  void begin_loader() {
    end_loader();
    if (sampling_.job_members > 0 && sampling_.draws.empty()) return;  // this rank's have finished, others' have not
    loader_.emplace(parts_.data, parts_.transforms, sampler_, step_, length_.total_steps, loader_options());
  }

  void end_loader() {
    if (!loader_) return;
    waited_ += loader_->waited_seconds();
    data_cpu_ += loader_->cpu_seconds();
    loader_.reset();
  }

  Batch next_batch() {
    if (!loader_) return {};
    std::optional<Batch> batch = loader_->next();
    CONVOY_CHECK(batch.has_value(), "the loader ended before step ", step_);
    return std::move(*batch);
  }

  // Members of an ensemble may have finished: those that are left draw on from the step to come.
  void read_sampling() {
    const Sampling now = strategy_.sampling();
    const bool same = now.draws == sampling_.draws;
    sampling_ = now;
    if (!same && loader_) begins_loader_ = true;
  }

  // ---- the loop ----------------------------------------------------------------------------------------------

  void loop() {
    begins_loader_ = true;
    // Without an update that all ranks have made, nothing may stop or be saved: accumulation would be cut.
    bool updated = true;
    bool checkpoint_owed = false;
    for (; step_ < length_.total_steps && !finished_; ++step_) {
      check_aborted();
      if (stopped_ || (updated && (stopped_ = stops()))) break;
      context_.state->step(step_);
      context_.state->phase("loader");
      if (step_ % length_.steps_per_epoch == 0) reached(InjectPoint::epoch, step_ / length_.steps_per_epoch + 1);
      reached(InjectPoint::step, step_);
      if (begins_loader_) begin_loader();
      begins_loader_ = false;
      Batch batch = next_batch();
      rows_ += sampler_.rows_of(step_) * std::max<int64_t>(sampling_.job_members, 1);
      const int64_t done = step_ + 1;
      const bool epoch_ends = done % length_.steps_per_epoch == 0;
      const bool told = reports(done, epoch_ends);
      StepInput input{std::move(batch), step_, epoch_ends || done == length_.total_steps, told};
      context_.state->phase("forward/backward");
      StepResult result = strategy_.step(input);
      updated = result.updated;
      if (updated && result.learning_rate.defined()) learning_rate_ = result.learning_rate;
      if (updated) gradient_norm_ = result.gradient_norm;
      train_metrics_.add(result.metrics);
      check_finite(result);
      if (result.updated && result.skipped.defined())
        skipped_ = skipped_.defined() ? skipped_ + result.skipped : result.skipped.to(at::kLong);
      if (updated) ++updates_;
      if (updated && parts_.after_update) parts_.after_update(done);
      if (step_ == first_step_) report_first_step();
      report_training(done, told);
      evaluated_ = due(config_.train.evaluate_every, done, length_.steps_per_epoch);
      if (evaluated_) evaluate(done, updated);
      checkpoint_owed |= due(config_.train.checkpoint_every, done, length_.steps_per_epoch);
      saved_ = checkpoint_owed && updated;
      if (saved_) {
        save(done);
        checkpoint_owed = false;
      }
    }
    pause_training_clock();
  }

  // Ends with an evaluation and a checkpoint of the last state, whatever the intervals were.
  void finish() {
    const bool wants_evaluation = config_.train.evaluate_every.unit != Interval::Unit::never;
    if (wants_evaluation && !stopped_ && !evaluated_) evaluate(step_, true);
    if (!saved_ && (stopped_ || nothing_left_ || config_.train.checkpoint_every.unit != Interval::Unit::never))
      save(step_);
    if (skipped_.defined() && !stopped_ && context_.rank == 0 && updates_ > 0 &&
        skipped_.min().item<int64_t>() == updates_)
      log::warning(str("none of ", updates_,
                       " updates was applied: every one's 16-bit gradients overflowed while the "
                       "loss scale was still falling; train longer, or set strategy.loss_scale.initial lower"));
    context_.state->phase("done");
  }

  void reached(InjectPoint point, int64_t number) {
    if (parts_.reached) parts_.reached(point, number);
  }

  // Whether all ranks stop here. Every rank comes to the same places in the same order: between steps, and between the
  // batches of an evaluation.
  bool stops() { return stop_.stops_before(places_++); }

  void check_aborted() {
    if (!aborted_->load(std::memory_order_relaxed)) return;
    const std::optional<Abort> reason = context_.channel->aborted();
    throw CommError(
        Failure::peer_lost, reason ? reason->rank : -1,
        str("rank ", context_.rank, " ends at step ", step_, ": ", reason ? reason->message : "the job was ended"));
  }

  // What an update is judged by when it is known: the flag, and this rank's losses of the micro-steps that made it.
  struct Unchecked {
    at::Tensor finite;
    std::vector<std::pair<int64_t, at::Tensor>> losses;  // by step
  };

  // The flag is the same on all ranks; whose loss it was, and when, is told over the channel, so that one rank is named.
  void check_finite(const StepResult& result) {
    const at::Tensor& loss = result.metrics.front().sum;
    unchecked_.losses.emplace_back(step_, result.updated ? loss : loss.clone());
    if (!result.updated) return;
    unchecked_.finite = result.finite;
    Unchecked update = std::exchange(unchecked_, {});
    if (!update.finite.defined()) return;
    // On CUDA the flag of the update before is read, so that the host never waits for the step under way.
    if (update.finite.is_cuda()) {
      std::swap(update, pending_);
      if (!update.finite.defined()) return;
    }
    // A flag on the CPU is read as it is: light steps come by thousands a second.
    const at::Tensor& flag = update.finite;
    const bool finite = flag.is_cpu() && flag.numel() == 1 ? *flag.const_data_ptr<bool>() : flag.all().item<bool>();
    if (!finite) end_not_finite(update);
  }

  [[noreturn]] void end_not_finite(const Unchecked& update) {
    constexpr int64_t never = std::numeric_limits<int64_t>::max();
    int64_t first = never;
    for (const auto& [step, loss] : update.losses)
      if (first == never && !at::isfinite(loss).all().item<bool>()) first = step;
    const std::vector<std::string> votes =
        context_.channel->agree(str("nonfinite/", step_), context_.rank, context_.size, std::to_string(first),
                                timeout(config_.launch.rendezvous));
    int culprit = -1;
    int64_t when = never;
    for (size_t rank = 0; rank < votes.size(); ++rank) {
      const int64_t step = std::stoll(votes[rank]);
      if (step >= when) continue;
      when = step;
      culprit = static_cast<int>(rank);
    }
    if (culprit < 0) when = update.losses.back().first;
    context_.state->step(when);  // what is told of the failure is told of that step
    const std::string what = culprit < 0 ? "a gradient is not finite though every rank's loss is"
                                         : str("the loss of rank ", culprit, " is not finite");
    const std::string message = str(what, " at step ", when,
                                    "; the update was not applied and nothing was saved. Try a smaller optimizer.lr, "
                                    "optimizer.clip_norm, or look at the data of that step");
    if (culprit == context_.rank) throw Error(Failure::training, message);
    // A gradient that ranks have summed tells no more whose it was.
    if (culprit < 0 && context_.rank == 0) throw CommError(Failure::training, -1, message);
    throw CommError(Failure::peer_lost, culprit, message);
  }

  // ---- reports -----------------------------------------------------------------------------------------------

  void report_first_step() {
    if (context_.rank == 0) context_.channel->post(protocol::first_step, Json{{"seconds", seconds_since(started_)}});
  }

  bool reports(int64_t done, bool epoch_ends) const {
    return done % config_.train.log_every == 0 || done == first_step_ + 1 || epoch_ends || done == length_.total_steps;
  }

  void report_training(int64_t done, bool told) {
    if (told) {
      generators_.check_drawn(first_step_ > 0);
      const auto values = train_metrics_.reduce(*context_.world);
      if (auto loss = values.find("loss"); loss != values.end()) last_loss_ = loss->second.value;
      Record record = written_record("train", done);
      if (gradient_norm_.defined() && gradient_norm_.numel() == 1) record.gradient_norm = gradient_norm_.item<double>();
      for (const auto& [name, metric] : values) record.metrics[name] = metric.value;
      if (skipped_.defined()) record.metrics["skipped_updates"] = skipped_.sum().item<double>();
      for (auto& sink : sinks_) sink->write(record);
    }
    if (context_.rank != 0 || (!told && seconds_since(reported_) < 0.25)) return;
    reported_ = Clock::now();
    Json progress = to_json(record("train", done));
    progress["steps"] = length_.total_steps;
    progress["epochs"] = (length_.total_steps - 1) / length_.steps_per_epoch + 1;
    if (std::isfinite(last_loss_)) progress["loss"] = last_loss_;
    context_.channel->post(protocol::progress, progress);
  }

  Record record(const std::string& kind, int64_t done) {
    Record record;
    record.kind = kind;
    record.step = done;
    record.epoch = (done - 1) / length_.steps_per_epoch + 1;
    record.seconds = train_seconds_before_ + training_seconds();
    const double here = training_seconds();
    if (here > 0) record.samples_per_second = static_cast<double>(instances(rows_)) / here;
    if (done > first_step_)
      record.remaining_seconds =
          here / static_cast<double>(done - first_step_) * static_cast<double>(length_.total_steps - done);
    return record;
  }

  // As sinks get it: with what has to be read from the device.
  Record written_record(const std::string& kind, int64_t done) {
    Record record = this->record(kind, done);
    if (learning_rate_.defined()) record.learning_rate = learning_rate_[0].item<double>();
    return record;
  }

  int64_t instances(int64_t rows) const { return rows * parts_.data->instances_per_row(); }

  // Training alone: evaluation and checkpoints stop this clock.
  double training_seconds() const { return train_seconds_ + (training_ ? seconds_since(lap_) : 0); }
  void pause_training_clock() {
    train_seconds_ = training_seconds();
    training_ = false;
  }
  void resume_training_clock() {
    lap_ = Clock::now();
    training_ = true;
  }

  // ---- evaluation and checkpoints ----------------------------------------------------------------------------

  // Left off where all ranks are asked to stop, if they may (`may_stop`: accumulation would be cut), and owed from then on.
  void evaluate(int64_t done, bool may_stop) {
    const bool split = parts_.data->size(Split::evaluate) > 0;
    if (!split && !holds_out_) return;
    pause_training_clock();
    const Clock::time_point start = Clock::now();
    context_.state->phase("evaluating");
    reached(InjectPoint::evaluate, ++evaluations_);
    strategy_.settle_for_evaluation();
    std::map<std::string, MetricValue> values;
    // Bounded slices, since candidates multiply the rows of an evaluation batch.
    if (split)
      values = evaluated_on(Loader(parts_.data, parts_.transforms, length_.global_rows, loader_options()), may_stop,
                            "evaluate", [this](const Batch& batch) { return strategy_.evaluate(batch); });
    if (holds_out_ && !stopped_)
      for (auto& [name, value] : evaluate_held_out(may_stop)) values["out_of_fold_" + name] = value;
    evaluation_owed_ = stopped_;
    if (stopped_) return resume_training_clock();
    generators_.check_drawn(first_step_ > 0);
    evaluate_seconds_ += seconds_since(start);
    best_.add(values, done);
    Record record = written_record("evaluate", done);
    for (const auto& [name, metric] : values) {
      record.metrics[name] = metric.value;
      if (!metric.members.empty()) record.members[name] = metric.members;
    }
    finished_ = strategy_.evaluated(values);
    read_sampling();
    for (auto& sink : sinks_) sink->write(record);
    context_.state->phase("training");
    resume_training_clock();
  }

  std::map<std::string, MetricValue> evaluated_on(Loader loader, bool may_stop, const std::string& kind,
                                                  const std::function<std::vector<Metric>(const Batch&)>& evaluate) {
    MetricAccumulator metrics;
    while (std::optional<Batch> batch = loader.next()) {
      check_aborted();
      if (may_stop && (stopped_ = stops())) return {};
      context_.state->phase("evaluating");  // again: that it moves on is seen by the time
      metrics.add(evaluate(*batch));
    }
    same_metrics_.check(kind, metrics.names());
    return metrics.reduce(*context_.world);
  }

  // Of each member on the rows that its fold leaves out, or of the one model on its own.
  std::map<std::string, MetricValue> evaluate_held_out(bool may_stop) {
    LoaderOptions options = loader_options();
    options.draws = own_rows_ != nullptr ? own_rows_->draws() : std::vector<MemberDraw>();
    return evaluated_on(Loader::held_out(parts_.data, parts_.transforms, sampler_, length_.global_rows, options),
                        may_stop, "held out", [this](const Batch& batch) {
                          return own_rows_ != nullptr ? own_rows_->evaluate_own(batch) : strategy_.evaluate(batch);
                        });
  }

  void save(int64_t done) {
    pause_training_clock();
    context_.state->phase("saving");
    reached(InjectPoint::save, ++saves_);
    strategy_.settle();
    checkpoints_.save(strategy_, done,
                      Json{{"step", done},
                           {"rows", rows_before_ + rows_},
                           {"seed", config_.seed},
                           {"global_rows", length_.global_rows},
                           {"steps_per_epoch", length_.steps_per_epoch},
                           {"total_steps", length_.total_steps},
                           {"world_size", context_.size},
                           {"train_seconds", train_seconds_before_ + train_seconds_},
                           {"evaluate_seconds", evaluate_seconds_},
                           {"evaluation_owed", evaluation_owed_},
                           {"generators", generators_.description()},
                           {"metrics", best_.json()}},
                      false, generators_.states(), parts_.data.get());
    context_.state->phase("training");
    resume_training_clock();
  }

  void restore() {
    context_.state->phase(loading_phase);
    std::optional<CheckpointInfo> info;
    if (config_.train.resume == "auto") {
      info = checkpoints_.newest();
    } else if (config_.train.resume != "never") {
      info = checkpoints_.find(config_.train.resume);
    }
    if (info) restore_from(*info);
    first_step_ = step_;
    if (context_.rank == 0) report_start();
    context_.state->phase("training");
  }

  void restore_from(const CheckpointInfo& info) {
    const Json& trainer = info.trainer;
    const Resumed from = resumed(info, config_, length_, epoch_rows_);
    if (context_.rank == 0) {
      for (const std::string& note : from.notes) log::info(note);
      if (!from.rate_note.empty()) log::warning(from.rate_note);
    }
    checkpoints_.load(strategy_, info, parts_.data.get());
    strategy_.state_restored();
    strategy_.renumbered(from.step);
    generators_.restore(trainer, info.path);
    step_ = from.step;
    recorded_ = std::min(step_, info.step);
    rows_before_ = trainer.at("rows").get<int64_t>();
    train_seconds_before_ = trainer.at("train_seconds").get<double>();
    evaluate_seconds_ = trainer.value("evaluate_seconds", 0.0);
    const bool comparable =
        from.same_evaluation &&
        (info.fingerprint.empty() || same_fingerprint(info.fingerprint, parts_.data->contents().fingerprint));
    if (comparable) best_.restore(trainer.at("metrics"));
    if (own_rows_ != nullptr && !(comparable && from.same_watched)) own_rows_->figures_changed();
    finished_ = strategy_.evaluated({});  // before the checkpoint
    read_sampling();
    evaluation_owed_ = trainer.value("evaluation_owed", false);
    // With nothing left to train, a state that comes from elsewhere is evaluated here and saved as this run lays it out.
    nothing_left_ = step_ >= length_.total_steps || finished_;
    evaluated_ = checkpoints_.owns(info);
    saved_ = evaluated_ && !evaluation_owed_ && trainer.value("world_size", context_.size) == context_.size;
  }

  void report_start() {
    if (nothing_left_)
      log::info(str("nothing is left to train after step ", step_,
                    saved_ ? "" : "; the state is saved as this run lays it out"));
    else if (const std::string note = length_note(config_.train, length_); !note.empty())
      log::info(note);
  }

  // Figures of steps that are to be made again are dropped from the file.
  void open_sinks() {
    if (context_.rank != 0) return;
    sinks_.push_back(make_jsonl_sink(context_.folder + "/metrics.jsonl", recorded_));
    sinks_.push_back(make_channel_sink(context_.channel));
  }

  // ---- figures -----------------------------------------------------------------------------------------------

  // Of the threads that send heartbeats, carry checks of collectives and answer whoever looks into a stall.
  double supervision_cpu_seconds() const {
    SupervisedChannel* channel = supervised(context_.channel.get());
    return channel != nullptr ? channel->cpu_seconds() / context_.process_ranks : 0;
  }

  // What this rank has used up to a moment, or between two; processor time of the whole process.
  struct Spent {
    double wall = 0, cpu = 0, supervision_cpu = 0, waits = 0, wait_cpu = 0;  // seconds
    int64_t bytes = 0;                                                       // sent
    Spent operator-(const Spent& before) const {
      return {wall - before.wall,   cpu - before.cpu,           supervision_cpu - before.supervision_cpu,
              waits - before.waits, wait_cpu - before.wait_cpu, bytes - before.bytes};
    }
  };
  Spent spent() const {
    const Communicator& world = *context_.world;
    return {std::chrono::duration<double>(Clock::now().time_since_epoch()).count(),
            process_cpu_seconds(),
            supervision_cpu_seconds(),
            world.wait_seconds(),
            world.wait_cpu_seconds(),
            world.bytes_sent()};
  }

  // Processor time less what was spent spinning in waits, of the wall time of this rank's cores.
  double cpu_efficiency(const Spent& loop) const {
    const double cpu = loop.cpu / context_.process_ranks - loop.wait_cpu;
    return loop.wall > 0 ? cpu / loop.wall / std::max(context_.threads, 1) : 0;
  }

  Json summary(const Json& rank) {
    // The slowest or busiest rank's figure, so that one number tells of trouble; parameters are summed over owners.
    int64_t parameters = 0;
    strategy_.visit_state([&](const StateEntry& entry) {
      if (entry.kind == StateKind::parameter && entry.owner && entry.replica < 0) parameters += entry.tensor.numel();
    });
    at::Tensor count = at::scalar_tensor(parameters, at::TensorOptions(at::kLong).device(context_.devices.front()));
    context_.world->all_reduce(count, ReduceOp::sum, {"parameter count", {}})->wait();
    const std::vector<std::string> names = {"data_seconds", "data_cpu_seconds", "wait_seconds", "bytes_sent_per_step"};
    std::vector<double> mine;
    for (const std::string& name : names) mine.push_back(rank.at(name).get<double>());
    at::Tensor worst = at::tensor(mine, at::kDouble).to(context_.devices.front());
    context_.world->all_reduce(worst, ReduceOp::max, {"figures", {}})->wait();
    at::Tensor efficiency = at::scalar_tensor(rank.at("cpu_efficiency").get<double>(),
                                              at::TensorOptions(at::kDouble).device(context_.devices.front()));
    context_.world->all_reduce(efficiency, ReduceOp::sum, {"efficiency", {}})->wait();

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
                 {"cpu_efficiency", efficiency.item<double>() / context_.size},
                 {"metrics", best_.json()}};
    if (const int64_t tokens = parts_.data->tokens_per_row(); tokens > 0) json["tokens"] = samples * tokens;
    worst = worst.to(at::kCPU);
    for (size_t i = 0; i < names.size(); ++i) json[names[i]] = worst.data_ptr<double>()[i];
    return json;
  }

  const Context& context_;
  const TrainingParts& parts_;
  const RunConfig& config_;
  Strategy& strategy_;
  Sampling sampling_;
  const int64_t epoch_rows_;  // that the one model, or each member, reads in an epoch
  const TrainingLength length_;
  const Sampler sampler_;
  DefaultGenerators generators_;
  SameMetrics same_metrics_;
  StopAgreement stop_;
  int64_t places_ = 0;  // at which this rank might have stopped
  bool evaluation_owed_ = false;
  Checkpoints checkpoints_;
  std::vector<std::unique_ptr<Sink>> sinks_;
  std::shared_ptr<std::atomic<bool>> aborted_ = std::make_shared<std::atomic<bool>>(false);

  int64_t step_ = 0;                                          // steps done
  int64_t first_step_ = 0;                                    // of this process
  int64_t recorded_ = 0;                                      // last step whose figures metrics.jsonl keeps
  int64_t evaluations_ = 0, saves_ = 0;                       // begun by this process
  int64_t rows_ = 0;                                          // global rows trained by this process, over all members
  int64_t rows_before_ = 0;                                   // by those before it
  bool stopped_ = false, evaluated_ = false, saved_ = false;  // the last two: of the state as it is now
  bool nothing_left_ = false;                                 // to train, after a checkpoint was read
  bool finished_ = false;                                     // by the strategy's judgement, before the last step
  std::optional<Loader> loader_;                              // while training
  bool begins_loader_ = true;                                 // before the next step
  OwnRows* own_rows_ = nullptr;                               // the strategy, where it is one
  bool holds_out_ = false;                                    // folds leave rows out that can be evaluated on
  MetricAccumulator train_metrics_;
  BestMetrics best_;
  Unchecked unchecked_;  // what is gathered since the last update
  Unchecked pending_;    // of the update before, on CUDA
  int64_t updates_ = 0;  // since this process began, skipped ones with them
  at::Tensor skipped_;   // updates that the loss scaler left out, since this process began; undefined without one
  at::Tensor learning_rate_;
  at::Tensor gradient_norm_;  // of the last update; undefined where it is not known
  double last_loss_ = std::numeric_limits<double>::quiet_NaN();

  Clock::time_point started_, lap_, reported_;
  bool training_ = true;
  double train_seconds_ = 0, train_seconds_before_ = 0, evaluate_seconds_ = 0, waited_ = 0, data_cpu_ = 0;
};

}  // namespace

TrainingResult train(const Context& context, const TrainingParts& parts) { return Training(context, parts).run(); }

}  // namespace convoy
