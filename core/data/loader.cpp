// A thread gathers ahead into a short queue, and the consumer sleeps when the queue is empty. Without prefetch the
// consumer gathers itself. The thread wakes only when half of the queue is empty: light steps then pay for few thread
// switches.
#include "core/data/loader.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "core/data/catalogue/declared_schema.h"
#include "core/files/limits.h"

namespace convoy {
namespace {

constexpr int64_t usual_prefetch = 4;

// True if the loader's thread and the calling thread would share one core.
bool shares_core(const Dataset& data, const LoaderOptions& options) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return options.device.is_cpu() && data.gathers_from_memory() && sched_getaffinity(0, sizeof cores, &cores) == 0 &&
         CPU_COUNT(&cores) == 1;
}

// Batch k of this loader: its indices and the counts that the data set does not know.
struct BatchJob {
  at::Tensor indices;   // member by member
  int64_t members = 0;  // 0: tensors have no member dimension
  int64_t rows = 0;     // rows of each member
  int64_t epoch = 0;
  std::vector<MicroBatch> micro;
  int64_t global_rows = 0;
  int64_t nominal_rows = 0;
};

// A step's batch before its rows are chosen.
BatchJob training_job(const Sampler& counts, int64_t step, const LoaderOptions& options) {
  BatchJob job;
  job.global_rows = counts.rows_of(step);
  job.nominal_rows = counts.rows_of(0);
  job.micro = micro_batches_of(job.global_rows, options.micro_batches, options.share_index, options.share_count);
  job.rows = job.micro.back().end;
  job.epoch = counts.epoch_of(step);
  job.members = static_cast<int64_t>(options.samples.size());
  return job;
}

std::vector<Sampler> member_samplers(const Sampler& counts, const std::vector<MemberSample>& samples) {
  const int64_t rows = counts.row_sample().rows();
  std::vector<Sampler> members;
  for (const MemberSample& sample : samples) {
    members.emplace_back(rows, counts.rows_of(0), sample);
    CONVOY_CHECK(members.back().row_sample().size() == counts.row_sample().size(), "member ", sample.member, " reads ",
                 members.back().row_sample().size(), " rows an epoch, others ", counts.row_sample().size());
  }
  return members;
}

// Batch `number` if `all` rows are divided into batches of `rows` rows; indices are positions.
BatchJob evaluation_job(int64_t number, int64_t rows, int64_t all, const LoaderOptions& options) {
  const int64_t begin = number * rows;
  const int64_t count = std::min(rows, all - begin);
  const auto [first, last] = share_of(count, options.share_index, options.share_count);
  BatchJob job;
  job.indices = at::arange(begin + first, begin + last, at::kLong);
  job.rows = last - first;
  job.micro = {{0, last - first, first}};
  job.global_rows = count;
  job.nominal_rows = rows;
  return job;
}

int64_t batches_of(int64_t all, int64_t rows) {
  CONVOY_CHECK(rows > 0, "evaluation in batches of ", rows, " rows");
  return (all + rows - 1) / rows;
}

}  // namespace

class Loader::Worker {
 public:
  // evaluation: leaves out transforms that are for training only.
  Worker(DatasetPtr data, std::vector<std::shared_ptr<const Transform>> transforms, Split split, bool evaluation,
         int64_t batches, std::function<BatchJob(int64_t)> job, const LoaderOptions& options)
      : data_(std::move(data)),
        transforms_(std::move(transforms)),
        split_(split),
        evaluation_(evaluation),
        batches_(batches),
        job_(std::move(job)),
        options_(options),
        capacity_(size_t(options.prefetch.value_or(shares_core(*data_, options) ? 0 : usual_prefetch))),
        buffers_(options.device.is_cuda()) {
    if (capacity_ > 0) thread_ = std::thread([this] { work(); });
  }

