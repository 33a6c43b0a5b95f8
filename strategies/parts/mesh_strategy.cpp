#include "strategies/parts/mesh_strategy.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <optional>

#include "core/control/channel.h"
#include "strategies/parts/batch_reader.h"
#include "strategies/parts/first_gradients.h"
#include "strategies/parts/recordable.h"
#include "strategies/parts/rows/row_tables.h"
#include "strategies/parts/step_graph.h"

namespace convoy {
namespace {

class MeshStrategy : public Strategy {
 public:
  explicit MeshStrategy(MeshParts parts) : parts_(std::move(parts)) {}

  void setup(const Context& context, ModelPtr model, std::shared_ptr<const LossFunction> loss) override {
    state_ = context.state;
    first_gradients_.emplace(context);
    const CommunicatorPtr data = context.axis("data");
    sampling_ = {data->rank(), data->size(), parts_.micro_batches};
    // Ranks along the axis `tensor` have copies of the same figures.
    original_ = context.axis("tensor")->rank() == 0;
    runner_ = parts_.runner(context, std::move(model), std::move(loss));
    data_ = parts_.data(context, runner_->parts());
    tell_lazy(context, tables_of(runner_->parts()));
    reader_ = dynamic_cast<BatchReader*>(data_.get());
    const at::Tensor zero = at::zeros({}, at::TensorOptions(at::kDouble).device(context.devices.front()));
    nothing_ = {"loss", zero, zero, true};
    auto* recordable = dynamic_cast<Recordable*>(data_.get());
    if (recordable == nullptr || parts_.graph == "never") return;
    if (parts_.every == 1)
      graph_.emplace(context, parts_.graph, graph_parts(context, *recordable));
    else
      tell_no_graph(context, parts_.graph, not_every_step(parts_.every));
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
  void settle() override { data_->settle(); }
  void settle_for_evaluation() override { data_->settle_for_evaluation(); }
  void visit_state(const StateVisitor& visit) override { data_->visit_state(visit); }
  void state_restored() override { data_->state_restored(); }
  void renumbered(int64_t steps) override { data_->renumbered(steps); }

 private:
  StepResult trained(const StepInput& input) {
    const bool updates = accumulated_ + 1 == parts_.every || input.flush;
    const double nominal = std::max<double>(1, static_cast<double>(input.batch.nominal_rows));
    data_->begin(accumulated_ == 0, updates);
    if (reader_ != nullptr) reader_->expect(input.batch);
    StepResult result;
    result.metrics = {nothing_};
    Runner::Hooks hooks;
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
    const UpdateFigures figures = data_->update(nominal, input.told);
    first_gradients_->updated(runner_->parts());
    result.finite = figures.finite;
    result.gradient_norm = figures.norm;
    result.learning_rate = figures.learning_rate;
    result.skipped = figures.skipped;
    return result;
  }

  StepGraph::Parts graph_parts(const Context& context, Recordable& recordable) {
    return {[&recordable] { recordable.set_rates(); }, [this](const StepInput& input) { return trained(input); },
            [this](const StateVisitor& visit) { visit_state(visit); }, [&recordable] { return recordable.obstacle(); },
            [this, channel = context.channel, rank = context.rank, size = context.size,
             patience = Timeout(static_cast<int64_t>(context.config.launch.rendezvous * 1000))](
                const std::string& mine) { return agreed(*channel, rank, size, patience, mine); }};
  }

  // What the first rank that has anything against it says.
  std::string agreed(Channel& channel, int rank, int size, Timeout patience, const std::string& mine) {
    if (size == 1) return mine;
    const std::vector<std::string> all = channel.agree(str("step graph/", agreements_++), rank, size, mine, patience);
    for (size_t other = 0; other < all.size(); ++other)
      if (!all[other].empty()) return static_cast<int>(other) == rank ? mine : str("rank ", other, ": ", all[other]);
    return "";
  }

  std::shared_ptr<StateFile> state_;
  std::optional<FirstGradients> first_gradients_;
  MeshParts parts_;
  Sampling sampling_;
  bool original_ = true;
  Metric nothing_;
  int64_t accumulated_ = 0;  // steps since the last update
  std::unique_ptr<Runner> runner_;
  std::unique_ptr<DataAxis> data_;
  BatchReader* reader_ = nullptr;   // data_, where it is one
  std::optional<StepGraph> graph_;  // none where several steps make an update
  int64_t agreements_ = 0;          // on the graph, so far
};

}  // namespace

std::unique_ptr<Strategy> make_mesh_strategy(MeshParts parts) {
  return std::make_unique<MeshStrategy>(std::move(parts));
}

}  // namespace convoy
