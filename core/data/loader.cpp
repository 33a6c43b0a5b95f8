// One thread that gathers ahead, a short queue, and a consumer that sleeps when it is empty; or the consumer alone.
//
// The thread wakes only when half of the queue has been taken, so that light steps do not pay for a change of threads
// each.
#include "core/data/loader.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "core/data/samples.h"
#include "core/error.h"

namespace convoy {
namespace {

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

constexpr int64_t usual_prefetch = 4;

// Whether a thread of the loader's would only take turns with the one that wants its batches.
bool takes_turns(const Dataset& data, const LoaderOptions& options) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return options.device.is_cpu() && data.at_hand() && sched_getaffinity(0, sizeof cores, &cores) == 0 &&
         CPU_COUNT(&cores) == 1;
}

// Batch number k of this loader, with indices and everything that the data set does not know.
struct Job {
  at::Tensor indices;   // of members one after the other
  int64_t members = 0;  // 0: tensors have no dimension for them
  int64_t rows = 0;     // of each member
  int64_t epoch = 0;
  std::vector<MicroBatch> micro;
  int64_t global_rows = 0;
  int64_t nominal_rows = 0;
};

}  // namespace

class Loader::Worker {
 public:
  // evaluation: transforms that belong to training alone are left out.
  Worker(DatasetPtr data, std::vector<std::shared_ptr<const Transform>> transforms, Split split, bool evaluation,
         int64_t batches, std::function<Job(int64_t)> job, const LoaderOptions& options)
      : data_(std::move(data)),
        transforms_(std::move(transforms)),
        split_(split),
        evaluation_(evaluation),
        batches_(batches),
        job_(std::move(job)),
        options_(options),
        capacity_(size_t(options.prefetch.value_or(takes_turns(*data_, options) ? 0 : usual_prefetch))),
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
        // The producer is a thread of this process: it ends by a batch or by an exception, so no limit is needed.
        filled_.wait(lock, [this] { return !ready_.empty() || failure_; });
        waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
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
    const double cpu = thread_seconds();
    Batch batch = make(taken_);
    cpu_ = cpu_ + thread_seconds() - cpu;
    waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    ++taken_;
    return on_device(std::move(batch));
  }

  void work() {
    try {
      for (int64_t number = 0; number < batches_; ++number) {
        if (!make_room()) return;
        Batch batch = make(number);
        cpu_.store(thread_seconds(), std::memory_order_relaxed);
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

  // False when the loader is being destroyed. A full queue is left alone until half of it is gone.
  bool make_room() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (ready_.size() >= capacity_) {
      space_.wait(lock, [this] { return ending_ || ready_.size() <= capacity_ / 2; });
    }
    return !ending_;
  }

  Batch make(int64_t number) {
    const Job job = job_(number);
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
  const std::function<Job(int64_t)> job_;
  const LoaderOptions options_;
  const size_t capacity_;  // 0: there is no thread
  Buffers buffers_;        // of whoever gathers
  int64_t taken_ = 0;      // the consumer's
  double waited_ = 0;      // the consumer's
  std::atomic<double> cpu_{0};

  std::mutex mutex_;  // guards what follows
  std::condition_variable filled_;
  std::condition_variable space_;
  std::deque<Batch> ready_;
  std::exception_ptr failure_;
  bool ending_ = false;

  std::thread thread_;  // last: starts when all else stands
};

namespace {

// What a step's batch has before rows are chosen.
Job training_job(const Sampler& counts, int64_t step, const LoaderOptions& options) {
  Job made;
  made.global_rows = counts.rows_of(step);
  made.nominal_rows = counts.rows_of(0);
  made.micro = micro_batches_of(made.global_rows, options.micro_batches, options.share_index, options.share_count);
  made.rows = made.micro.back().end;
  made.epoch = counts.epoch_of(step);
  made.members = static_cast<int64_t>(options.draws.size());
  return made;
}

std::vector<Sampler> member_samplers(const Sampler& counts, const std::vector<MemberDraw>& draws) {
  const int64_t rows = counts.draws().rows();
  std::vector<Sampler> members;
  for (const MemberDraw& draw : draws) {
    members.emplace_back(rows, counts.rows_of(0), draw);
    CONVOY_CHECK(members.back().draws().size() == counts.draws().size(), "member ", draw.member, " reads ",
                 members.back().draws().size(), " rows an epoch, others ", counts.draws().size());
  }
  return members;
}

// Slice `number` of `all` rows in slices of `rows`; indices are positions.
Job slice_job(int64_t number, int64_t rows, int64_t all, const LoaderOptions& options) {
  const int64_t begin = number * rows;
  const int64_t count = std::min(rows, all - begin);
  const auto [first, last] = share_of(count, options.share_index, options.share_count);
  Job made;
  made.indices = at::arange(begin + first, begin + last, at::kLong);
  made.rows = last - first;
  made.micro = {{0, last - first, first}};
  made.global_rows = count;
  made.nominal_rows = rows;
  return made;
}

int64_t slices_of(int64_t all, int64_t rows) {
  CONVOY_CHECK(rows > 0, "evaluation in slices of ", rows, " rows");
  return (all + rows - 1) / rows;
}

}  // namespace

LoaderOptions LoaderOptions::from(const Options& data, uint64_t seed) {
  LoaderOptions options;
  if (!data.is_auto("prefetch")) options.prefetch = data.integer("prefetch");
  options.seed = data_seed(data, seed);
  return options;
}

Loader::Loader(DatasetPtr data, std::vector<std::shared_ptr<const Transform>> transforms, const Sampler& sampler,
               int64_t first_step, int64_t end_step, const LoaderOptions& options) {
  const std::vector<Sampler> members = member_samplers(sampler, options.draws);
  auto job = [=](int64_t number) {
    const int64_t step = first_step + number;
    Job made = training_job(sampler, step, options);
    made.indices = at::empty({made.rows * std::max<int64_t>(1, made.members)}, at::kLong);
    int64_t* out = made.indices.mutable_data_ptr<int64_t>();
    if (members.empty()) sampler.write_indices(step, made.micro, out);
    for (const Sampler& member : members) {
      member.write_indices(step, made.micro, out);
      out += made.rows;
    }
    return made;
  };
  worker_ = std::make_unique<Worker>(std::move(data), std::move(transforms), Split::train, false,
                                     std::max<int64_t>(0, end_step - first_step), job, options);
}

Loader::Loader(DatasetPtr data, std::vector<std::shared_ptr<const Transform>> transforms, int64_t rows,
               const LoaderOptions& options) {
  const int64_t all = data->size(Split::evaluate);
  auto job = [=](int64_t number) { return slice_job(number, rows, all, options); };
  worker_ = std::make_unique<Worker>(std::move(data), std::move(transforms), Split::evaluate, true,
                                     slices_of(all, rows), job, options);
}

Loader Loader::held_out(DatasetPtr data, std::vector<std::shared_ptr<const Transform>> transforms,
                        const Sampler& sampler, int64_t rows, const LoaderOptions& options) {
  std::vector<Draws> draws;
  for (const MemberDraw& draw : options.draws) draws.emplace_back(draw, sampler.draws().rows());
  if (draws.empty()) draws.push_back(sampler.draws());
  const int64_t all = draws.front().held_out();
  for (const Draws& each : draws)
    CONVOY_CHECK(each.held_out() == all, "members of one ensemble hold out different numbers of rows");
  auto job = [=](int64_t number) {
    Job made = slice_job(number, rows, all, options);
    made.indices = made.indices.repeat({static_cast<int64_t>(draws.size())});
    int64_t* positions = made.indices.mutable_data_ptr<int64_t>();
    for (const Draws& each : draws) {
      each.map_held_out(positions, made.rows);
      positions += made.rows;
    }
    made.members = static_cast<int64_t>(options.draws.size());
    return made;
  };
  return Loader(std::make_unique<Worker>(std::move(data), std::move(transforms), Split::train, true,
                                         slices_of(all, rows), job, options));
}

Loader::Loader(std::unique_ptr<Worker> worker) : worker_(std::move(worker)) {}
Loader::Loader(Loader&&) noexcept = default;
Loader::~Loader() = default;
std::optional<Batch> Loader::next() { return worker_->next(); }
double Loader::waited_seconds() const { return worker_->waited(); }
double Loader::cpu_seconds() const { return worker_->cpu(); }

}  // namespace convoy
