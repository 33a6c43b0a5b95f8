// ensemble: many small models of one kind at once. Members differ in seed, rows, learning rate and weight decay.
//
// Replicated: nothing. Sharded: the members, in contiguous ranges over the ranks of the axis `members`.
// Sent per step: nothing; per evaluation batch, the sums over members for the vote.
// Memory per rank with k members of P parameters of e bytes, m moments each: k·P·e·(2 + m), and the activations of k
// batches.
// The members of a rank are one stack (strategies/ensemble/stacked_members.h): one batched product per layer, one
// optimizer pass.
// A member trains as it would alone with its seed, rows and rates, on any number of ranks and in any execution mode.
#include "core/strategy.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/metrics/accumulator.h"
#include "core/optim/precision.h"
#include "strategies/common/model/visit_parts.h"
#include "strategies/ensemble/stacked_members.h"
#include "strategies/ensemble/stacked_update.h"
#include "strategies/sparse/sparse_embedding.h"

namespace convoy {
namespace {

// EarlyStop: ends members whose metric did not improve for `patience` evaluations; they keep their best weights.
// Equal on all ranks, because all get the same metrics.
class EarlyStop {
 public:
  // `members`: all members of the job.
  EarlyStop(const std::vector<MemberSettings>& members, std::string metric);

  // Returns the members that improved. Error(config) listing the available metrics if the watched one is missing.
  std::vector<int64_t> add(const std::map<std::string, MetricValue>& metrics);
  bool finished(int64_t member) const { return finished_.const_data_ptr<bool>()[member]; }
  int64_t training() const;  // number of members that have not finished

  // The tensors of `state` were written. Members end by the current patience, which may differ from the checkpoint's.
  void restored();
  // Later metrics are not comparable with earlier ones: clears best values and finished members.
  void reset();

  // State tensors by name, for checkpoints; writable.
  NamedTensors state() const;

