// single: one rank holds everything on one device. It is the reference strategy: `verify` compares all others with it.
//
// Replicated: nothing. Sharded: nothing. Sent per step: nothing.
// Memory with P parameters of e bytes and k moments each (Adam 2, SGD 0 or 1): P·e·(2 + k), and the activations of the
// batch.
#include "core/strategy.h"

#include <ATen/core/Tensor.h>

#include <numeric>

#include "strategies/common/memory/flat_parameters.h"
#include "strategies/common/model/model_part.h"
#include "strategies/common/model/visit_parts.h"
#include "strategies/common/step/gradient_collector.h"
#include "strategies/common/step/start_checks.h"
#include "strategies/common/step/step_graph.h"
#include "strategies/common/step/update.h"

namespace convoy {
namespace {

class Single : public Strategy {
 public:
  explicit Single(const Options& options) : options_(step_options(options)), every_(options_.sync.every) {}

  void setup(const Context& context, ModelPtr model, LossPtr loss) override {
    state_ = context.state;
    times_ = context.times;
    first_gradients_.emplace(context);
    PartRequest request;
    request.recompute = options_.recompute;
    request.rows = make_sparse_rule(context.config, 1, context.rank == 0);
    part_.emplace(context, std::move(model), std::move(loss), std::move(request));
    const auto& parameters = part_->parameters();
    std::vector<int> order(parameters.size());
    std::iota(order.begin(), order.end(), 0);
    flat_.emplace(parameters, std::vector<std::vector<int>>{order}, context.config.optimizer);
    collector_.emplace(parameters, part_->state(), [](int) {});
    update_.emplace(context, every_);
    update_->attach(*flat_);
    update_->attach_tables(part_->tables());
    warn_if_lazy_is_unused(context, part_->tables());
    part_->state()->loss_scale = update_->loss_scale();
    if (every_ == 1)
      graph_.emplace(context, options_.graph, graph_parts());
    else
      log_no_graph(context, options_.graph, not_every_step(every_));
  }

  Sampling sampling() const override { return {0, 1, options_.micro_batches}; }

  StepResult step(const StepInput& input) override { return graph_ ? graph_->run(input) : train_step(input); }

  std::vector<Metric> evaluate(const Batch& batch) override { return part_->metrics(part_->evaluate(batch), batch); }
  bool evaluated(const std::map<std::string, MetricValue>&) override { return false; }
  void flush() override { update_->flush(); }
  void flush_and_copy(int64_t most) override {
    update_->prepare_copies(most, 1, [](bool fits) { return fits; }) ? update_->flush_and_copy() : update_->flush();
  }
  void flush_for_evaluation() override {}
  void visit_state(const StateVisitor& visit) override { visit_parts({&*part_}, *flat_, *update_, {}, visit); }
  void visit_gradients(const StateVisitor& visit) override { convoy::visit_gradients(*flat_, *update_, {}, visit); }
  void state_restored() override { update_->restored(); }
  void renumbered(int64_t steps) override { update_->renumbered(steps); }

 private:
  StepResult train_step(const StepInput& input) {
    const double nominal = std::max<double>(1, double(input.batch.nominal_rows));
    if (accumulated_ == 0) {
      collector_->begin();
      begin_rows(update_->tables());
    }
    StepResult result;
    for (const Batch& micro : input.batch.micro_batches()) {
      const Loss loss = part_->loss(part_->forward(micro, input.step), micro);
      flat_->add_to_header(loss.weight, loss.sum, accumulated_ == 0 && result.metrics.empty());
      part_->backward(loss, nominal);
      add_metric(result.metrics, loss_metric(loss));
    }
    result.updated = ++accumulated_ == every_ || input.flush;
    if (!result.updated) return result;
    accumulated_ = 0;
    collector_->finish();
    state_->phase("optimizer");
    const TimeBreakdown::Scope counted(*times_, TimePart::update);
    update_->begin(nominal);
    update_->reduced(0);
    take_rows(update_->tables());
    update_->reduced_rows();
    const UpdateStatistics statistics = update_->finish();
    first_gradients_->updated({&*part_});
    result.finite = statistics.finite;
    result.gradient_norm = statistics.norm;
    result.learning_rate = statistics.learning_rate;
    result.skipped = statistics.skipped;
    return result;
  }

  StepGraph::Hooks graph_parts() {
    return {[this] { update_->set_rate(); }, [this](const StepInput& input) { return train_step(input); },
            [this](const StateVisitor& visit) { visit_state(visit); },
            [this]() -> std::string {
              if (!update_->tables().empty()) return "each step of a sparse embedding has another number of rows";
              return part_->state()->drew ? "its dropout uses random keys from the host" : "";
            }};
  }

  std::shared_ptr<StateFile> state_;
  std::shared_ptr<TimeBreakdown> times_;
  std::optional<GradientCoverage> first_gradients_;
  const StepOptions options_;
  const int64_t every_;      // steps per update
  int64_t accumulated_ = 0;  // steps since the last update
  std::optional<ModelPart> part_;
  std::optional<FlatParameters> flat_;
  std::optional<GradientCollector> collector_;
  std::optional<Update> update_;
  std::optional<StepGraph> graph_;  // null where several steps make an update
};

}  // namespace

std::unique_ptr<Strategy> make_single(const Options& options) { return std::make_unique<Single>(options); }

}  // namespace convoy
