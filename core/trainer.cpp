#include "core/trainer.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <chrono>
#include <utility>
#include <vector>

#include "core/base/log.h"
#include "core/control/assignment.h"
#include "core/data/catalogue/declared_schema.h"
#include "core/data/contents.h"
#include "core/data/loader.h"
#include "core/files/limits.h"
#include "core/model_checks.h"
#include "core/rank_state/position.h"
#include "core/training/evaluation.h"
#include "core/training/resume.h"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;

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
        progress_(context, {components.shares_device, components.files, components.reached}),
        evaluator_(context, {components.data, components.transforms, components.strategy, length_.global_rows},
                   sampler_),
        keep_best_("train.keep_best", config_.train.keep_best),
        early_stop_("train.early_stop", config_.train.early_stop),
        loss_check_(context) {
    progress_.set_length(config_.train, length_,
                         {components.data->instances_per_row(), components.data->tokens_per_row()});
  }

  TrainingResult run() {
    if (components_.kept == nullptr) return trained();
    try {
      TrainingResult result = trained();
      keep();
      end_membership(context_);
      return result;
    } catch (const CommError&) {
      keep();
      throw;
    }
  }

 private:
  TrainingResult trained() {
    restore();
    progress_.open_sinks();
    if (components_.after_update) components_.after_update(step());
    progress_.start();
    // A stop request interrupted an evaluation, or members that trained separately are joined here and evaluated
    // first.
    if (evaluation_owed_) evaluate(step(), true);
    if (best_owed_ || save_owed_) save(step());
    if (step() < length_.total_steps && !finished_) loop();
    end_loader();
    progress_.end_loop(data_time_);
    finish();
    TrainingResult result = progress_.result(strategy_);
    if (const Json best = keep_best_.json(); best.is_object() && best.contains("step"))
      result.summary["best_checkpoint"] = best;
    if (early_stop_.exhausted()) result.summary["early_stop"] = early_stop_.json();
    if (paused_) result.summary[protocol::paused] = true;
    return result;
  }

  int64_t step() const { return progress_.step(); }

  LoaderOptions loader_options() const { return share_options(context_, sampling_); }

  // Starts a loader at the current step, for the current members.
  void begin_loader() {
    end_loader();
    if (sampling_.job_members > 0 && sampling_.samples.empty()) return;  // only other ranks' members still train
    loader_.emplace(components_.data, components_.transforms, sampler_, step(), length_.total_steps, loader_options());
  }

  void end_loader() {
    if (!loader_) return;
    data_time_.waited += loader_->waited_seconds();
    data_time_.cpu += loader_->cpu_seconds();
    loader_.reset();
  }

  Batch next_batch() {
    if (!loader_) return {};
    std::optional<Batch> batch = loader_->next();
    CONVOY_CHECK(batch.has_value(), "the loader ended before step ", step());
    return std::move(*batch);
  }

  // Ensemble members may have finished; the others get a new loader from the next step on.
  void read_sampling() {
    const Sampling now = strategy_.sampling();
    const bool same = now.samples == sampling_.samples;
    sampling_ = now;
    if (!same && loader_) rebuild_loader_ = true;
  }

  // --- The loop ---

  void loop() {
    rebuild_loader_ = true;
    // Stop and save only after an update that all ranks made: otherwise accumulated gradients are lost.
    bool updated = true;
    bool checkpoint_owed = false;
    for (; step() < length_.total_steps && !finished_; progress_.next_step()) {
      progress_.check_aborted();
      if (progress_.stopped() || (updated && progress_.stops())) break;
      paused_ = updated && reached(config_.train.pause_after, step(), length_.steps_per_epoch);
      if (paused_) break;
      progress_.begin_step();
      const int64_t step = progress_.step(), done = step + 1;
      if (rebuild_loader_) begin_loader();
      rebuild_loader_ = false;
      Batch batch = next_batch();
      progress_.count_rows(sampler_.rows_of(step) * std::max<int64_t>(sampling_.job_members, 1));
      const bool log_step = progress_.logs_step(done);
      const bool flush = length_.ends_epoch(done) || done == length_.total_steps;
      StepInput input{std::move(batch), step, flush, log_step};
      context_.state->phase("forward/backward");
      context_.times->phase(TimePart::forward);
      const StepResult result = strategy_.step(input);
      context_.times->phase(TimePart::other);
      updated = result.updated;
      if (updated) note_update(done);
      progress_.count(result);
      loss_check_.check_finite(result, step);
      if (updated && components_.after_update) components_.after_update(done);
      if (step == progress_.first_step()) progress_.report_first_step();
      if (log_step) report_training(done);
      progress_.record_histograms(strategy_, done, updated);
      progress_.post_progress(done, log_step);
      evaluated_ = due(config_.train.evaluate_every, done, length_.steps_per_epoch);
      if (evaluated_) evaluate(done, updated);
      checkpoint_owed |= due(config_.train.checkpoint_every, done, length_.steps_per_epoch);
      saved_ = (checkpoint_owed || best_owed_) && updated;
      if (saved_) {
        save(done);
        checkpoint_owed = false;
      }
    }
    progress_.pause_clock();
  }

  // Evaluates and saves the last state, independent of the intervals.
  void finish() {
    const bool wants_evaluation = config_.train.evaluate_every.unit != Interval::Unit::never;
    if (wants_evaluation && !progress_.stopped() && !evaluated_) evaluate(step(), true);
    const bool wants_checkpoint =
        progress_.stopped() || paused_ || nothing_left_ || config_.train.checkpoint_every.unit != Interval::Unit::never;
    if (progress_.last_save_lost()) {
      best_owed_ = best_owed_ || (saved_ && std::exchange(saves_best_, false));
      saved_ = false;
    }
    forget_lost_best();
    if (best_owed_ || (!saved_ && wants_checkpoint)) save(step(), true);
    progress_.wait_for_save();
    progress_.warn_if_all_skipped("strategy.loss_scale.initial");
    context_.state->phase("done");
  }

  void report_training(int64_t done) {
    progress_.check_generators();
    const auto values = progress_.reduce_metrics();
    if (const auto loss = values.find("loss"); loss != values.end())
      loss_check_.check_weight(loss->second, length_.epoch_of(done),
                               length_.ends_epoch(done) || done == length_.total_steps);
    progress_.record_training(done, values);
  }

  // --- Evaluation and checkpoints ---

  // Evaluates. If a stop is requested and `may_stop` is true, abandons the evaluation; a resumed run then starts with
  // it. `may_stop` is false while gradients accumulate.
  void evaluate(int64_t done, bool may_stop) {
    if (!evaluator_.possible()) return;
    progress_.pause_clock();
    const Clock::time_point start = Clock::now();
    context_.state->phase("evaluating");
    context_.times->phase(TimePart::evaluation);
    progress_.reached(InjectPoint::evaluate, ++evaluations_);
    strategy_.flush_for_evaluation();
    const auto values = evaluator_.run(loader_options(), [&] {
      progress_.check_aborted();
      return may_stop && progress_.stops();
    });
    evaluation_owed_ = !values;
    if (evaluation_owed_) {
      context_.times->phase(TimePart::other);
      return progress_.resume_clock();
    }
    progress_.check_generators();
    progress_.add_evaluation_seconds(seconds_since(start));
    progress_.record_evaluation(done, *values);
    finished_ = strategy_.evaluated(*values);
    watch(done, *values, may_stop);
    evaluated_step_ = done;
    if (may_stop) note_evaluation();
    read_sampling();
    context_.state->phase("training");
    context_.times->phase(TimePart::other);
    progress_.resume_clock();
  }

  // `whole`: no gradients accumulate, so a checkpoint has the state that was evaluated.
  void watch(int64_t done, const std::map<std::string, MetricValue>& values, bool whole) {
    if (whole && keep_best_.watches()) forget_lost_best();
    const WatchedMetric before = keep_best_;
    if (whole)
      best_owed_ = keep_best_.add(values, done);
    else if (keep_best_.watches() && context_.rank == 0 && !skipped_best_)
      log::warning(
          "train.keep_best: evaluations between two updates are not kept; let train.evaluate_every be a "
          "multiple of the steps of an update");
    if (best_owed_) kept_best_ = before;
    skipped_best_ = skipped_best_ || !whole;
    early_stop_.add(values, done);
    if (!early_stop_.exhausted()) return;
    finished_ = true;
    if (context_.rank == 0)
      log::info(str("train.early_stop ends the training after step ", done, ": ", early_stop_.text(), " was the best, ",
                    config_.train.early_stop.patience, " evaluations ago"));
  }

  // If the checkpoint of the best state could not be written, an earlier one is the best that there is. A later
  // evaluation that is better than that one is saved again.
  void forget_lost_best() {
    if (saves_best_ && progress_.last_save_lost()) keep_best_ = *kept_best_;
    saves_best_ = false;
  }

  void save(int64_t done, bool last = false) {
    forget_lost_best();
    SavedState state;
    state.last = last;
    state.evaluation_owed = evaluation_owed_;
    state.data = components_.data.get();
    state.best = best_owed_;
    if (keep_best_.watches()) state.trainer["keep_best"] = keep_best_.json();
    if (early_stop_.watches()) state.trainer["early_stop"] = early_stop_.json();
    progress_.save(strategy_, done, state);
    saved_step_ = done;
    saves_best_ = best_owed_;
    best_owed_ = save_owed_ = false;
  }

  // --- State for a training with other ranks ---

  // `done` steps are in the parameters.
  void note_update(int64_t done) {
    if (components_.kept == nullptr) return;
    updated_step_ = done;
    updated_rows_ = progress_.rows();
    buffers_.take();
  }

  // Records the watched metrics of the state after the last update. An evaluation while gradients accumulate is not
  // recorded: after the loss of a rank it is repeated, with its steps.
  void note_evaluation() {
    if (components_.kept == nullptr) return;
    watched_ = {
        {"keep_best", keep_best_.json()}, {"early_stop", early_stop_.json()}, {"metrics", progress_.metrics_section()}};
  }

  void begin_keeping() {
    if (components_.kept == nullptr) return;
    buffers_.begin(strategy_);
    note_update(step());
    note_evaluation();
    evaluated_step_ = evaluated_ && !evaluation_owed_ ? step() : -1;
    saved_step_ = saved_ && !save_owed_ ? step() : -1;
    components_.kept->clear();  // the strategy has this state now
  }

  // After a CommError the strategy can only be destroyed, and its tensors have the state after the last update: nothing
  // communicates between the first and the last write of an update.
  void keep() {
    if (updated_step_ < 0) return;  // this training has not begun; keeps what an earlier one kept
    const at::NoGradGuard no_grad;
    KeptTraining& kept = *components_.kept;
    strategy_.flush();
    kept.entries = kept_entries(strategy_);
    buffers_.replace_in(kept.entries);
    kept.trainer = progress_.trainer_section(updated_step_, updated_rows_);
    kept.trainer.update(watched_);
    const bool evaluated = evaluated_step_ == updated_step_;
    const auto owed = [&](const Interval& every) {
      return updated_step_ > 0 && due(every, updated_step_, length_.steps_per_epoch);
    };
    kept.trainer.update({{"evaluated", evaluated},
                         {"evaluations", evaluated ? progress_.evaluations() : Json::array()},
                         {"evaluation_owed", !evaluated && (evaluation_owed_ || owed(config_.train.evaluate_every))},
                         {"best_owed", best_owed_ || (saves_best_ && progress_.save_unconfirmed())},
                         {"saved", saved_step_ == updated_step_ && !progress_.save_unconfirmed()},
                         {"save_owed", progress_.save_unconfirmed() || save_owed_ ||
                                           (saved_step_ != updated_step_ && owed(config_.train.checkpoint_every))}});
    kept.steps = updated_step_;
  }

  bool restore_kept() {
    if (components_.kept == nullptr) return false;
    const std::optional<Json> trainer = take_over(context_, strategy_, *components_.kept);
    if (!trainer) return false;
    progress_.continue_from(strategy_, *trainer);
    keep_best_.restore(trainer->at("keep_best"));
    early_stop_.restore(trainer->at("early_stop"));
    finished_ = strategy_.evaluated({}) || early_stop_.exhausted();
    read_sampling();
    evaluation_owed_ = trainer->at("evaluation_owed");
    best_owed_ = trainer->at("best_owed");
    save_owed_ = trainer->at("save_owed");
    nothing_left_ = step() >= length_.total_steps || finished_;
    // `trained` makes an owed evaluation and an owed save before the loop.
    evaluated_ = evaluation_owed_ || trainer->at("evaluated").get<bool>();
    saved_ = save_owed_ || trainer->at("saved").get<bool>();
    return true;
  }

  // A run that begins from another run's checkpoint compares only evaluations that it made itself.
  void restore_watched(const CheckpointInfo& info) {
    if (!progress_.owns(info)) return;
    keep_best_.restore(info.trainer.value("keep_best", Json()));
    early_stop_.restore(info.trainer.value("early_stop", Json()));
  }

  void restore() {
    context_.state->phase(loading_phase);
    const bool in_memory = restore_kept();
    if (!in_memory) restore_stored();
    begin_keeping();
    if (context_.rank == 0 && components_.kept != nullptr)
      context_.channel->post(protocol::continued, Json{{"step", step()}, {"in_memory", in_memory}});
    loss_check_.begin_weights(!length_.ends_epoch(step()));
    if (context_.rank == 0 && !in_memory) report_start();
    context_.state->phase("training");
  }

  void restore_stored() {
    if (const std::optional<CheckpointInfo> info = progress_.checkpoint())
      restore_from(*info);
    else if (components_.initial_values)
      components_.initial_values();
  }

  void restore_from(const CheckpointInfo& info) {
    const Json& trainer = info.trainer;
    const DataContents data = info.fingerprint.empty() ? DataContents() : components_.data->contents();
    const Resumed from = resumed(info, config_, length_, epoch_rows_, data);
    progress_.log_notes(from);
    progress_.load(strategy_, info, components_.data.get());
    progress_.continue_at(strategy_, info, from.step);
    const bool comparable =
        from.same_evaluation && (info.fingerprint.empty() || same_fingerprint(info.fingerprint, data.fingerprint));
    if (comparable) progress_.restore_metrics(info);
    if (comparable) restore_watched(info);
    HeldOutEvaluation* const members = evaluator_.held_out();
    if (members != nullptr && !(comparable && from.same_watched)) members->metrics_changed();
    finished_ = strategy_.evaluated({}) || early_stop_.exhausted();  // as before the checkpoint
    read_sampling();
    evaluation_owed_ = trainer.value("evaluation_owed", false);
    // If nothing is left to train, a state of another layout is evaluated here and saved in this layout.
    nothing_left_ = step() >= length_.total_steps || finished_;
    evaluated_ = progress_.owns(info);
    saved_ = evaluated_ && !evaluation_owed_ && trainer.value("world_size", context_.size) == context_.size;
  }

  void report_start() {
    if (nothing_left_)
      log::info(str("nothing is left to train after step ", step(),
                    saved_ ? "" : "; the state is saved in the layout of this run"));
    else if (const std::string note = length_note(config_.train, length_); !note.empty())
      log::info(note);
  }

  const Context& context_;
  const TrainingComponents& components_;
  const RunConfig& config_;
  Strategy& strategy_;
  Sampling sampling_;
  const int64_t epoch_rows_;  // rows of an epoch, of the model or of each member
  const TrainingLength length_;
  const Sampler sampler_;
  TrainingProgress progress_;
  Evaluator evaluator_;
  WatchedMetric keep_best_, early_stop_;
  LossCheck loss_check_;
  bool best_owed_ = false;                  // the current state is the best and not saved
  bool save_owed_ = false;                  // the loss of a rank interrupted a save
  bool skipped_best_ = false;               // an evaluation could not be kept
  bool saves_best_ = false;                 // the last save was of the best state
  std::optional<WatchedMetric> kept_best_;  // keep_best_ before the newest best state
  bool evaluation_owed_ = false;
  int64_t evaluations_ = 0;                 // started by this process
  bool evaluated_ = false, saved_ = false;  // the current state is evaluated, is saved
  bool nothing_left_ = false;               // the restored checkpoint leaves nothing to train
  bool finished_ = false;                   // the strategy ended the training before the last step
  std::optional<Loader> loader_;            // while training
  bool rebuild_loader_ = true;              // before the next step
  bool paused_ = false;                     // train.pause_after ended the loop
  DataTime data_time_;
  // With components_.kept:
  int64_t updated_step_ = -1, updated_rows_ = 0;   // after the last update; -1: before the first step
  int64_t evaluated_step_ = -1, saved_step_ = -1;  // after the last evaluation; at the last save
  Json watched_;                                   // metrics of the last evaluation after an update
  BufferCopies buffers_;
};

}  // namespace

TrainingResult train(const Context& context, const TrainingComponents& components) {
  return Training(context, components).run();
}

}  // namespace convoy
