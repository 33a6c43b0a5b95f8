#include "strategies/stages/runners.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/files/limits.h"
#include "strategies/common/memory/block_counts.h"
#include "strategies/plans/schedule.h"
#include "strategies/plans/stages.h"
#include "strategies/stages/stage_loop.h"

namespace convoy {
namespace {

// Mailbox: passes activations and gradients between the device threads of a rank.
//
// Thread-safe. `take` waits for the matching `give`, and throws Stopped after `stop`.
class Mailbox {
 public:
  // Another thread failed; this thread has no error.
  struct Stopped {};
  using Key = std::tuple<Action::Kind, int, int>;  // kind, receiving stage, micro-batch

  // Empties the mailbox and clears `stop`.
  void open();
  void stop();
  void give(const Key& key, Activations what);
  Activations take(const Key& key);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, Activations> waiting_;
  bool stopped_ = false;
};

// The mailbox as one device uses it. Moves received tensors to the device's memory.
class DeviceLink : public StageLink {
 public:
  DeviceLink(Mailbox& mailbox, at::Device device, std::shared_ptr<TimeBreakdown> times)
      : mailbox_(mailbox), device_(device), times_(std::move(times)) {}

  void ahead(size_t) override {}
  void give_activations(int stage, int micro, Activations activations) override;
  Activations take_activations(int stage, int micro) override;
  void give_gradients(int stage, int micro, TensorList gradients) override;
  TensorList take_gradients(int stage, int micro) override;

 private:
  Activations received(const Mailbox::Key& key);

  Mailbox& mailbox_;
  at::Device device_;
  std::shared_ptr<TimeBreakdown> times_;
};

struct WorkerSettings {
  at::Device device{at::kCPU};
  std::vector<int> cores;  // hardware threads; empty: not bound
  int threads = 1;         // intra-op
};

// DeviceWorker: the thread of one device of a rank. On the CPU a device is a set of cores, and the thread is bound to
// them.
//
// Call order: any number of start → wait. Threads: the rank's thread. Failure: wait rethrows the task's exception; the
// constructor throws Error(config) if the kernel refuses the cores.
class DeviceWorker {
 public:
  explicit DeviceWorker(const WorkerSettings& settings);
  ~DeviceWorker();  // waits for the current task

  void start(std::function<void()> task);
  void wait();

  // Actual binding and number of threads, which the thread reads from the kernel and from LibTorch.
  const std::vector<int>& cores() const { return cores_; }
  int threads() const { return threads_; }

 private:
  void work(const WorkerSettings& settings);

  std::vector<int> cores_;
  int threads_ = 0;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::function<void()> task_;
  bool busy_ = true;  // a task runs; initially the thread starts
  bool ending_ = false;
  std::exception_ptr failure_;
  std::thread thread_;  // last member: starts when all others exist
};

using Kind = Action::Kind;

void Mailbox::open() {
  std::lock_guard<std::mutex> lock(mutex_);
  waiting_.clear();
  stopped_ = false;
}

void Mailbox::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
}

void Mailbox::give(const Key& key, Activations what) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_[key] = std::move(what);
  }
  changed_.notify_all();
}

Activations Mailbox::take(const Key& key) {
  std::unique_lock<std::mutex> lock(mutex_);
  auto found = waiting_.end();
  changed_.wait(lock, [&] { return stopped_ || (found = waiting_.find(key)) != waiting_.end(); });
  if (stopped_) throw Stopped();
  Activations what = std::move(found->second);
  waiting_.erase(found);
  return what;
}

void DeviceLink::give_activations(int stage, int micro, Activations activations) {
  mailbox_.give({Kind::forward, stage, micro}, std::move(activations));
}

Activations DeviceLink::take_activations(int stage, int micro) { return received({Kind::forward, stage, micro}); }

void DeviceLink::give_gradients(int stage, int micro, TensorList gradients) {
  mailbox_.give({Kind::backward, stage, micro}, {std::move(gradients), {}});
}

TensorList DeviceLink::take_gradients(int stage, int micro) { return received({Kind::backward, stage, micro}).tensors; }

