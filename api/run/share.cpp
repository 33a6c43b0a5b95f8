#include <convoy/share.h>

#include <chrono>
#include <exception>
#include <utility>

#include "api/run/run_impl.h"
#include "core/rank_state/position.h"

namespace convoy {

// `next` fills `batch`. Neither it nor `leave` is called after an exception.
struct Share::Impl {
  virtual ~Impl() = default;
  virtual bool next() = 0;
  virtual void leave() = 0;

  ShareBatch batch;
  int64_t steps_per_epoch = 0, steps = 0;
  const int exceptions = std::uncaught_exceptions();
};

namespace {

class TrainingShare : public Share::Impl {
 public:
  TrainingShare(Run::Impl& run, const OpenData& data, const ShareOptions& options) : run_(run) {
    run.begin_loop(data, options);
    steps_per_epoch = run.progress->length().steps_per_epoch;
    steps = run.progress->length().total_steps;
  }
  bool next() override { return run_.next(batch); }
  void leave() override { run_.leave(); }

 private:
  Run::Impl& run_;
};

// One pass over the rows, in order. The training clock stops meanwhile.
class PassShare : public Share::Impl {
 public:
  PassShare(Run::Impl& run, OpenData data, Split split, int64_t rows, int64_t batch_size)
      : run_(run), data_(std::move(data)), split_(split), rows_(rows), batch_size_(batch_size) {
    steps = steps_per_epoch = rows > 0 ? (rows - 1) / batch_size + 1 : 0;
  }

  bool next() override {
    if (!begun_) begin();
    run_.progress->check_aborted();
    if (step_ == steps) {
      leave();
      return false;
    }
    run_.context.state->phase("evaluating");  // repeated: its time stamp shows progress
    batches_->read(batch);
    batch.ends_epoch = ++step_ == steps;
    return true;
  }

  void leave() override {
    if (!batches_) return;
    batches_.reset();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start_;
    run_.end_pass(seconds.count());
  }

 private:
  void begin() {
    begun_ = true;
    start_ = std::chrono::steady_clock::now();
    run_.begin_pass();
    if (steps == 0) return;
    const Sampling sampling = run_.strategy.sampling();
    Batches::Request request;
    request.split = split_;
    request.end_step = steps;
    request.loader.share_index = sampling.index;
    request.loader.share_count = sampling.count;
    request.loader.device = run_.context.devices.front();
    request.loader.prefetch = data_.prefetch;
    request.loader.seed = data_.seed;
    batches_.emplace(data_, Sampler(rows_, batch_size_, data_.seed, false), request);
  }

  Run::Impl& run_;
  const OpenData data_;
  const Split split_;
  const int64_t rows_, batch_size_;
  std::optional<Batches> batches_;
  std::chrono::steady_clock::time_point start_;
  bool begun_ = false;
  int64_t step_ = 0;
};

Share training(Run::Impl& run, const OpenData& data, const ShareOptions& options) {
  run.check_may_share();
  return Share(std::make_unique<TrainingShare>(run, data, options));
}

Share pass(Run::Impl& run, const OpenData& data, Split split, int64_t batch_size) {
  if (batch_size < 1) throw Error(Failure::config, "once: batch_size is ", batch_size, "; give at least 1");
  const int64_t rows = split == Split::train ? data.rows : data.data->size(split);
  if (rows < 0) throw Error(Failure::config, "once: ", rows, " rows");
  return Share(std::make_unique<PassShare>(run, data, split, rows, batch_size));
}

}  // namespace

Share Run::share_rows(detail::RowSource source, const ShareOptions& options) {
  return training(*impl_, open_source(std::move(source)), options);
}
Share Run::share(const std::string& name, const DataOptions& data, const ShareOptions& options) {
  return training(*impl_, impl_->named_data(name, data), options);
}
Share Run::share(int64_t rows, const ShareOptions& options) { return training(*impl_, open_indices(rows), options); }

void Run::each_batch_of(detail::RowSource source, const ShareOptions& options, const BatchBody& body) {
  impl_->each_batch(open_source(std::move(source)), options, body);
}
void Run::each_batch(const std::string& name, const DataOptions& data, const ShareOptions& options,
                     const BatchBody& body) {
  impl_->each_batch(impl_->named_data(name, data), options, body);
}
void Run::each_batch(int64_t rows, const ShareOptions& options, const BatchBody& body) {
  impl_->each_batch(open_indices(rows), options, body);
}

Share Run::once_rows(detail::RowSource source, int64_t batch_size) {
  return pass(*impl_, open_source(std::move(source)), Split::train, batch_size);
}
Share Run::once(const std::string& name, const DataOptions& data, int64_t batch_size) {
  return pass(*impl_, impl_->named_data(name, data), Split::evaluate, batch_size);
}
Share Run::once(int64_t rows, int64_t batch_size) { return pass(*impl_, open_indices(rows), Split::train, batch_size); }

Share::Share(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Share::Share(Share&&) noexcept = default;
Share::~Share() noexcept(false) {
  if (impl_ && std::uncaught_exceptions() == impl_->exceptions) impl_->leave();
}
bool Share::next() { return impl_->next(); }
ShareBatch& Share::batch() const { return impl_->batch; }
int64_t Share::steps_per_epoch() const { return impl_->steps_per_epoch; }
int64_t Share::steps() const { return impl_->steps; }

}  // namespace convoy
