// TrainingProgress: counts, reports, saves and restores for every training loop. The Trainer and the Run of the C++
// library have one each.
//
// Call order: find and load a checkpoint; set_length and continue_at; start; then, for each step,
// stops, count, report; save at any time between steps; rank and summary statistics at the end.
// Threads: one rank's thread. Every rank makes the same calls in the same order.
// Errors: those of checkpoints, communication and files; CommError(peer_lost) from check_aborted.
#pragma once
#include <ATen/core/Tensor.h>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/checkpoint/checkpoint.h"
#include "core/context.h"
#include "core/control/fault.h"
#include "core/data/dataset.h"
#include "core/files/files.h"
#include "core/metrics/accumulator.h"
#include "core/metrics/sink.h"
#include "core/metrics/tensorboard.h"
#include "core/strategy.h"
#include "core/tensors/random.h"
#include "core/training/length.h"
#include "core/training/resume.h"
#include "core/training/trace.h"

namespace convoy {

// --- Time, CPU time and bytes of this rank, for the summary ---

// Resources that a rank has used until a moment, or between two moments. `cpu` is of the whole process.
struct ResourceUsage {
  double wall = 0, cpu = 0, supervision_cpu = 0, waits = 0, wait_cpu = 0;  // seconds
  int64_t bytes = 0;                                                       // bytes sent

  static ResourceUsage now(const Context& context);
  ResourceUsage operator-(const ResourceUsage& before) const;
};

// Seconds that a training spent on its data.
struct DataTime {
  double waited = 0, cpu = 0;
};

// Collective. Adds the value of the slowest or busiest rank to the job's summary, so that one number shows a problem.
void add_statistics(const Context& context, const Json& rank, Json& summary);

// --- The progress of a training ---

struct TrainingResult {
  bool stopped = false;  // a request stopped the run; a checkpoint exists
  Json summary;          // values of the job, equal on every rank: steps, epochs, samples, seconds, metrics, …
  Json rank;             // values of this rank: waits, CPU, data, bytes sent
};

struct ProgressOptions {
  bool shares_device = false;   // another rank of this process uses the same GPU
  FileSystem* files = nullptr;  // for writing checkpoints; null: the operating system's
  // Called at each InjectPoint of the loop, with the number of that step, epoch, evaluation or save. An exception ends
  // the training.
  std::function<void(InjectPoint, int64_t)> reached = nullptr;
};

// Instances of one row in the counts of the summary.
struct RowCounts {
  int64_t instances = 1;
  int64_t tokens = 0;  // 0: rows are not text
};

// Additions of a training loop to a checkpoint.
struct SavedState {
  bool evaluation_owed = false;   // an evaluation of this state was interrupted
  bool best = false;              // becomes the best checkpoint
  bool last = false;              // the last save; it returns when the files are written
  const Dataset* data = nullptr;  // its contents are recorded; may be null
  Json trainer = Json::object();  // more keys of the trainer section
  Json rank = Json();             // more keys of this rank's section; null: none
};

class TrainingProgress {
 public:
  TrainingProgress(const Context& context, ProgressOptions options);

  // --- Beginning ---
  // Length and intervals; may be set again before `start`.
  void set_length(const TrainConfig& train, const TrainingLength& length, const RowCounts& rows);
  const TrainingLength& length() const { return length_; }
  const TrainConfig& train() const { return train_; }
  // Collective. Returns the checkpoint for train.resume; nullopt for a training from the beginning.
  std::optional<CheckpointInfo> checkpoint();
  // Collective. Restores the strategy's state and the counts of the checkpoint.
  void load(Strategy& strategy, const CheckpointInfo& info, const Dataset* data);
  // Logs notes and warnings about the resumed run, on rank 0.
  void log_notes(const Resumed& from) const;
  // Continues after `step` steps, in the numbering of this run.
  void continue_at(Strategy& strategy, const CheckpointInfo& info, int64_t step);
  bool owns(const CheckpointInfo& info) const { return checkpoints().owns(info); }
  // Restores the best values of a checkpoint of this folder. Those of another run's checkpoint would have no best
  // checkpoint here.
  void restore_metrics(const CheckpointInfo& info) {
    if (owns(info)) best_.restore(info.trainer.at("metrics"));
  }
  // Continues from the trainer section of a state in memory, which the strategy has already.
  void continue_from(Strategy& strategy, const Json& trainer);
  // Opens the sinks, drops the metrics of repeated steps, and writes the kept evaluation if a lost rank 0 did not.
  void open_sinks();
  // Seeds the generators, or restores them from the checkpoint, and starts the clocks. Before this call, a program
  // may draw its data from generators that are equal on all ranks.
  void start();

  // --- Steps ---
  int64_t step() const { return step_; }  // steps done
  void next_step() { ++step_; }
  int64_t first_step() const { return first_step_; }  // first step of this process
  bool resumed() const { return first_step_ > 0; }
  // Calls ProgressOptions::reached, after the checkpoints of earlier steps are written.
  void reached(InjectPoint point, int64_t number);
  // Begins the next step: in the trace, in the position of the rank, and at its InjectPoints. Collective once, after
  // the last traced step.
  void begin_step();
  // Returns true if all ranks stop here. Every rank calls it at the same points in the same order: between steps, and
  // between the batches of an evaluation.
  bool stops();
  bool stopped() const { return stopped_; }
  // Throws if the job was aborted, or if a checkpoint could not be written.
  void check_aborted();
  bool logs_step(int64_t done) const;
  // Counts a batch of `rows` global rows, over all members.
  void count_rows(int64_t rows) { rows_ += rows; }
  // Counts the metrics and the scalars of a step's update.
  void count(const StepResult& result);
  // Warns on rank 0 if the loss scaler skipped every update of this process. `key`: of its first factor.
  void warn_if_all_skipped(const char* key) const;