Activations DeviceLink::received(const Mailbox::Key& key) {
  at::NoGradGuard no_grad;
  std::optional<TimeBreakdown::Scope> waiting(std::in_place, *times_, TimePart::waiting);
  Activations what = mailbox_.take(key);
  waiting.reset();
  for (at::Tensor& tensor : what.tensors)
    if (tensor.device() != device_) tensor = tensor.to(device_, /*non_blocking=*/true);
  return what;
}

DeviceWorker::DeviceWorker(const WorkerSettings& settings) : thread_([this, settings] { work(settings); }) {
  try {
    wait();
  } catch (...) {
    thread_.join();
    throw;
  }
}

DeviceWorker::~DeviceWorker() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void DeviceWorker::start(std::function<void()> task) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    CONVOY_CHECK(!busy_, "a device is given a second task");
    task_ = std::move(task);
    busy_ = true;
  }
  changed_.notify_all();
}

void DeviceWorker::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return !busy_; });
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void DeviceWorker::work(const WorkerSettings& settings) {
  std::exception_ptr failure;
  try {
    bind_this_thread(settings.cores);
    // The first query makes this thread adopt the global number. Set the thread's number only afterwards.
    at::get_num_threads();
    at::set_num_threads(settings.threads);
    cores_ = bound_cores();
    threads_ = at::get_num_threads();
  } catch (...) {
    failure = std::current_exception();
  }
  c10::DeviceGuard on_device(settings.device);
  const bool ready = !failure;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    failure_ = failure;
    busy_ = false;
    changed_.notify_all();
    if (!ready) return;
    changed_.wait(lock, [this] { return busy_ || ending_; });
    if (!busy_) return;
    const std::function<void()> task = std::exchange(task_, nullptr);
    lock.unlock();
    failure = nullptr;
    try {
      task();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
  }
}

// A device with its thread and its work.
struct Station {
  at::Device device{at::kCPU};
  std::unique_ptr<DeviceLink> link;
  std::unique_ptr<StageLoop> loop;
  std::unique_ptr<DeviceWorker> worker;
};

std::vector<int> cores_of(const Context& context, size_t device) {
  return device < context.device_cores.size() ? context.device_cores[device] : std::vector<int>{};
}

// Intra-op threads of a device: its share of the rank's threads, by hardware threads.
int threads_of(const Context& context, size_t device) {
  const double devices = double(context.devices.size());
  double hardware_threads = 0;
  for (size_t i = 0; i < context.devices.size(); ++i) hardware_threads += double(cores_of(context, i).size());
  const double share = hardware_threads > 0 ? double(cores_of(context, device).size()) / hardware_threads : 1 / devices;
  return std::max(1, int(std::lround(context.threads * share)));
}

class DeviceRunner : public StepRunner {
 public:
  DeviceRunner(const Context& context, ModelPtr model, LossPtr loss, const DeviceOptions& options,
               int64_t micro_batches, const PartRequest& base)
      : micro_batches_(micro_batches), main_(context.devices.front()), times_(context.times) {
    const bool separate_memory =
        std::any_of(context.devices.begin(), context.devices.end(), [](at::Device device) { return !device.is_cpu(); });
    const auto placed = place_blocks(options, int(context.devices.size()), separate_memory, count_blocks(*model, 0));
    std::vector<std::vector<LocalStage>> local(context.devices.size());
    for (const PlacedBlocks& one : placed) {
      PartRequest request = base;
      request.begin = one.blocks.begin;
      request.end = one.blocks.end;
      request.device = context.devices[size_t(one.device)];
      const auto stage = int(parts_.size());
      models_.push_back(std::make_unique<ModelPart>(context, model, loss, ties_.with_ties(std::move(request), stage)));
      parts_.push_back(models_.back().get());
      local[size_t(one.device)].push_back({stage, stage, parts_.back()});
      device_of_.push_back(one.device);
    }
    ties_.connect(context);
    for (size_t device = 0; device < context.devices.size(); ++device) {
      Station station;
      station.device = context.devices[device];
      station.link = std::make_unique<DeviceLink>(mailbox_, station.device, times_);
      station.loop = std::make_unique<StageLoop>(std::move(local[device]), ties_);
      station.worker = std::make_unique<DeviceWorker>(
          WorkerSettings{station.device, cores_of(context, device), threads_of(context, device)});
      stations_.push_back(std::move(station));
    }
    // New threads inherit the number that any thread set last; restore the rank's number.
    at::set_num_threads(context.threads);
    report_devices(context, placed);
  }

