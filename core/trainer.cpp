#include "core/trainer.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>

#include "core/base/log.h"
#include "core/checkpoint/checkpoint.h"
#include "core/control/channel.h"
#include "core/data/catalogue/declared_schema.h"
#include "core/data/contents.h"
#include "core/data/loader.h"
#include "core/data/rows.h"
#include "core/files/limits.h"
#include "core/loss_check.h"
#include "core/metrics/accumulator.h"
#include "core/metrics/sink.h"
#include "core/rank_state/position.h"
#include "core/resume.h"
#include "core/tensors/random.h"
#include "core/tensors/tensor_memory.h"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// One run of the training loop. The members are its variables; the methods are its phases.
class Training {
 public:
  Training(const Context& context, const TrainingComponents& components)
      : context_(context),
        components_(components),
        config_(context.config),
        strategy_(*components.strategy),
        sampling_(strategy_.sampling()),
        epoch_rows_(rows_per_epoch(sampling_, config_, rows_to_train_on(components))),
        length_(training_length(config_.train, epoch_rows_, sampling_.count)),
        sampler_(rows_to_train_on(components), length_.global_rows, row_sample_of(sampling_, config_)),
        generators_(context, components.shares_device),
        same_metrics_(context),
        loss_check_(context),
        stop_(context.channel, context.rank, context.size, timeout(config_.launch.rendezvous)),
        checkpoints_(context, context.folder + "/checkpoints", config_.train.keep_last,
                     components.files != nullptr ? *components.files : system_files()) {
    held_out_evaluation_ = strategy_.capabilities().held_out_evaluation;
    holds_out_ = sampler_.row_sample().held_out() > 0 &&
                 (held_out_evaluation_ != nullptr || sampling_.job_members == 0) &&
                 can_evaluate_training_rows(*components.data);
    // The flag outlives this object, because the channel may call back during destruction.
    context.channel->on_abort([flag = aborted_](const Abort&) { flag->store(true); });
  }

