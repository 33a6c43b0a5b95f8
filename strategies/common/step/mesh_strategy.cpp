#include "strategies/common/step/mesh_strategy.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <optional>

#include "core/control/channel.h"
#include "core/model_checks.h"
#include "strategies/common/layers/batch_norm.h"
#include "strategies/common/step/start_checks.h"
#include "strategies/common/step/step_graph.h"

namespace convoy {
namespace {

class WholeRunner : public StepRunner {
 public:
  WholeRunner(const Context& context, ModelPtr model, LossPtr loss, PartRequest request)
      : part_(context, std::move(model), std::move(loss), std::move(request)) {}

  const std::vector<ModelPart*>& parts() const override { return parts_; }

  void train(const std::vector<Batch>& micro, int64_t step, double nominal, const Hooks& hooks) override {
    for (size_t i = 0; i < micro.size(); ++i) {
      const Loss loss = part_.loss(part_.forward(micro[i], step), micro[i]);
      hooks.loss(loss);
      if (i + 1 == micro.size()) hooks.last_backward(0);
      part_.backward(loss, nominal);
    }
  }

  std::vector<Metric> evaluate(const Batch& batch) override { return part_.metrics(part_.evaluate(batch), batch); }

 private:
  ModelPart part_;
  std::vector<ModelPart*> parts_{&part_};
};

class MeshStrategy : public Strategy {
 public:
  explicit MeshStrategy(MeshComponents components) : components_(std::move(components)) {}

  void setup(const Context& context, ModelPtr model, LossPtr loss) override {
    state_ = context.state;
    times_ = context.times;
    first_gradients_.emplace(context);
    const CommunicatorPtr data = context.axis("data");
    sampling_ = {data->rank(), data->size(), components_.options.micro_batches};
    // Ranks along the axis `tensor` have copies of the same metrics.
    original_ = context.axis("tensor")->rank() == 0;
    runner_ = components_.runner(context, std::move(model), std::move(loss));
    data_ = components_.data(context, runner_->parts());
    warn_if_lazy_is_unused(context, tables_of(runner_->parts()));
    const at::Tensor zero = at::zeros({}, at::TensorOptions(at::kDouble).device(context.devices.front()));
    nothing_ = {"loss", zero, zero, true};
    Recordable* const recordable = data_->recordable();
    if (recordable == nullptr || components_.options.graph == GraphMode::never) return;
    if (components_.options.sync.every == 1)
      graph_.emplace(context, components_.options.graph, graph_parts(context, *recordable));
    else
      log_no_graph(context, components_.options.graph, not_every_step(components_.options.sync.every));
  }

  Sampling sampling() const override { return sampling_; }

  StepResult step(const StepInput& input) override { return graph_ ? graph_->run(input) : trained(input); }

  std::vector<Metric> evaluate(const Batch& batch) override {
    std::vector<Metric> metrics = runner_->evaluate(batch);
    if (original_) return metrics;
    for (Metric& metric : metrics) {
      metric.sum = at::zeros_like(metric.sum);
      metric.weight = at::zeros_like(metric.weight);
    }
    return metrics;
  }

  bool evaluated(const std::map<std::string, MetricValue>&) override { return false; }
  void flush() override { data_->flush(); }
  void flush_and_copy(int64_t most) override { data_->flush_and_copy(most); }
  void flush_for_evaluation() override { data_->flush_for_evaluation(); }
  void visit_state(const StateVisitor& visit) override { data_->visit_state(visit); }
  void visit_gradients(const StateVisitor& visit) override { data_->visit_gradients(visit); }
  void state_restored() override { data_->state_restored(); }
  void renumbered(int64_t steps) override { data_->renumbered(steps); }