  const std::vector<ModelPart*>& parts() const override { return parts_; }

  void train(const std::vector<Batch>& micro, int64_t step, double nominal, const Hooks& hooks) override {
    Hooks here = hooks;
    here.loss = [&](const Loss& loss) { hooks.loss({loss.sum.detach().to(main_), loss.weight.to(main_)}); };
    const StepWork work{micro, step, nominal, here};
    run(training_schedule(int(micro.size())), [&](const std::vector<Action>& actions, Station& station) {
      station.loop->train(actions, work, *station.link);
    });
  }

  std::vector<Metric> evaluate(const Batch& batch) override {
    const std::vector<Batch> micro_batches = evaluation_micro_batches(batch, micro_batches_);
    std::vector<Metric> metrics;  // written by the device that has the last block
    run(forward_only(device_of_, int(micro_batches.size())), [&](const std::vector<Action>& actions, Station& station) {
      std::vector<Metric> here = station.loop->evaluate(actions, micro_batches, *station.link);
      if (!here.empty()) metrics = std::move(here);
    });
    for (Metric& metric : metrics) {
      metric.sum = metric.sum.to(main_);
      metric.weight = metric.weight.to(main_);
    }
    return metrics;
  }

 private:
  using Body = std::function<void(const std::vector<Action>&, Station&)>;

  // Runs the schedule on every device. Throws the first failure that another device did not cause.
  void run(const StepSchedule& schedule, const Body& body) {
    ties_.refresh();
    mailbox_.open();
    const auto active = size_t(schedule.ranks());
    for (size_t device = 0; device < active; ++device) {
      Station& station = stations_[device];
      station.worker->start([this, &schedule, &body, &station, device] {
        try {
          // The rank's thread only waits, so the time breakdown counts the thread of the first device.
          if (device == 0) times_->set_owner();
          body(schedule.actions[device], station);
        } catch (...) {
          mailbox_.stop();
          throw;
        }
      });
    }
    std::exception_ptr failure;
    for (size_t device = 0; device < active; ++device) {
      try {
        stations_[device].worker->wait();
      } catch (const Mailbox::Stopped&) {
      } catch (...) {
        if (!failure) failure = std::current_exception();
      }
    }
    times_->set_owner();
    if (failure) std::rethrow_exception(failure);
  }

  const StepSchedule& training_schedule(int micro) {
    const auto known = schedules_.find(micro);
    if (known != schedules_.end()) return known->second;
    return schedules_[micro] = placed_schedule(device_of_, micro);
  }

  void report_devices(const Context& context, const std::vector<PlacedBlocks>& placed) const {
    Json devices = Json::array();
    for (size_t device = 0; device < stations_.size(); ++device) {
      Json blocks = Json::array();
      for (const PlacedBlocks& one : placed)
        if (one.device == int(device)) blocks.push_back(to_text(one.blocks));
      const Station& station = stations_[device];
      devices.push_back({{"device", station.device.str()},
                         {"cores", station.worker->cores()},
                         {"threads", station.worker->threads()},
                         {"blocks", blocks}});
    }
    context.add_to_summary(Json{{"devices", devices}});
  }

  const int64_t micro_batches_;
  at::Device main_;
  std::shared_ptr<TimeBreakdown> times_;
  TiedParameters ties_;
  Mailbox mailbox_;
  std::vector<std::unique_ptr<ModelPart>> models_;
  std::vector<ModelPart*> parts_;
  std::vector<int> device_of_;             // device of each stage
  std::map<int, StepSchedule> schedules_;  // by number of micro-batches
  std::vector<Station> stations_;          // last member: their threads end first
};

}  // namespace

std::unique_ptr<StepRunner> make_device_runner(const Context& context, ModelPtr model, LossPtr loss,
                                               const DeviceOptions& options, int64_t micro_batches,
                                               const PartRequest& base) {
  return std::make_unique<DeviceRunner>(context, std::move(model), std::move(loss), options, micro_batches, base);
}

}  // namespace convoy
