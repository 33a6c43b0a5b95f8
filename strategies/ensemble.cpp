// ensemble: many small models of one kind at once, each with its own seed, rows, learning rate and weight decay.
//
// Replicated: nothing. Sharded: the members, in contiguous runs over the ranks of the axis `members`. Sent per step:
// nothing; per evaluation batch, the sums over members that their vote is made of. Memory per rank with k members of P
// parameters of e bytes, m moments each: k·P·e·(2 + m), and what backward keeps of k batches.
// A rank's members are one stack (parts/members/stacked_members.h): one batched product per layer, one optimizer pass. A member is
// trained as it would be by itself with its seed, rows and rates, whatever ranks there are and however its rank does it.
#include "strategies/ensemble.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "core/error.h"
#include "core/log.h"
#include "core/own_rows.h"
#include "strategies/parts/members/early_stop.h"
#include "strategies/parts/members/stacked_members.h"
#include "strategies/parts/members/stacked_vote.h"
#include "strategies/parts/precision.h"
#include "strategies/parts/rows/row_tables.h"

namespace convoy {
namespace {

class Ensemble : public Strategy, public OwnRows {
 public:
  explicit Ensemble(const Options& options) : options_(options) { sampling_.draws = draws_of(options_); }

  void setup(const Context& context, ModelPtr model, std::shared_ptr<const LossFunction> loss) override {
    all_ = members_of(context.config);
    const CommunicatorPtr group = context.axis("members");
    const auto [first, last] = members_of_rank(static_cast<int64_t>(all_.size()), group->rank(), group->size());
    first_rank_ = context.rank == 0;
    tell_lazy(context, {});
    device_ = context.devices.front();
    stop_.emplace(all_, options_.section("early_stop").text("metric"));
    members_ = std::make_unique<StackedMembers>(context, model, loss,
                                                std::vector<MemberSettings>(all_.begin() + first, all_.begin() + last));
    if (options_.boolean("vote") && all_.size() > 1) {
      const std::string& configured = context.config.loss.name;
      auto store = std::make_shared<LayerStore>();
      store->device = device_;
      store->dtype = parameter_dtype(context.config.precision);
      vote_.emplace(model, loss, configured.empty() ? model->default_loss() : configured,
                    static_cast<int64_t>(all_.size()), std::make_shared<PlainLayers>(store), group);
      dtype_ = store->dtype;
    }
    read_draws();
  }

  Sampling sampling() const override { return sampling_; }

  StepResult step(const StepInput& input) override {
    StepResult result;
    if (members_->active() == 0) {
      result.metrics = {placed({"loss", at::zeros({0}, at::kDouble), at::zeros({0}, at::kDouble), true}, 0)};
      return result;
    }
    CONVOY_CHECK(!input.batch.tensors.empty() && input.batch.tensors.front().second.size(0) == members_->active(),
                 "a batch of ", input.batch.tensors.empty() ? 0 : input.batch.tensors.front().second.size(0),
                 " members for ", members_->active());
    const StackedMembers::Step done = members_->step(input.batch, input.step);
    result.metrics = {placed(done.loss, members_->active())};
    result.gradient_norm = done.figures.norm;
    result.learning_rate = done.figures.learning_rate;
    // Figures that are not finite end the rank that has them, by name of the member: `finite` is of no use to others.
    return result;
  }

  std::vector<Metric> evaluate(const Batch& batch) override {
    const StackedMembers::Evaluation all = members_->evaluate(batch);
    std::vector<Metric> metrics;
    for (const Metric& metric : all.metrics)
      metrics.push_back(placed(metric, static_cast<int64_t>(members_->rows().size())));
    if (!vote_) return metrics;
    Batch moved = batch.to(device_, true);
    for (auto& entry : moved.tensors)
      if (entry.second.is_floating_point()) entry.second = entry.second.to(dtype_);
    for (Metric& metric : (*vote_)(all.outputs, moved)) metrics.push_back(std::move(metric));
    return metrics;
  }

  std::vector<MemberDraw> draws() const override {
    std::vector<MemberDraw> all;
    for (const MemberSettings& member : members_->rows()) all.push_back(member.draw);
    return all;
  }

  std::vector<Metric> evaluate_own(const Batch& batch) override {
    std::vector<Metric> metrics;
    for (const Metric& metric : members_->evaluate(batch, true).metrics)
      metrics.push_back(placed(metric, static_cast<int64_t>(members_->rows().size())));
    return metrics;
  }

  bool evaluated(const std::map<std::string, MetricValue>& figures) override {
    if (!figures.empty()) stop_->add(figures);
    std::vector<int64_t> ended;
    for (const MemberSettings& member : members_->rows())
      if (stop_->finished(member.number)) ended.push_back(member.number);
    const int64_t before = members_->active();
    members_->finish(ended);
    if (members_->active() != before)
      log::info(str("ensemble: ", before - members_->active(), " of ", before, " members of this rank have finished"));
    read_draws();
    return stop_->training() == 0;
  }

  void settle() override {}

  void visit_state(const StateVisitor& visit) override {
    members_->visit_state(visit);
    for (const auto& [name, tensor] : stop_->state()) {
      StateEntry entry;
      entry.name = name;
      entry.kind = StateKind::counter;
      entry.piece = Piece::whole(tensor.sizes());
      entry.tensor = tensor;
      entry.owner = first_rank_;
      visit(entry);
    }
  }

  void state_restored() override {
    members_->restored();
    stop_->restored();
  }
  void figures_changed() override { stop_->reset(); }
  void renumbered(int64_t steps) override { members_->renumbered(steps); }

 private:
  // Of this rank's rows, in a tensor of all members by their numbers: zero where another rank has them.
  Metric placed(const Metric& metric, int64_t rows) const {
    const at::Tensor index = numbers_.narrow(0, 0, rows);
    const auto among_all = [&](const at::Tensor& values) {
      const at::Tensor whole =
          at::zeros({static_cast<int64_t>(all_.size())}, at::TensorOptions(at::kDouble).device(device_));
      return rows == 0 ? whole : whole.index_copy(0, index, values.to(at::kDouble).reshape({-1}).to(device_));
    };
    return {metric.name, among_all(metric.sum), among_all(metric.weight), metric.lower_is_better};
  }

  void read_draws() {
    sampling_.draws.clear();
    for (int64_t row = 0; row < members_->active(); ++row)
      sampling_.draws.push_back(members_->rows()[static_cast<size_t>(row)].draw);
    std::vector<int64_t> numbers;
    for (const MemberSettings& member : members_->rows()) numbers.push_back(member.number);
    numbers_ = at::tensor(numbers, at::kLong).to(device_);
    sampling_.members = members_->active();
    sampling_.job_members = stop_->training();
  }

  Options options_;
  Sampling sampling_;
  bool first_rank_ = true;
  at::Device device_{at::kCPU};
  at::ScalarType dtype_ = at::kFloat;
  std::vector<MemberSettings> all_;  // of the job, by number
  at::Tensor numbers_;               // of this rank's, by row
  std::optional<EarlyStop> stop_;
  std::unique_ptr<StackedMembers> members_;
  std::optional<Vote> vote_;
};

}  // namespace

std::unique_ptr<Strategy> make_ensemble(const Options& options) { return std::make_unique<Ensemble>(options); }

}  // namespace convoy