 private:
  std::vector<int64_t> patience_;
  std::string metric_;
  at::Tensor best_;      // float64 [members]; NaN: none yet
  at::Tensor waited_;    // evaluations since the best one, int64
  at::Tensor finished_;  // bool
};

EarlyStop::EarlyStop(const std::vector<MemberSettings>& members, std::string metric) : metric_(std::move(metric)) {
  for (const MemberSettings& member : members) patience_.push_back(member.patience);
  const auto count = int64_t(members.size());
  best_ = at::full({count}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
  waited_ = at::zeros({count}, at::kLong);
  finished_ = at::zeros({count}, at::kBool);
}

std::vector<int64_t> EarlyStop::add(const std::map<std::string, MetricValue>& metrics) {
  if (std::all_of(patience_.begin(), patience_.end(), [](int64_t one) { return one == 0; })) return {};
  const auto found = metrics.find(metric_);
  const size_t count = patience_.size();
  if (found == metrics.end() || (count > 1 && found->second.members.size() != count)) {
    std::vector<std::string> names;
    for (const auto& [name, metric] : metrics)
      if (count == 1 || metric.members.size() == count) names.push_back(name);
    throw Error(Failure::config, "strategy.early_stop.metric: members have no metric '", metric_,
                "'; an evaluation gives ", join(names, ", "));
  }
  std::vector<int64_t> improved;
  auto* best = best_.mutable_data_ptr<double>();
  auto* waited = waited_.mutable_data_ptr<int64_t>();
  auto* finished = finished_.mutable_data_ptr<bool>();
  for (size_t member = 0; member < count; ++member) {
    if (finished[member] || patience_[member] == 0) continue;
    const double value = count > 1 ? found->second.members[member] : found->second.value;
    const bool better = is_better(value, best[member], found->second.lower_is_better);
    waited[member] = better ? 0 : waited[member] + 1;
    if (better) best[member] = value;
    if (better) improved.push_back(int64_t(member));
    finished[member] = waited[member] >= patience_[member];
  }
  return improved;
}

void EarlyStop::restored() {
  const auto* waited = waited_.const_data_ptr<int64_t>();
  auto* finished = finished_.mutable_data_ptr<bool>();
  for (size_t member = 0; member < patience_.size(); ++member)
    finished[member] = patience_[member] > 0 && waited[member] >= patience_[member];
}

void EarlyStop::reset() {
  best_.fill_(std::numeric_limits<double>::quiet_NaN());
  waited_.zero_();
  finished_.zero_();
}

int64_t EarlyStop::training() const { return finished_.logical_not().sum().item<int64_t>(); }

NamedTensors EarlyStop::state() const {
  return {{"early_stop_best", best_}, {"early_stop_waited", waited_}, {"early_stop_finished", finished_}};
}

class Ensemble : public Strategy, public HeldOutEvaluation {
 public:
  explicit Ensemble(const Options& options) : options_(ensemble_options(options)) {
    sampling_.samples = samples_of(options);
  }

  void setup(const Context& context, ModelPtr model, LossPtr loss) override {
    all_ = members_of(context.config);
    const CommunicatorPtr group = context.axis("members");
    const auto [first, last] = members_of_rank(int64_t(all_.size()), group->rank(), group->size());
    first_rank_ = context.rank == 0;
    first_ = first;
    warn_if_lazy_is_unused(context, {});
    device_ = context.devices.front();
    stop_.emplace(all_, options_.stop_metric);
    members_ = std::make_unique<StackedMembers>(context, options_, model, loss,
                                                std::vector<MemberSettings>(all_.begin() + first, all_.begin() + last));
    if (options_.vote && all_.size() > 1) {
      const std::string& configured = context.config.loss.name;
      auto store = std::make_shared<LayerStore>();
      store->device = device_;
      store->dtype = parameter_dtype(context.config.precision);
      vote_.emplace(model, loss, configured.empty() ? model->default_loss() : configured, int64_t(all_.size()),
                    std::make_shared<DefaultLayers>(store), group);
      dtype_ = store->dtype;
    }
    read_samples();
  }

  StrategyCapabilities capabilities() override { return {this}; }
  Sampling sampling() const override { return sampling_; }

  StepResult step(const StepInput& input) override {
    if (members_->active() == 0) {
      StepResult result;
      result.metrics = {by_member_number({"loss", at::zeros({0}, at::kDouble), at::zeros({0}, at::kDouble), true}, 0)};
      return result;
    }
    CONVOY_CHECK(!input.batch.tensors.empty() && input.batch.tensors.front().second.size(0) == members_->active(),
                 "a batch of ", input.batch.tensors.empty() ? 0 : input.batch.tensors.front().second.size(0),
                 " members for ", members_->active());
    StepResult result = members_->step(input);
    result.metrics = {by_member_number(result.metrics.front(), members_->active())};
    return result;
  }

  std::vector<Metric> evaluate(const Batch& batch) override {
    const StackedMembers::Evaluation all = members_->evaluate(batch);
    std::vector<Metric> metrics = of_all_members(all.metrics);
    if (!vote_) return metrics;
    Batch moved = batch.to(device_, true);
    for (auto& entry : moved.tensors)
      if (entry.second.is_floating_point()) entry.second = entry.second.to(dtype_);
    for (Metric& metric : (*vote_)(all.outputs, moved)) metrics.push_back(std::move(metric));
    return metrics;
  }

  std::vector<MemberSample> samples() const override {
    std::vector<MemberSample> all;
    for (const MemberSettings& member : members_->rows()) all.push_back(member.sample);
    return all;
  }

  std::vector<Metric> evaluate_held_out(const Batch& batch) override {
    return of_all_members(members_->evaluate(batch, true).metrics);
  }

  bool evaluated(const std::map<std::string, MetricValue>& metrics) override {
    if (!metrics.empty()) members_->keep(stop_->add(metrics));
    std::vector<int64_t> ended;
    for (const MemberSettings& member : members_->rows())
      if (stop_->finished(member.number)) ended.push_back(member.number);
    const int64_t before = members_->active();
    members_->finish(ended);
    if (members_->active() != before) {
      const auto all = int64_t(members_->rows().size()), finished = all - members_->active();
      log::info(str("ensemble: ", finished, " of ", counted(all, "member"), " of this rank ",
                    finished == 1 ? "has" : "have", " finished"));
    }
    read_samples();
    return stop_->training() == 0;
  }

  void flush() override {}

  void visit_state(const StateVisitor& visit) override {
    members_->visit_state(visit);
    for (const auto& [name, tensor] : stop_->state()) visit(state_entry(name, StateKind::counter, tensor, first_rank_));
    // Each rank writes a piece of one tensor over all members, so that any number of ranks can read it.
    StateEntry mode = state_entry("execution_mode", StateKind::counter, members_->chosen_by_trial());
    mode.piece.global_shape = {int64_t(all_.size())};
    mode.piece.offset = {first_};
    visit(mode);
  }
  void visit_gradients(const StateVisitor& visit) override { members_->visit_gradients(visit); }

  void state_restored() override {
    members_->restored();
    stop_->restored();
  }
  void metrics_changed() override {
    stop_->reset();
    members_->forget_best();
  }
  void renumbered(int64_t steps) override { members_->renumbered(steps); }

 private:
  // Spreads the values of this rank's members over a tensor of all members, by member number. Zeros for other ranks'
  // members.
  Metric by_member_number(const Metric& metric, int64_t rows) const {
    const at::Tensor index = numbers_.narrow(0, 0, rows);
    const auto among_all = [&](const at::Tensor& values) {
      std::vector<int64_t> shape = values.sizes().vec();  // [members], or [members, items]
      if (shape.empty()) shape = {1};
      const std::vector<int64_t> own = shape;
      shape[0] = int64_t(all_.size());
      const at::Tensor whole = at::zeros(shape, at::TensorOptions(at::kDouble).device(device_));
      return rows == 0 ? whole : whole.index_copy(0, index, values.to(at::kDouble).reshape(own).to(device_));
    };
    return {metric.name, among_all(metric.sum), among_all(metric.weight), metric.lower_is_better, metric.form};
  }

  // Metrics of an evaluation, by member number.
  std::vector<Metric> of_all_members(std::vector<Metric> metrics) const {
    for (Metric& metric : metrics) metric = by_member_number(metric, int64_t(members_->rows().size()));
    return metrics;
  }

  void read_samples() {
    sampling_.samples.clear();
    for (int64_t row = 0; row < members_->active(); ++row)
      sampling_.samples.push_back(members_->rows()[size_t(row)].sample);
    std::vector<int64_t> numbers;
    for (const MemberSettings& member : members_->rows()) numbers.push_back(member.number);
    numbers_ = at::tensor(numbers, at::kLong).to(device_);
    sampling_.members = members_->active();
    sampling_.job_members = stop_->training();
  }

  const EnsembleOptions options_;
  Sampling sampling_;
  bool first_rank_ = true;
  int64_t first_ = 0;  // number of this rank's first member
  at::Device device_{at::kCPU};
  at::ScalarType dtype_ = at::kFloat;
  std::vector<MemberSettings> all_;  // settings of all members of the job, by number
  at::Tensor numbers_;               // member numbers of this rank, by row
  std::optional<EarlyStop> stop_;
  std::unique_ptr<StackedMembers> members_;
  std::optional<EnsembleVote> vote_;
};

}  // namespace

std::unique_ptr<Strategy> make_ensemble(const Options& options) { return std::make_unique<Ensemble>(options); }

}  // namespace convoy
