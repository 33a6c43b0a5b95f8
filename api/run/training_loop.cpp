// The training loop of Run: its settings, its step after a resume, and the steps.
#include <ATen/ops/scalar_tensor.h>

#include <utility>

#include "api/run/run_impl.h"
#include "api/trained_impl.h"
#include "core/base/log.h"
#include "core/config/node.h"
#include "core/rank_state/position.h"
#include "core/training/resume.h"

namespace convoy {
namespace {

Interval interval_of(const Every& every) {
  if (every.unit == Every::Unit::never) return {};
  return {every.unit == Every::Unit::steps ? Interval::Unit::steps : Interval::Unit::epochs, every.count};
}

void refuse_below(int64_t least, const char* name, int64_t value) {
  if (value < least) throw Error(Failure::config, "share: ", name, " is ", value, "; give at least ", least);
}

void check_options(const ShareOptions& options, int64_t rows) {
  refuse_below(1, "the number of rows of the data", rows);
  refuse_below(1, "batch_size", options.batch_size);
  refuse_below(0, "epochs", options.epochs);
  refuse_below(0, "max_steps", options.max_steps);
  if (options.epochs == 0 && options.max_steps == 0)
    throw Error(Failure::config, "share: epochs and max_steps are 0, so the training would not end; give one of them");
  if (options.checkpoint_every && options.checkpoint_every->unit != Every::Unit::never)
    refuse_below(1, "checkpoint_every", options.checkpoint_every->count);
  refuse_below(0, "keep_last", options.keep_last.value_or(0));
  refuse_below(1, "log_every", options.log_every.value_or(1));
  refuse_below(0, "prefetch", options.prefetch.value_or(0));
  if (options.drop_last && rows < options.batch_size)
    throw Error(Failure::config, "share: drop_last leaves no batch: the data has ", rows, " rows, and batch_size is ",
                options.batch_size);
}

// "rows: 100 -> 90, seed: 1 -> 2"; "" if nothing differs.
std::string differences_of(const Json& was, const Json& is) {
  std::vector<std::string> lines;
  for (const auto& [key, value] : is.items())
    if (was.contains(key) && was[key] != value) lines.push_back(to_string(Difference{key, was[key], value}));
  return join(lines, ", ");
}

}  // namespace

Json LoopSettings::batches() const {
  return {{"rows", rows},       {"batch_size", train.batch.rows}, {"seed", seed},
          {"shuffle", shuffle}, {"drop_last", drop_last},         {"data", data}};
}

LoopSettings Run::Impl::settings_of(const OpenData& data, const ShareOptions& options) const {
  const RunConfig& config = context.config;
  const SourceLocations written = locations_of(config.resolved);
  const auto decides = [&](const char* key) { return written.count(key) == 0; };  // the program
  LoopSettings wanted;
  wanted.train = config.train;
  wanted.train.epochs = options.epochs;
  wanted.train.max_steps = options.max_steps;
  wanted.train.batch = {options.batch_size, false};
  if (options.checkpoint_every && decides("train.checkpoint_every"))
    wanted.train.checkpoint_every = interval_of(*options.checkpoint_every);
  if (options.keep_last && decides("train.keep_last")) wanted.train.keep_last = *options.keep_last;
  if (options.log_every && decides("train.log_every")) wanted.train.log_every = *options.log_every;
  wanted.seed = options.seed && decides("seed") ? *options.seed : config.seed;
  wanted.shuffle = options.shuffle;
  wanted.drop_last = options.drop_last;
  wanted.rows = data.rows;
  wanted.epoch_rows = options.drop_last ? data.rows - data.rows % options.batch_size : data.rows;
  wanted.data = data.identity;
  wanted.prefetch = options.prefetch ? options.prefetch : data.prefetch;
  return wanted;
}

// Ranks with other batches would train something else without an error.
void Run::Impl::compare_with_ranks(const LoopSettings& wanted) {
  if (context.size == 1) return;
  context.world->barrier({"share", {}})->wait();  // if a rank ends its training instead, the mismatch names it
  Json mine = wanted.batches();
  mine.update({{"epochs", wanted.train.epochs},
               {"max_steps", wanted.train.max_steps},
               {"checkpoint_every", to_json(wanted.train.checkpoint_every)},
               {"keep_last", wanted.train.keep_last},
               {"log_every", wanted.train.log_every}});
  const auto timeout = timeout_of(context.config.launch.rendezvous);
  const std::vector<std::string> all =
      context.channel->agree(str("run/share/", comparisons_++), context.rank, context.size, mine.dump(), timeout);
  for (size_t rank = 1; rank < all.size(); ++rank)
    if (const std::string found = differences_of(Json::parse(all.front()), Json::parse(all[rank])); !found.empty())
      throw CommError(Failure::disagreement, static_cast<int>(rank), "share: rank ", rank,
                      " has other data or options than rank 0: ", found, "; give the same on every rank");
}

void Run::Impl::begin_loop(const OpenData& data, const ShareOptions& options) {
  if (open_) throw Error(Failure::config, "share: the loop over an earlier share still runs");
  check_options(options, data.rows);
  const LoopSettings wanted = settings_of(data, options);
  compare_with_ranks(wanted);
  const Sampler sampler(wanted.rows, wanted.train.batch.rows, wanted.seed, wanted.shuffle, wanted.drop_last);
  TrainingLength length = training_length(wanted.train, wanted.epoch_rows, 1);
  context.steps_per_epoch = length.steps_per_epoch;
  context.total_steps = length.total_steps;
  if (settings) {
    const std::string found = differences_of(settings->batches(), wanted.batches());
    if (!found.empty())
      throw Error(Failure::config,
                  "share: a second call continues the training, and its batches would differ: ", found);
    length.open_ended = progress->length().open_ended || length.total_steps > progress->length().total_steps;
  }
  progress->set_length(wanted.train, length, data.counts);
  if (!settings) place(wanted);
  settings = wanted;
  begin_keeping();
  check_kept_unchanged();
  if (closed() && progress->step() < length.total_steps)
    throw Error(Failure::output, context.folder, ": holds a run that is done, of ", progress->step(),
                " steps; to train for longer, give job.resume another folder and call run.resume(\"", context.folder,
                "\")");
  loop_ended_ = false;
  progress->resume_clock();

  const Sampling sampling = strategy.sampling();
  Batches::Request request;
  request.first_step = progress->step();
  request.end_step = length.total_steps;
  request.loader.share_index = sampling.index;
  request.loader.share_count = sampling.count;
  request.loader.device = context.devices.front();
  request.loader.prefetch = wanted.prefetch;
  request.loader.seed = data.seed;
  request.loader.times = context.times;
  batches.emplace(data, sampler, request);
}

const OpenData& Run::Impl::named_data(const std::string& name, const DataOptions& options) {
  std::string key = name;
  for (const auto& [option, value] : options) key += str(" ", option, "=", value);
  const auto found = named_.find(key);
  if (found != named_.end()) return found->second;
  if (!settings) context.state->phase(reading_phase);
  const OpenData& opened = named_.emplace(key, open_named(name, options, context.config.seed)).first->second;
  if (!settings) context.state->phase("training");
  return opened;
}

void Run::Impl::begin_pass() {
  progress->pause_clock();
  context.state->phase("evaluating");
  context.times->phase(TimePart::evaluation);
  progress->reached(InjectPoint::evaluate, ++passes_);
}

void Run::Impl::end_pass(double seconds) {
  progress->add_evaluation_seconds(seconds);
  context.state->phase(open_ ? "forward/backward" : "training");
  context.times->phase(open_ ? TimePart::forward : TimePart::other);
  if (!loop_ended_) progress->resume_clock();
}

// Sets the training to the step of the checkpoint, in the numbering of these batches.
void Run::Impl::place(const LoopSettings& wanted) {
  if (from_) {
    const std::string found = differences_of(from_->trainer.value(share_section, Json::object()), wanted.batches());
    if (!found.empty() && context.config.train.resume == "auto")
      throw Error(Failure::output, context.folder, ": holds another training: ", found,
                  "; give another run folder. To begin there from this training, set train.resume=", context.folder,
                  " or call run.resume(\"", context.folder, "\")");
    const TrainingLength& length = progress->length();
    Resumed from = convoy::resumed(*from_, context.config, length, wanted.epoch_rows);
    if (!found.empty()) from.notes.push_back("the batches differ from those before: " + found);
    progress->log_notes(from);
    progress->continue_at(strategy, *from_, from.step);
    if (from.same_evaluation) progress->restore_metrics(*from_);
    nothing_left_ = progress->step() >= length.total_steps;
    saved_ = closed() || (progress->owns(*from_) && from_->trainer.value("world_size", context.size) == context.size);
  }
  trained.impl().set_steps(progress->step());
  if (progress->train().checkpoint_every.unit != Interval::Unit::never) check_savable();
  note_kept();
  note_unsaved();
  if (!closed()) progress->open_sinks();
  progress->start();
}

// A call of share for an epoch before the resumed step makes no steps. If the code after this call changed a kept
// object again, as before the resume, the change would count twice.
void Run::Impl::check_kept_unchanged() {
  if (!from_ || job.impl().continues() || progress->step() != progress->first_step()) return;
  for (auto& [name, object] : kept_) {
    const std::string text = object.save();
    if (object.restored && *object.restored != text)
      throw Error(Failure::config, "share: this run resumed after step ", progress->step(), ", and '", name,
                  "' has changed since, before a step was made: the code after an earlier call of share ran again. "
                  "Change '",
                  name, "' in the body of the loop instead, where batch.ends_epoch is true");
    object.restored = text;
  }
}

// Other axes than `data` are the program's: convoy does not know whether their ranks hold equal tensors or pieces.
void Run::Impl::check_savable() const {
  for (const Axis& axis : context.mesh.axes())
    if (axis.name != "data" && axis.degree > 1)
      throw Error(Failure::config, "a checkpoint: Job::mesh has the axis ", axis.name, " of ", axis.degree,
                  " ranks, and convoy does not know whether they hold equal tensors or pieces, so it cannot save them; "
                  "set checkpoint_every of ShareOptions to Every::never(), and save the tensors yourself");
}

// Objects in the checkpoint that this program no longer keeps.
void Run::Impl::note_kept() const {
  if (!from_ || context.rank != 0) return;
  const Json::json_pointer first(str("/ranks/0/", kept_section));
  const Json values = from_->trainer.value(first, Json::object());
  for (const auto& [name, value] : values.items())
    if (kept_.count(name) == 0)
      log::warning(str("checkpoint ", from_->path, " has '", name, "', which this program does not keep: it is lost"));
}

// A checkpoint has the Trained of resume(), and the kept objects.
void Run::Impl::note_unsaved() const {
  const int others = job.impl().trained - 1;
  if (context.rank != 0 || others <= static_cast<int>(kept_.size())) return;
  if (progress->train().checkpoint_every.unit == Interval::Unit::never) return;
  log::warning(str("this job has ", others + 1,
                   " objects of Replicas or Shards, and checkpoints have only the one of "
                   "job.resume: a resumed run begins with a new state of the others; save them by run.keep(name, save, "
                   "load)"));
}

bool Run::Impl::next(ShareBatch& batch) {
  if (open_) complete();
  if (loop_ended_) return false;
  note_body();
  const TrainingLength& length = progress->length();
  progress->check_aborted();
  const int64_t step = progress->step();
  if (step >= length.total_steps || progress->stopped() || (updated_ && progress->stops())) {
    end_loop();
    return false;
  }
  progress->begin_step();
  batches->read(batch);
  batch.ends_epoch = length.ends_epoch(step + 1);
  progress->count_rows(batch.global_rows);
  batch_ = &batch;
  calls_before_ = trained_calls();
  losses_.clear();
  open_ = true;
  repeat_body();
  context.state->phase("forward/backward");
  context.times->phase(TimePart::forward);
  return true;
}

int64_t Run::Impl::trained_calls() const { return trained.impl().calls(); }

// A rank that skips an empty batch would pair its next gradients with the wrong step of the others.
void Run::Impl::check_called(const ShareBatch& batch) const {
  if (batch.rows > 0 || stepped() || calls_before_ == 0) return;
  throw Error(Failure::training, "this rank has no rows of the batch, and made no step with it; call step() on every ",
              "rank for every batch: without arguments, or with a loss over 0 rows");
}

bool Run::Impl::ahead() const { return open_ && repeated_ && trained.impl().skips(); }

bool Run::Impl::updated() const { return stepped() ? trained.impl().result().updated : updated_; }

int64_t Run::Impl::done() const {
  if (!progress) return position_.completed;   // the job has ended
  if (!settings && from_) return from_->step;  // share has not been called yet
  return progress->step() + (stepped() ? 1 : 0);
}

void Run::Impl::complete() {
  check_called(*batch_);
  context.times->phase(TimePart::other);
  const int64_t step = progress->step(), done = step + 1;
  updated_ = updated();
  if (stepped() && !repeated_) {
    StepResult result = trained.impl().result();
    result.metrics.clear();
    progress->count(result);
  } else if (!stepped()) {
    ++unstepped_;
  }
  if (!logs_loss_)
    for (const Metric& loss : losses_) metrics->add("loss", loss.sum, loss.weight);
  losses_.clear();
  open_ = false;
  if (step == progress->first_step()) progress->report_first_step();
  const bool log_step = progress->logs_step(done);
  if (log_step && !repeated_) {
    progress->check_generators();
    progress->record_training(done, metrics->reduce());
  }
  progress->record_histograms(strategy, done, updated_);
  progress->post_progress(done, log_step);
  checkpoint_owed_ |= due(progress->train().checkpoint_every, done, progress->length().steps_per_epoch);
  saved_ = checkpoint_owed_ && updated_;
  if (saved_) {
    save_after(done, std::exchange(save_postponed_, false));
    checkpoint_owed_ = false;
  }
  progress->next_step();
}

void Run::Impl::log(const std::string& name, const at::Tensor& sum, std::optional<double> weight) {
  if (!weight && !open_)
    throw Error(Failure::config, "log: '", name,
                "' needs a weight, because no batch gives one outside of the training loop");
  logs_loss_ |= name == "loss";
  if (repeated_) return;
  metrics->add(name, sum, at::scalar_tensor(weight ? *weight : static_cast<double>(batch_->rows), at::kDouble));
}

void Run::Impl::leave() {
  if (loop_ended_) return;
  context.state->phase("end of the loop");  // it may wait there for ranks that have not left it
  if (stepped()) {
    complete();
  } else if (open_) {
    open_ = false;
    progress->count_rows(-batch_->global_rows);
  }
  end_loop();
}

void Run::Impl::end_loop() {
  loop_ended_ = true;
  progress->pause_clock();
  const DataTime time = batches->time();
  data_time_ = {data_time_.waited + time.waited, data_time_.cpu + time.cpu};
  progress->end_loop(data_time_);
  batches.reset();
  saved_ = !progress->last_save_lost() && saved_;
  const bool saves = progress->train().checkpoint_every.unit != Interval::Unit::never;
  if (!saved_ && (progress->stopped() || nothing_left_ || saves)) save_after(progress->step(), true);
  progress->wait_for_save();
  progress->pause_clock();
  saved_ = true;
  if (const int64_t none = std::exchange(unstepped_, 0); none > 0 && context.rank == 0)
    log::warning(str(none,
                     " batches of this loop ended without step() and count as steps; call step() or accumulate() "
                     "for every batch"));
  progress->warn_if_all_skipped("loss_scale.initial");
}

}  // namespace convoy
