#include "strategies/stages/device_runner.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "strategies/common/memory/block_counts.h"
#include "strategies/plans/block_placement.h"
#include "strategies/stages/device_worker.h"
#include "strategies/stages/stage_loop.h"

namespace convoy {
namespace {

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
  const double devices = static_cast<double>(context.devices.size());
  double hardware_threads = 0;
  for (size_t i = 0; i < context.devices.size(); ++i)
    hardware_threads += static_cast<double>(cores_of(context, i).size());
  const double share =
      hardware_threads > 0 ? static_cast<double>(cores_of(context, device).size()) / hardware_threads : 1 / devices;
  return std::max(1, static_cast<int>(std::lround(context.threads * share)));
}

class DeviceRunner : public StepRunner {
 public:
  DeviceRunner(const Context& context, ModelPtr model, std::shared_ptr<const LossFunction> loss,
               const DeviceOptions& options, const PartRequest& base)
      : options_(options), main_(context.devices.front()) {
    const bool separate_memory =
        std::any_of(context.devices.begin(), context.devices.end(), [](at::Device device) { return !device.is_cpu(); });
    const auto placed = place_blocks(options.section, static_cast<int>(context.devices.size()), separate_memory,
                                     count_blocks(*model, 0));
    std::vector<std::vector<LocalStage>> local(context.devices.size());
    for (const PlacedBlocks& one : placed) {
      PartRequest request = base;
      request.begin = one.blocks.begin;
      request.end = one.blocks.end;
      request.device = context.devices[static_cast<size_t>(one.device)];
      const auto stage = static_cast<int>(parts_.size());
      models_.push_back(std::make_unique<ModelPart>(context, model, loss, ties_.with_ties(std::move(request), stage)));
      parts_.push_back(models_.back().get());
      local[static_cast<size_t>(one.device)].push_back({stage, stage, parts_.back()});
      device_of_.push_back(one.device);
    }
    ties_.connect(context);
    for (size_t device = 0; device < context.devices.size(); ++device) {
      Station station;
      station.device = context.devices[device];
      station.link = std::make_unique<DeviceLink>(mailbox_, station.device);
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
    run(training_schedule(static_cast<int>(micro.size())), [&](const std::vector<Action>& actions, Station& station) {
      station.loop->train(actions, work, *station.link);
    });
  }

  std::vector<Metric> evaluate(const Batch& batch) override {
    const std::vector<Batch> micro_batches = evaluation_micro_batches(batch, options_.micro_batches);
    std::vector<Metric> metrics;  // written by the device that has the last block
    run(forward_only(device_of_, static_cast<int>(micro_batches.size())),
        [&](const std::vector<Action>& actions, Station& station) {
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

  // Runs the schedule on every device. Throws the failure of the first device that failed by itself.
  void run(const StepSchedule& schedule, const Body& body) {
    ties_.refresh();
    mailbox_.open();
    const auto active = static_cast<size_t>(schedule.ranks());
    for (size_t device = 0; device < active; ++device) {
      Station& station = stations_[device];
      station.worker->start([this, &schedule, &body, &station, device] {
        try {
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
        if (one.device == static_cast<int>(device)) blocks.push_back(to_text(one.blocks));
      const Station& station = stations_[device];
      devices.push_back({{"device", station.device.str()},
                         {"cores", station.worker->cores()},
                         {"threads", station.worker->threads()},
                         {"blocks", blocks}});
    }
    context.add_to_summary(Json{{"devices", devices}});
  }

  DeviceOptions options_;
  at::Device main_;
  TiedParameters ties_;
  Mailbox mailbox_;
  std::vector<std::unique_ptr<ModelPart>> models_;
  std::vector<ModelPart*> parts_;
  std::vector<int> device_of_;             // of each stage
  std::map<int, StepSchedule> schedules_;  // by number of micro-batches
  std::vector<Station> stations_;          // last member: their threads end first
};

}  // namespace

std::unique_ptr<StepRunner> make_device_runner(const Context& context, ModelPtr model,
                                               std::shared_ptr<const LossFunction> loss, const DeviceOptions& options,
                                               const PartRequest& base) {
  return std::make_unique<DeviceRunner>(context, std::move(model), std::move(loss), options, base);
}

}  // namespace convoy
