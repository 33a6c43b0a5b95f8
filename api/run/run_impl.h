// Implementation of Run: a run of a program, with the counts, records and checkpoints of every run.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <convoy/run.h>
#include <convoy/trained.h>
#include "api/job_impl.h"
#include "api/run/batches.h"
#include "api/run/run_folder.h"
#include "api/run/run_metrics.h"
#include "core/training/membership.h"
#include "core/training/progress.h"

namespace convoy {

// Keys in a checkpoint's trainer section.
inline constexpr char share_section[] = "share";  // LoopSettings::batches
inline constexpr char kept_section[] = "kept";    // objects of a rank, by name
inline constexpr char rate_key[] = "set_rates";   // learning rates that the program has set for a fused optimizer

// Settings of a loop of `share`: its options with the settings of the job.
struct LoopSettings {
  TrainConfig train;
  uint64_t seed = 1;
  bool shuffle = true, drop_last = false;
  int64_t rows = 0;        // rows of the data set
  int64_t epoch_rows = 0;  // rows that an epoch reads
  std::string data;        // identity of the data; "": unknown
  std::optional<int64_t> prefetch;

  // Values that determine the batches: stored in checkpoints, compared on resume and among ranks.
  Json batches() const;
};

struct Run::Impl {
  Impl(const Job& job, const std::string& folder, Trained& trained);
  ~Impl();

  // --- State ---
  void restore_from(const std::string& path);
  void keep(const std::string& name, std::function<std::string()> save, std::function<void(const std::string&)> load);
  void save();
  void finish();

  // --- The training loop, called by its Share or by each_batch ---
  void begin_loop(const OpenData& data, const ShareOptions& options);
  bool next(ShareBatch& batch);
  void leave();  // the loop was left by `break`
  bool resumed() const { return from_.has_value() || taken_over_; }
  void log(const std::string& name, const at::Tensor& sum, std::optional<double> weight);
  int64_t done() const;  // steps done, with the step of the current batch if it is complete
  // Begins a pass over data, which stops the training clock.
  void begin_pass();
  void end_pass(double seconds);
  // Returns the data set; the first call with this name and these options opens it.
  const OpenData& named_data(const std::string& name, const DataOptions& options);
  void each_batch(const OpenData& data, const ShareOptions& options, const BatchBody& body);
  // Throws in a job with launch.min_ranks.
  void check_may_share() const;

  const std::shared_ptr<void> job_users, trained_users;
  const Job& job;
  Context& context;
  Trained& trained;
  Strategy& strategy;
  std::optional<EmbeddedRunFolder> embedded_folder;
  std::optional<TrainingProgress> progress;
  std::optional<RunMetrics> metrics;
  std::optional<Batches> batches;
  std::optional<LoopSettings> settings;  // set by the first share
  const int exceptions;                  // number in flight when this object was created
  bool finished = false;

 private:
  struct Stored {
    std::function<std::string()> save;
    std::function<void(const std::string&)> load;
    std::optional<std::string> restored = {};  // its text when the resumed training begins
  };

  // --- Changes of the ranks (api/run/each_batch.cpp) ---

  // Values of the program at the beginning of a body.
  struct BodyStart {
    Json trainer;                             // trainer section of a checkpoint
    std::map<std::string, std::string> kept;  // objects as text
    std::vector<double> rates;                // learning rates
  };
  void begin_progress();
  bool take_over_training();
  BodyStart broadcast(const BodyStart& start, int source) const;
  void note_body();
  void note_update();
  void begin_keeping();
  void keep_training();
  bool continue_with_others();
  void restore_stored();
  void repeat_body();

  // Position of this rank. Other ranks may be one update ahead or behind, because they lost the peer elsewhere.
  struct Position {
    int64_t completed = -1;  // batches whose body and records are complete; -1: this rank has no state
    int64_t updated = -1;    // batches in the state after the last update
    int64_t calls = 0;       // calls of Trained in that body, up to and with the update
    int64_t updates = -1;    // updates since the job began
    bool owes_save = false;  // a checkpoint was not written
  };
  bool has_state_ = false;  // the strategy has a state of this membership
  Position position_;
  std::map<int64_t, BodyStart> starts_;  // by batch
  KeptTraining kept_training_;
  BufferCopies buffers_;
  bool taken_over_ = false;   // this process has received the state of other ranks, or continued its own
  bool repeated_ = false;     // the update of the current batch was part of the state before its body began
  std::string resumed_path_;  // argument of restore_from

  void restore(const CheckpointInfo& info);
  void restore_kept(const std::string& name, const Stored& object);
  LoopSettings settings_of(const OpenData& data, const ShareOptions& options) const;
  void compare_with_ranks(const LoopSettings& wanted);
  void place(const LoopSettings& wanted);
  void check_kept_unchanged();
  void check_savable() const;
  void note_kept() const;
  void note_unsaved() const;
  void complete();
  void end_loop();
  void save_after(int64_t steps, bool last = false);
  bool closed() const { return embedded_folder && embedded_folder->done(); }
  bool stepped() const { return open_ && trained_calls() > calls_before_; }
  bool updated() const;
  bool ahead() const;  // the state has the update that the body will not make again
  int64_t trained_calls() const;
  void check_called(const ShareBatch& batch) const;

  std::optional<CheckpointInfo> from_;  // checkpoint from which the run resumed
  std::map<std::string, Stored> kept_;
  std::map<std::string, OpenData> named_;
  ShareBatch* batch_ = nullptr;  // the current batch
  bool open_ = false;            // the body of the loop runs
  bool updated_ = true;          // the last step ended without accumulated gradients
  bool save_postponed_ = false;  // a call of save() waits for the end of the body
  bool checkpoint_owed_ = false, saved_ = false, nothing_left_ = false, loop_ended_ = true;
  int64_t calls_before_ = 0;    // calls of Trained before the current batch
  bool logs_loss_ = false;      // the program logs the loss
  std::vector<Metric> losses_;  // losses of each accumulate() and step() with the current batch
  DataTime data_time_;          // sum over the loops that ended
  int64_t passes_ = 0;
  int64_t unstepped_ = 0;  // batches of this loop without accumulate() or step()
  int comparisons_ = 0;
};

}  // namespace convoy
