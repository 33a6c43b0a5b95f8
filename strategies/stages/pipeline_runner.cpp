#include "strategies/stages/runners.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "core/base/error.h"
#include "strategies/common/memory/block_counts.h"
#include "strategies/plans/options/pipeline.h"
#include "strategies/plans/stages.h"
#include "strategies/stages/rank_link.h"
#include "strategies/stages/stage_loop.h"

namespace convoy {
namespace {

class PipelineRunner : public StepRunner {
 public:
  PipelineRunner(const Context& context, ModelPtr model, LossPtr loss, const Options& options, const PartRequest& base)
      : schedule_(options.text("schedule")),
        chunks_(int(virtual_stages_of(options))),
        micro_batches_(options.integer("micro_batches")),
        group_(context.axis("pipeline")),
        device_(base.device.value_or(context.devices.front())),
        link_(context, device_) {
    rank_of_ = round_robin(group_->size(), chunks_);
    const auto ranges = stage_ranges(options, int(rank_of_.size()), count_blocks(*model, 0));
    std::vector<LocalStage> local;
    for (int stage = group_->rank(); stage < int(ranges.size()); stage += group_->size()) {
      PartRequest request = base;
      request.begin = ranges[size_t(stage)].begin;
      request.end = ranges[size_t(stage)].end;
      models_.push_back(std::make_unique<ModelPart>(context, model, loss, ties_.with_ties(std::move(request), stage)));
      parts_.push_back(models_.back().get());
      local.push_back({stage, int(local.size()), parts_.back()});
    }
    loop_ = std::make_unique<StageLoop>(std::move(local), ties_);
    ties_.connect(context);
  }

  const std::vector<ModelPart*>& parts() const override { return parts_; }

  void train(const std::vector<Batch>& micro, int64_t step, double nominal, const Hooks& hooks) override {
    ties_.refresh();
    const StepSchedule& schedule = training_schedule(int(micro.size()));
    link_.begin(schedule, micro, true);
    loop_->train(mine(schedule), {micro, step, nominal, hooks}, link_);
    link_.finish();
  }

  std::vector<Metric> evaluate(const Batch& batch) override {
    ties_.refresh();
    const std::vector<Batch> micro_batches = evaluation_micro_batches(batch, micro_batches_);
    const StepSchedule schedule = forward_only(rank_of_, int(micro_batches.size()));
    // Messages of this batch may still be in flight when the next batch begins: ranks work on several batches at once.
    link_.begin(schedule, micro_batches, false);
    std::vector<Metric> metrics = loop_->evaluate(mine(schedule), micro_batches, link_);
    if (zero_metrics_.empty()) broadcast_names(metrics);
    if (!parts_.back()->last()) return zero_metrics_;
    if (metrics.size() != zero_metrics_.size())
      throw Error(Failure::training, "the model's metrics were ", zero_metrics_.size(), " and are now ", metrics.size(),
                  "; it gives the same ones for every batch");
    return metrics;
  }

 private:
  const std::vector<Action>& mine(const StepSchedule& schedule) const {
    return schedule.actions[size_t(group_->rank())];
  }

  const StepSchedule& training_schedule(int micro) {
    const auto known = schedules_.find(micro);
    if (known != schedules_.end()) return known->second;
    return schedules_[micro] = schedule_named(schedule_, group_->size(), chunks_, micro);
  }

  // The rank of the last stage sends all others the names, directions and shapes of the metrics.
  void broadcast_names(const std::vector<Metric>& metrics) {
    Json described = Json::array();
    for (const Metric& metric : metrics)
      described.push_back({metric.name, metric.lower_is_better, metric.sum.sizes().vec(), metric.weight.sizes().vec(),
                           static_cast<int>(metric.form)});
    std::string text = described.dump();
    at::Tensor length = at::tensor({int64_t(text.size())}, at::kLong).to(device_);
    const int root = group_->size() - 1;
    group_->broadcast(length, root, {"names of metrics", {}})->wait();
    text.resize(size_t(length.item<int64_t>()));
    at::Tensor bytes = at::empty({int64_t(text.size())}, at::kByte);
    std::copy(text.begin(), text.end(), bytes.mutable_data_ptr<uint8_t>());
    bytes = bytes.to(device_);
    group_->broadcast(bytes, root, {"names of metrics", {}})->wait();
    bytes = bytes.cpu();
    const uint8_t* first = bytes.const_data_ptr<uint8_t>();
    const Json received = Json::parse(first, first + bytes.numel());
    for (const Json& item : received) {
      const auto zeros = [&](size_t shape) {
        return at::zeros(item.at(shape).get<std::vector<int64_t>>(), at::TensorOptions(at::kDouble).device(device_));
      };
      zero_metrics_.push_back({item.at(0).get<std::string>(), zeros(2), zeros(3), item.at(1).get<bool>(),
                               static_cast<Metric::Form>(item.at(4).get<int>())});
    }
  }

  const std::string schedule_;  // gpipe, 1f1b, interleaved
  const int chunks_;            // virtual stages
  const int64_t micro_batches_;
  CommunicatorPtr group_;
  at::Device device_;
  std::vector<int> rank_of_;  // rank of each stage
  TiedParameters ties_;
  std::vector<std::unique_ptr<ModelPart>> models_;
  std::vector<ModelPart*> parts_;
  std::unique_ptr<StageLoop> loop_;
  RankLink link_;
  std::map<int, StepSchedule> schedules_;  // by number of micro-batches
  std::vector<Metric> zero_metrics_;       // zero metrics of ranks without the last stage; empty until names are known
};

}  // namespace

std::unique_ptr<StepRunner> make_pipeline_runner(const Context& context, ModelPtr model, LossPtr loss,
                                                 const Options& options, const PartRequest& base) {
  return std::make_unique<PipelineRunner>(context, std::move(model), std::move(loss), options, base);
}

}  // namespace convoy