  ~Worker() {
    if (!thread_.joinable()) return;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ending_ = true;
    }
    space_.notify_one();
    thread_.join();
  }

  std::optional<Batch> next() {
    if (taken_ == batches_) return std::nullopt;
    if (capacity_ == 0) return made_now();
    Batch batch;
    bool wake = false;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (ready_.empty() && !failure_) {
        const auto start = std::chrono::steady_clock::now();
        // The producer is a thread of this process and always ends with a batch or an exception: no time limit is
        // needed.
        filled_.wait(lock, [this] { return !ready_.empty() || failure_; });
        waited_ += seconds_since(start);
      }
      if (ready_.empty()) std::rethrow_exception(failure_);
      batch = std::move(ready_.front());
      ready_.pop_front();
      wake = ready_.size() == capacity_ / 2;
    }
    if (wake) space_.notify_one();
    ++taken_;
    return on_device(std::move(batch));
  }

  double waited() const { return waited_; }
  double cpu() const { return cpu_.load(std::memory_order_relaxed); }

 private:
  Batch on_device(Batch batch) const {
    return options_.device.is_cpu() ? std::move(batch) : batch.to(options_.device, true);
  }

  Batch made_now() {
    const auto start = std::chrono::steady_clock::now();
    const double cpu = thread_cpu_seconds();
    Batch batch = make(taken_);
    cpu_ = cpu_ + thread_cpu_seconds() - cpu;
    waited_ += seconds_since(start);
    ++taken_;
    return on_device(std::move(batch));
  }

  void work() {
    try {
      for (int64_t number = 0; number < batches_; ++number) {
        if (!make_room()) return;
        const int64_t from = trace() != nullptr ? steady_nanoseconds() : 0;
        Batch batch = make(number);
        if (TraceLog* const recorded = trace(); recorded != nullptr && from > 0)
          recorded->add({"loader", "batch", "data", from, steady_nanoseconds()});
        cpu_.store(thread_cpu_seconds(), std::memory_order_relaxed);
        bool was_empty = false;
        {
          std::lock_guard<std::mutex> lock(mutex_);
          was_empty = ready_.empty();
          ready_.push_back(std::move(batch));
        }
        if (was_empty) filled_.notify_one();
      }
    } catch (...) {
      std::lock_guard<std::mutex> lock(mutex_);
      failure_ = std::current_exception();
      filled_.notify_one();
    }
  }

  TraceLog* trace() const { return options_.times ? options_.times->trace() : nullptr; }

  // Waits until the queue is at most half full; false when the loader is being destroyed.
  bool make_room() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (ready_.size() >= capacity_) {
      space_.wait(lock, [this] { return ending_ || ready_.size() <= capacity_ / 2; });
    }
    return !ending_;
  }

  Batch make(int64_t number) {
    const BatchJob job = job_(number);
    Batch batch = data_->gather(split_, job.indices, job.epoch, buffers_);
    for (const auto& transform : transforms_) {
      if (evaluation_ && !transform->evaluation_too()) continue;
      transform->apply(batch, job.indices, options_.seed, job.epoch);
    }
    if (job.members > 0)
      for (auto& [name, tensor] : batch.tensors) tensor = tensor.unflatten(0, {job.members, job.rows});
    batch.rows = job.rows;
    batch.first_row = job.micro.front().first_row;
    if (job.micro.size() > 1) batch.micro = job.micro;
    batch.global_rows = job.global_rows;
    batch.nominal_rows = job.nominal_rows;
    return batch;
  }

  const DatasetPtr data_;
  const std::vector<std::shared_ptr<const Transform>> transforms_;
  const Split split_;
  const bool evaluation_;
  const int64_t batches_;
  const std::function<BatchJob(int64_t)> job_;
  const LoaderOptions options_;
  const size_t capacity_;  // 0: no thread
  BatchBuffers buffers_;   // used by the thread that gathers
  int64_t taken_ = 0;      // only for the consumer's thread
  double waited_ = 0;      // only for the consumer's thread
  std::atomic<double> cpu_{0};

  std::mutex mutex_;  // guards the members below
  std::condition_variable filled_;
  std::condition_variable space_;
  std::deque<Batch> ready_;
  std::exception_ptr failure_;
  bool ending_ = false;

  std::thread thread_;  // last: starts when all other members exist
};

LoaderOptions LoaderOptions::from(const Options& data, uint64_t seed) {
  LoaderOptions options;
  if (!data.is_auto("prefetch")) options.prefetch = data.integer("prefetch");
  options.seed = data_seed(data, seed);
  return options;
}

Loader::Loader(DatasetPtr data, std::vector<std::shared_ptr<const Transform>> transforms, const Sampler& sampler,
               int64_t first_step, int64_t end_step, const LoaderOptions& options) {
  const std::vector<Sampler> members = member_samplers(sampler, options.samples);
  auto make_job = [=](int64_t number) {
    const int64_t step = first_step + number;
    BatchJob job = training_job(sampler, step, options);
    job.indices = at::empty({job.rows * std::max<int64_t>(1, job.members)}, at::kLong);
    int64_t* out = job.indices.mutable_data_ptr<int64_t>();
    if (members.empty()) sampler.write_indices(step, job.micro, out);
    for (const Sampler& member : members) {
      member.write_indices(step, job.micro, out);
      out += job.rows;
    }
    return job;
  };
  worker_ = std::make_unique<Worker>(std::move(data), std::move(transforms), Split::train, false,
                                     std::max<int64_t>(0, end_step - first_step), make_job, options);
}

Loader::Loader(DatasetPtr data, std::vector<std::shared_ptr<const Transform>> transforms, int64_t rows,
               const LoaderOptions& options, Split split) {
  const int64_t all = data->size(split);
  auto make_job = [=](int64_t number) { return evaluation_job(number, rows, all, options); };
  worker_ = std::make_unique<Worker>(std::move(data), std::move(transforms), split, true, batches_of(all, rows),
                                     make_job, options);
}

Loader Loader::held_out(DatasetPtr data, std::vector<std::shared_ptr<const Transform>> transforms,
                        const Sampler& sampler, int64_t rows, const LoaderOptions& options) {
  std::vector<RowSample> samples;
  for (const MemberSample& sample : options.samples) samples.emplace_back(sample, sampler.row_sample().rows());
  if (samples.empty()) samples.push_back(sampler.row_sample());
  const int64_t all = samples.front().held_out();
  for (const RowSample& each : samples)
    CONVOY_CHECK(each.held_out() == all, "members of one ensemble hold out different numbers of rows");
  auto make_job = [=](int64_t number) {
    BatchJob job = evaluation_job(number, rows, all, options);
    job.indices = job.indices.repeat({static_cast<int64_t>(samples.size())});
    int64_t* positions = job.indices.mutable_data_ptr<int64_t>();
    for (const RowSample& each : samples) {
      each.map_held_out(positions, job.rows);
      positions += job.rows;
    }
    job.members = static_cast<int64_t>(options.samples.size());
    return job;
  };
  return Loader(std::make_unique<Worker>(std::move(data), std::move(transforms), Split::train, true,
                                         batches_of(all, rows), make_job, options));
}

Loader::Loader(std::unique_ptr<Worker> worker) : worker_(std::move(worker)) {}
Loader::Loader(Loader&&) noexcept = default;
Loader::~Loader() = default;
std::optional<Batch> Loader::next() { return worker_->next(); }
double Loader::waited_seconds() const { return worker_->waited(); }
double Loader::cpu_seconds() const { return worker_->cpu(); }

}  // namespace convoy