  // --- Reports ---
  void report_first_step() const;
  // Collective. Sums the metrics that were counted since the last call.
  std::map<std::string, MetricValue> reduce_metrics() { return train_metrics_.reduce(*context_.world); }
  void check_generators() { generators_.check_drawn(resumed()); }
  void record_training(int64_t done, const std::map<std::string, MetricValue>& values);
  void record_evaluation(int64_t done, const std::map<std::string, MetricValue>& values);
  const Json& evaluations() const { return evaluations_; }  // records of the last evaluated step
  // Writes histograms of this rank's weights and gradients, if they are due: after an update.
  void record_histograms(Strategy& strategy, int64_t done, bool updated);
  // Sends the progress line to the supervisor: at a logged step, otherwise a few times a second.
  void post_progress(int64_t done, bool log_step);

  // --- Training clock: evaluation and checkpoints stop it ---
  void pause_clock();
  void resume_clock();
  void add_evaluation_seconds(double seconds) { evaluate_seconds_ += seconds; }

  // --- Checkpoints and the end ---
  // Collective. Saves the state after `done` steps, while training continues if train.checkpoint_async allows it.
  void save(Strategy& strategy, int64_t done, const SavedState& more);
  // Trainer section of the state after `done` steps, which have read `rows` global rows in this process.
  Json trainer_section(int64_t done, int64_t rows) const;
  int64_t rows() const { return rows_; }
  Json metrics_section() const { return best_.json(); }  // `metrics` of the trainer section
  // True if the last checkpoint is not known to be written.
  bool save_unconfirmed() const { return save_unconfirmed_; }
  // Collective. Waits until the last checkpoint is written. True if it was lost and train.on_save_error allowed that.
  bool last_save_lost();
  // Waits until the last checkpoint is written. Throws its failure, for any value of train.on_save_error.
  void wait_for_save();
  // Records the statistics of the loop at one moment, because the last evaluation and checkpoint must not count.
  void end_loop(const DataTime& data);
  // Collective, after end_loop.
  TrainingResult result(Strategy& strategy);

 private:
  using Clock = std::chrono::steady_clock;

  Checkpoints checkpoints() const;
  // Throws an error of `save`, or counts it if train.on_save_error allows it.
  void attempt_save(const std::function<void()>& save);
  void confirm_save() { save_unconfirmed_ = save_unconfirmed_ && saver_ && saver_->in_background(); }
  Record record(const std::string& kind, int64_t done) const;
  Record full_record(const std::string& kind, int64_t done) const;
  void write(const Record& record);
  double training_seconds() const;
  // Posts this rank's resources to the supervisor, if `interval` has passed since the last time.
  void report_resources(Clock::duration interval);
  int64_t instances(int64_t rows) const { return rows * row_counts_.instances; }
  Json summary(Strategy& strategy, const Json& rank);

  const Context& context_;
  const ProgressOptions options_;
  TrainConfig train_;
  TrainingLength length_;
  RowCounts row_counts_;
  DefaultGenerators generators_;
  std::function<void()> restore_generators_;  // null: nothing was loaded
  StopAgreement stop_;
  StepTrace trace_;
  int64_t stop_points_ = 0;  // stop points that this rank has passed
  bool stopped_ = false;
  std::shared_ptr<std::atomic<bool>> aborted_ = std::make_shared<std::atomic<bool>>(false);
  std::vector<std::unique_ptr<Sink>> sinks_;
  TensorBoard* board_ = nullptr;  // one of the sinks; null: no event files
  bool histograms_owed_ = false;

  int64_t step_ = 0;                  // steps done
  int64_t first_step_ = 0;            // first step of this process
  int64_t recorded_ = 0;              // last step whose metrics metrics.jsonl keeps
  Json evaluations_ = Json::array();  // records of the last evaluated step
  bool repeats_evaluation_ = false;   // the evaluation after step `recorded_` was interrupted
  int64_t saves_ = 0;                 // started by this process
  int64_t failed_saves_ = 0;
  bool lost_save_ = false;  // the last save was lost; all ranks know it once the save is over
  bool save_unconfirmed_ = false;
  int64_t rows_ = 0;         // global rows trained by this process, over all members
  int64_t rows_before_ = 0;  // global rows trained by earlier processes
  MetricAccumulator train_metrics_;
  BestMetrics best_;
  int64_t updates_ = 0;
  at::Tensor skipped_;  // updates of this process that the loss scaler skipped; undefined without a scaler
  at::Tensor learning_rate_;
  at::Tensor gradient_norm_;  // norm of the last update; undefined if not computed
  double last_loss_ = std::numeric_limits<double>::quiet_NaN();

  ResourceUsage before_;  // the loop
  Json rank_;             // statistics of the loop
  Clock::time_point started_, lap_, reported_, resources_at_;
  bool training_ = true;
  double train_seconds_ = 0, train_seconds_before_ = 0, evaluate_seconds_ = 0;
  std::optional<Checkpoints> saver_;  // since the first save
};

}  // namespace convoy