  TrainingResult run() {
    generators_.seed();
    restore();
    open_sinks();
    const Spent before = spent();
    const int64_t first = step_;
    if (components_.after_update) components_.after_update(step_);
    started_ = lap_ = Clock::now();
    // A stop request interrupted an evaluation, or members that trained separately are joined here and evaluated
    // first.
    if (evaluation_owed_) evaluate(step_, true);
    if (step_ < length_.total_steps && !finished_) loop();
    end_loader();
    // Take all statistics at one moment: the last evaluation and checkpoint must not count.
    const Spent loop = spent() - before;
    finish();

    TrainingResult result;
    result.stopped = stopped_;
    const int64_t steps = std::max<int64_t>(step_ - first, 1);
    const MemoryStatistics memory = memory_statistics();
    const double state_cpu = state_file_cpu_seconds(
        read_collective_records(str(context_.folder, "/logs/rank", context_.rank, ".state")), steps);
    result.rank = Json{{"data_seconds", waited_},
                       {"data_cpu_seconds", data_cpu_},
                       {"wait_seconds", loop.waits},
                       {"cpu_seconds", loop.cpu},
                       {"supervision_cpu_seconds", loop.supervision_cpu + state_cpu},
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
    options.samples = sampling_.draws;
    return options;
  }

  // Starts a loader at the current step, for the current members.
  void begin_loader() {
    end_loader();
    if (sampling_.job_members > 0 && sampling_.draws.empty()) return;  // only other ranks' members still train
    loader_.emplace(components_.data, components_.transforms, sampler_, step_, length_.total_steps, loader_options());
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

  // Ensemble members may have finished; the others get a new loader from the next step on.
  void read_sampling() {
    const Sampling now = strategy_.sampling();
    const bool same = now.draws == sampling_.draws;
    sampling_ = now;
    if (!same && loader_) rebuild_loader_ = true;
  }

  // --- The loop ---

  void loop() {
    rebuild_loader_ = true;
    // Stop and save only after an update that all ranks made: otherwise accumulated gradients are lost.
    bool updated = true;
    bool checkpoint_owed = false;
    for (; step_ < length_.total_steps && !finished_; ++step_) {
      check_aborted();
      if (stopped_ || (updated && (stopped_ = stops()))) break;
      context_.state->step(step_);
      context_.state->phase("loader");
      if (step_ % length_.steps_per_epoch == 0) reached(InjectPoint::epoch, step_ / length_.steps_per_epoch + 1);
      reached(InjectPoint::step, step_);
      if (rebuild_loader_) begin_loader();
      rebuild_loader_ = false;
      Batch batch = next_batch();
      rows_ += sampler_.rows_of(step_) * std::max<int64_t>(sampling_.job_members, 1);
      const int64_t done = step_ + 1;
      const bool epoch_ends = done % length_.steps_per_epoch == 0;
      const bool log_step = logs_step(done, epoch_ends);
      StepInput input{std::move(batch), step_, epoch_ends || done == length_.total_steps, log_step};
      context_.state->phase("forward/backward");
      StepResult result = strategy_.step(input);
      updated = result.updated;
      if (updated && result.learning_rate.defined()) learning_rate_ = result.learning_rate;
      if (updated) gradient_norm_ = result.gradient_norm;
      train_metrics_.add(result.metrics);
      loss_check_.check_finite(result, step_);
      if (result.updated && result.skipped.defined())
        skipped_ = skipped_.defined() ? skipped_ + result.skipped : result.skipped.to(at::kLong);
      if (updated) ++updates_;
      if (updated && components_.after_update) components_.after_update(done);
      if (step_ == first_step_) report_first_step();
      report_training(done, log_step);
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

  // Evaluates and saves the last state, independent of the intervals.
  void finish() {
    const bool wants_evaluation = config_.train.evaluate_every.unit != Interval::Unit::never;
    if (wants_evaluation && !stopped_ && !evaluated_) evaluate(step_, true);
    if (!saved_ && (stopped_ || nothing_left_ || config_.train.checkpoint_every.unit != Interval::Unit::never))
      save(step_);
    if (skipped_.defined() && !stopped_ && context_.rank == 0 && updates_ > 0 &&
        skipped_.min().item<int64_t>() == updates_)
      log::warning(str("none of ", updates_,
                       " updates was applied: half-precision gradients overflowed while the loss scale was falling; "
                       "train longer, or set strategy.loss_scale.initial lower"));
    context_.state->phase("done");
  }

  void reached(InjectPoint point, int64_t number) {
    if (components_.reached) components_.reached(point, number);
  }

  // Returns true if all ranks stop here. Every rank calls this at the same points in the same order: between steps,
  // and between the batches of an evaluation.
  bool stops() { return stop_.stops_before(stop_points_++); }

  void check_aborted() {
    if (!aborted_->load(std::memory_order_relaxed)) return;
    const std::optional<Abort> reason = context_.channel->aborted();
    throw CommError(Failure::peer_lost, reason ? reason->rank : -1, "rank ", context_.rank, " ends at step ", step_,
                    ": ", reason ? reason->message : "the job was ended");
  }

  // --- Reports ---

  void report_first_step() {
    if (context_.rank == 0) context_.channel->post(protocol::first_step, Json{{"seconds", seconds_since(started_)}});
  }

  bool logs_step(int64_t done, bool epoch_ends) const {
    return done % config_.train.log_every == 0 || done == first_step_ + 1 || epoch_ends || done == length_.total_steps;
  }

  void report_training(int64_t done, bool log_step) {
    if (log_step) {
      generators_.check_drawn(first_step_ > 0);
      const auto values = train_metrics_.reduce(*context_.world);
      if (auto loss = values.find("loss"); loss != values.end()) {
        last_loss_ = loss->second.value;
        loss_check_.check_weight(loss->second.weight, (done - 1) / length_.steps_per_epoch + 1,
                                 done % length_.steps_per_epoch == 0 || done == length_.total_steps);
      }
      Record record = full_record("train", done);
      if (gradient_norm_.defined() && gradient_norm_.numel() == 1) record.gradient_norm = gradient_norm_.item<double>();
      for (const auto& [name, metric] : values) record.metrics[name] = metric.value;
      if (skipped_.defined()) record.metrics["skipped_updates"] = skipped_.sum().item<double>();
      for (auto& sink : sinks_) sink->write(record);
    }
    if (context_.rank != 0 || (!log_step && seconds_since(reported_) < 0.25)) return;
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

  // Record for the sinks, with the values that are read from the device.
  Record full_record(const std::string& kind, int64_t done) {
    Record record = this->record(kind, done);
    if (learning_rate_.defined()) record.learning_rate = learning_rate_[0].item<double>();
    return record;
  }

  int64_t instances(int64_t rows) const { return rows * components_.data->instances_per_row(); }

  // Training time; evaluation and checkpoints stop this clock.
  double training_seconds() const { return train_seconds_ + (training_ ? seconds_since(lap_) : 0); }
  void pause_training_clock() {
    train_seconds_ = training_seconds();
    training_ = false;
  }
  void resume_training_clock() {
    lap_ = Clock::now();
    training_ = true;
  }

  // --- Evaluation and checkpoints ---

  // Evaluates. If a stop is requested and `may_stop` is true, abandons the evaluation; a resumed run then starts with
  // it. `may_stop` is false while gradients accumulate.
  void evaluate(int64_t done, bool may_stop) {
    const bool split = components_.data->size(Split::evaluate) > 0;
    if (!split && !holds_out_) return;
    pause_training_clock();
    const Clock::time_point start = Clock::now();
    context_.state->phase("evaluating");
    reached(InjectPoint::evaluate, ++evaluations_);
    strategy_.flush_for_evaluation();
    std::map<std::string, MetricValue> values;
    // Evaluation batches have at most the rows of a training batch, because each row may have many candidates.
    if (split)
      values = evaluated_on(Loader(components_.data, components_.transforms, length_.global_rows, loader_options()),
                            may_stop, "evaluate", [this](const Batch& batch) { return strategy_.evaluate(batch); });
    if (holds_out_ && !stopped_)
      for (auto& [name, value] : evaluate_held_out(may_stop)) values["out_of_fold_" + name] = value;
    evaluation_owed_ = stopped_;
    if (stopped_) return resume_training_clock();
    generators_.check_drawn(first_step_ > 0);
    evaluate_seconds_ += seconds_since(start);
    best_.add(values, done);
    Record record = full_record("evaluate", done);
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
      context_.state->phase("evaluating");  // repeated: its time stamp shows progress
      metrics.add(evaluate(*batch));
    }
    same_metrics_.check(kind, metrics.names());
    return metrics.reduce(*context_.world);
  }

  // Evaluates each member on the fold that it leaves out, or the single model on its held-out rows.
  std::map<std::string, MetricValue> evaluate_held_out(bool may_stop) {
    LoaderOptions options = loader_options();
    options.samples = held_out_evaluation_ != nullptr ? held_out_evaluation_->draws() : std::vector<MemberSample>();
    return evaluated_on(
        Loader::held_out(components_.data, components_.transforms, sampler_, length_.global_rows, options), may_stop,
        "held out", [this](const Batch& batch) {
          return held_out_evaluation_ != nullptr ? held_out_evaluation_->evaluate_held_out(batch)
                                                 : strategy_.evaluate(batch);
        });
  }

  void save(int64_t done) {
    pause_training_clock();
    context_.state->phase("saving");
    reached(InjectPoint::save, ++saves_);
    strategy_.flush();
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
                      false, generators_.states(), components_.data.get());
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
    loss_check_.begin_weights(step_ % length_.steps_per_epoch != 0);
    if (context_.rank == 0) report_start();
    context_.state->phase("training");
  }

  void restore_from(const CheckpointInfo& info) {
    const Json& trainer = info.trainer;
    const DataContents data = info.fingerprint.empty() ? DataContents() : components_.data->contents();
    const Resumed from = resumed(info, config_, length_, epoch_rows_, data);
    if (context_.rank == 0) {
      for (const std::string& note : from.notes) log::info(note);
      for (const std::string* warning : {&from.rate_note, &from.split_note})
        if (!warning->empty()) log::warning(*warning);
    }
    checkpoints_.load(strategy_, info, components_.data.get());
    strategy_.state_restored();
    strategy_.renumbered(from.step);
    generators_.restore(trainer, info.path);
    step_ = from.step;
    recorded_ = std::min(step_, info.step);
    rows_before_ = trainer.at("rows").get<int64_t>();
    train_seconds_before_ = trainer.at("train_seconds").get<double>();
    evaluate_seconds_ = trainer.value("evaluate_seconds", 0.0);
    const bool comparable =
        from.same_evaluation && (info.fingerprint.empty() || same_fingerprint(info.fingerprint, data.fingerprint));
    if (comparable) best_.restore(trainer.at("metrics"));
    if (held_out_evaluation_ != nullptr && !(comparable && from.same_watched)) held_out_evaluation_->metrics_changed();
    finished_ = strategy_.evaluated({});  // as before the checkpoint
    read_sampling();
    evaluation_owed_ = trainer.value("evaluation_owed", false);
    // If nothing is left to train, a state of another layout is evaluated here and saved in this layout.
    nothing_left_ = step_ >= length_.total_steps || finished_;
    evaluated_ = checkpoints_.owns(info);
    saved_ = evaluated_ && !evaluation_owed_ && trainer.value("world_size", context_.size) == context_.size;
  }

  void report_start() {
    if (nothing_left_)
      log::info(str("nothing is left to train after step ", step_,
                    saved_ ? "" : "; the state is saved in the layout of this run"));
    else if (const std::string note = length_note(config_.train, length_); !note.empty())
      log::info(note);
  }

  // Drops the metrics of repeated steps from the file.
  void open_sinks() {
    if (context_.rank != 0) return;
    sinks_.push_back(make_jsonl_sink(context_.folder + "/metrics.jsonl", recorded_));
    sinks_.push_back(make_channel_sink(context_.channel));
  }

  // --- Statistics ---

  // Resources that this rank used up to a moment, or between two moments. CPU time is that of the process.
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
    // CPU time of the threads that send heartbeats, check collectives and answer stall inquiries.
    SupervisedChannel* const channel = context_.channel->supervised();
    return {std::chrono::duration<double>(Clock::now().time_since_epoch()).count(),
            process_cpu_seconds(),
            channel != nullptr ? channel->cpu_seconds() / context_.process_ranks : 0,
            world.wait_seconds(),
            world.wait_cpu_seconds(),
            world.bytes_sent()};
  }

  // CPU time without spinning in waits, divided by the wall time of this rank's cores.
  double cpu_efficiency(const Spent& loop) const {
    const double cpu = loop.cpu / context_.process_ranks - loop.wait_cpu;
    return loop.wall > 0 ? cpu / loop.wall / std::max(context_.threads, 1) : 0;
  }

  Json summary(const Json& rank) {
    // Report the value of the slowest or busiest rank, so that one number shows a problem. Sum parameters over
    // owners.
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
    context_.world->all_reduce(worst, ReduceOp::max, {"rank statistics", {}})->wait();
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
    if (const int64_t tokens = components_.data->tokens_per_row(); tokens > 0) json["tokens"] = samples * tokens;
    worst = worst.to(at::kCPU);
    for (size_t i = 0; i < names.size(); ++i) json[names[i]] = worst.data_ptr<double>()[i];
    return json;
  }

  const Context& context_;
  const TrainingComponents& components_;
  const RunConfig& config_;
  Strategy& strategy_;
  Sampling sampling_;
  const int64_t epoch_rows_;  // rows of an epoch, of the model or of each member
  const TrainingLength length_;
  const Sampler sampler_;
  DefaultGenerators generators_;
  SameMetrics same_metrics_;
  LossCheck loss_check_;
  StopAgreement stop_;
  int64_t stop_points_ = 0;  // points passed at which this rank could stop
  bool evaluation_owed_ = false;
  Checkpoints checkpoints_;
  std::vector<std::unique_ptr<Sink>> sinks_;
  std::shared_ptr<std::atomic<bool>> aborted_ = std::make_shared<std::atomic<bool>>(false);

  int64_t step_ = 0;                                          // steps done
  int64_t first_step_ = 0;                                    // first step of this process
  int64_t recorded_ = 0;                                      // last step whose metrics metrics.jsonl keeps
  int64_t evaluations_ = 0, saves_ = 0;                       // started by this process
  int64_t rows_ = 0;                                          // global rows trained by this process, over all members
  int64_t rows_before_ = 0;                                   // global rows trained by earlier processes
  bool stopped_ = false, evaluated_ = false, saved_ = false;  // evaluated_, saved_: of the current state
  bool nothing_left_ = false;                                 // to train, after a checkpoint was restored
  bool finished_ = false;                                     // the strategy ended the training before the last step
  std::optional<Loader> loader_;                              // while training
  bool rebuild_loader_ = true;                                // before the next step
  HeldOutEvaluation* held_out_evaluation_ = nullptr;          // the strategy, if it implements this interface
  bool holds_out_ = false;                                    // folds leave out rows that can be evaluated
  MetricAccumulator train_metrics_;
  BestMetrics best_;
  int64_t updates_ = 0;  // made by this process, including skipped ones
  at::Tensor skipped_;   // updates of this process that the loss scaler skipped; undefined without a scaler
  at::Tensor learning_rate_;
  at::Tensor gradient_norm_;  // of the last update; undefined if not computed
  double last_loss_ = std::numeric_limits<double>::quiet_NaN();

  Clock::time_point started_, lap_, reported_;
  bool training_ = true;
  double train_seconds_ = 0, train_seconds_before_ = 0, evaluate_seconds_ = 0, waited_ = 0, data_cpu_ = 0;
};

}  // namespace

TrainingResult train(const Context& context, const TrainingComponents& components) {
  return Training(context, components).run();
}

}  // namespace convoy
