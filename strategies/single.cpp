// single: one rank holds everything on one device. The reference that every other strategy is held against.
//
// Replicated: nothing. Sharded: nothing. Sent per step: nothing. Memory with P parameters of e bytes and k moments each
// (Adam 2, SGD 0 or 1): P·e·(2 + k), and what backward keeps of the batch.
#include "strategies/single.h"

#include <ATen/ATen.h>

#include <numeric>

#include "strategies/parts/flat_parameters.h"
#include "strategies/parts/gradient_collector.h"
#include "strategies/parts/replica.h"
#include "strategies/parts/replicated_state.h"
#include "strategies/parts/update.h"

namespace convoy {
namespace {

class Single : public Strategy {
 public:
  explicit Single(const Options& options) : every_(options.section("sync").integer("every")) {}

  void setup(const Context& context, ModelPtr model, std::shared_ptr<const LossFunction> loss) override {
    replica_.emplace(context, std::move(model), std::move(loss));
    const auto& parameters = replica_->parameters();
    std::vector<int> order(parameters.size());
    std::iota(order.begin(), order.end(), 0);
    flat_.emplace(parameters, std::vector<std::vector<int>>{order}, context.config.optimizer);
    collector_.emplace(parameters, replica_->state(), [](int) {});
    update_.emplace(context, every_);
    update_->attach(*flat_);
  }

  Sampling sampling() const override { return {}; }

  StepResult step(const StepInput& input) override {
    const Loss loss = replica_->forward(input.batch, input.step);
    const double nominal = std::max<double>(1, static_cast<double>(input.batch.nominal_rows));
    if (micro_ == 0) collector_->begin();
    flat_->add_to_header(loss.weight, loss.sum.detach(), micro_ == 0);
    replica_->backward(loss, nominal);
    StepResult result;
    result.metrics = {loss_metric(loss)};
    result.updated = ++micro_ == every_ || input.flush;
    if (!result.updated) return result;
    micro_ = 0;
    collector_->finish();
    update_->begin(nominal);
    update_->reduced(0);
    const UpdateFigures figures = update_->finish();
    result.finite = figures.finite;
    result.gradient_norm = figures.norm;
    result.learning_rate = figures.learning_rate;
    return result;
  }

  std::vector<Metric> evaluate(const Batch& batch) override { return replica_->evaluate(batch); }
  void settle() override {}
  void visit_state(const StateVisitor& visit) override {
    visit_replicated_state(*replica_, *flat_, *update_, 0, 1, visit);
  }
  void state_restored() override { update_->restored(); }

 private:
  int64_t every_;
  int64_t micro_ = 0;  // micro-steps since the last update
  std::optional<Replica> replica_;
  std::optional<FlatParameters> flat_;
  std::optional<GradientCollector> collector_;
  std::optional<Update> update_;
};

}  // namespace

std::unique_ptr<Strategy> make_single(const Options& options) { return std::make_unique<Single>(options); }

}  // namespace convoy