 private:
  StepResult trained(const StepInput& input) {
    const bool updates = accumulated_ + 1 == components_.options.sync.every || input.flush;
    const double nominal = std::max<double>(1, double(input.batch.nominal_rows));
    data_->begin(accumulated_ == 0, updates);
    data_->expect(input.batch);
    StepResult result;
    result.metrics = {nothing_};
    StepRunner::Hooks hooks;
    hooks.loss = [&](const Loss& loss) {
      data_->add_loss(loss);
      if (original_) add_metric(result.metrics, loss_metric(loss));
    };
    hooks.last_backward = [this](int part) { data_->last_backward(part); };
    runner_->train(input.batch.micro_batches(), input.step, nominal, hooks);
    accumulated_ = updates ? 0 : accumulated_ + 1;

    result.updated = updates;
    if (!updates) {
      data_->keep();
      return result;
    }
    state_->phase("optimizer");
    const TimeBreakdown::Scope counted(*times_, TimePart::update);
    const UpdateStatistics statistics = data_->update(nominal, input.log_step);
    first_gradients_->updated(runner_->parts());
    result.finite = statistics.finite;
    result.gradient_norm = statistics.norm;
    result.learning_rate = statistics.learning_rate;
    result.skipped = statistics.skipped;
    return result;
  }

  StepGraph::Hooks graph_parts(const Context& context, Recordable& recordable) {
    return {[&recordable] { recordable.set_rates(); }, [this](const StepInput& input) { return trained(input); },
            [this](const StateVisitor& visit) { visit_state(visit); }, [&recordable] { return recordable.obstacle(); },
            [this, channel = context.channel, rank = context.rank, size = context.size,
             patience = timeout_of(context.config.launch.rendezvous)](const std::string& mine) {
              return agreed(*channel, rank, size, patience, mine);
            }};
  }

  // Returns the first reason of any rank against a step graph; "" if no rank has one.
  std::string agreed(Channel& channel, int rank, int size, Timeout patience, const std::string& mine) {
    if (size == 1) return mine;
    const std::vector<std::string> all =
        channel.agree(str("step graph/", obstacle_exchanges_++), rank, size, mine, patience);
    for (size_t other = 0; other < all.size(); ++other)
      if (!all[other].empty()) return int(other) == rank ? mine : str("rank ", other, ": ", all[other]);
    return "";
  }

  std::shared_ptr<StateFile> state_;
  std::shared_ptr<TimeBreakdown> times_;
  std::optional<GradientCoverage> first_gradients_;
  MeshComponents components_;
  Sampling sampling_;
  bool original_ = true;
  Metric nothing_;
  int64_t accumulated_ = 0;  // steps since the last update
  std::unique_ptr<StepRunner> runner_;
  std::unique_ptr<DataAxis> data_;
  std::optional<StepGraph> graph_;  // none if several steps make an update
  int64_t obstacle_exchanges_ = 0;  // exchanges of obstacles so far
};

}  // namespace

PartRequest part_request(const Context& context, const StepOptions& options) {
  PartRequest request;
  // A separate group, so that its messages keep their order during reductions of buckets.
  if (options.synchronises_norms) {
    const CommunicatorPtr data = context.axis("data");
    request.batch_norm = synchronised_batch_norm(data->split(0, data->rank(), {"batch norm", {}}));
    if (data->size() > 1) request.first_forward = refuse_local_batch_norm;
  }
  request.recompute = options.recompute;
  return request;
}

std::unique_ptr<StepRunner> make_whole_runner(const Context& context, ModelPtr model, LossPtr loss,
                                              PartRequest request) {
  return std::make_unique<WholeRunner>(context, std::move(model), std::move(loss), std::move(request));
}

DataAxis::DataAxis(const Context& context, std::vector<ModelPart*> parts, int64_t every,
                   std::vector<CommunicatorPtr> cut, OptimizerFactory optimizer)
    : group_(context.axis("data")),
      pipeline_(context.axis("pipeline")),
      first_of_job_(context.rank == 0),
      parts_(std::move(parts)),
      update_(context, every, std::move(cut), std::move(optimizer)) {
  for (ModelPart* part : parts_) part->state()->loss_scale = update_.loss_scale();
}

std::unique_ptr<Strategy> make_mesh_strategy(MeshComponents components) {
  return std::make_unique<MeshStrategy>(std::move(components));
}

}  // namespace convoy
