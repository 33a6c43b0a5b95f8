#include "core/metrics/accumulator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp_max.h>
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/metrics/sink.h"

namespace convoy {
namespace {

at::Tensor flat_double(const at::Tensor& value) { return value.detach().to(at::kDouble).reshape({-1}); }

// Adds few doubles on the CPU, the usual case, without a dispatch.
void add_to(at::Tensor& sum, const at::Tensor& value) {
  const bool plain = value.is_cpu() && value.scalar_type() == at::kDouble && value.is_contiguous() && sum.is_cpu() &&
                     value.numel() == sum.numel();
  if (!plain) {
    sum.add_(flat_double(value));
    return;
  }
  double* to = sum.mutable_data_ptr<double>();
  const double* from = value.const_data_ptr<double>();
  for (int64_t i = 0; i < sum.numel(); ++i) to[i] += from[i];
}

// Adds the numbers below 0. On a device nothing is read to the host.
void add_negative(at::Tensor& sum, const at::Tensor& value) {
  if (!value.is_cpu() || value.scalar_type() != at::kDouble || !value.is_contiguous()) {
    sum.add_(flat_double(value).clamp_max(0));
    return;
  }
  double* to = sum.mutable_data_ptr<double>();
  const double* from = value.const_data_ptr<double>();
  for (int64_t i = 0; i < sum.numel(); ++i)
    if (from[i] < 0) to[i] += from[i];
}

// Share of items with a count, or the Gini index of the counts: 0 if all are equal, 1 − 1/n if one item has all. NaN
// without a count.
double value_of_counts(const double* counts, int64_t n, Metric::Form form) {
  std::vector<double> sorted(counts, counts + n);
  std::sort(sorted.begin(), sorted.end());
  const double total = std::accumulate(sorted.begin(), sorted.end(), 0.0);
  if (!(total > 0)) return std::numeric_limits<double>::quiet_NaN();
  if (form == Metric::Form::coverage)
    return double(sorted.end() - std::upper_bound(sorted.begin(), sorted.end(), 0.0)) / double(n);
  double weighted = 0;
  for (int64_t i = 0; i < n; ++i) weighted += double(2 * i + 1 - n) * sorted[size_t(i)];
  return weighted / (double(n) * total);
}

bool better(const MetricValue& metric, const Json& entry) {
  const auto best = entry.find("best");
  const bool none = best == entry.end() || !best->is_number();
  return is_better(metric.value, none ? std::numeric_limits<double>::quiet_NaN() : best->get<double>(),
                   metric.lower_is_better);
}

}  // namespace

bool is_better(double value, double best, bool lower_is_better) {
  return std::isfinite(value) && (std::isnan(best) || (lower_is_better ? value < best : value > best));
}

void MetricAccumulator::add(const std::vector<Metric>& metrics) {
  at::NoGradGuard no_grad;
  if (names_.empty()) {
    for (const Metric& metric : metrics) {
      if (std::find(names_.begin(), names_.end(), metric.name) != names_.end())
        throw Error(Failure::training, "metric '", metric.name, "' occurs twice; give the model's metrics other names");
      names_.push_back(metric.name);
      lower_is_better_.push_back(metric.lower_is_better);
      forms_.push_back(metric.form);
      // Clones: the strategy may reuse the step's tensors.
      sums_.push_back(flat_double(metric.sum).clone());
      weights_.push_back(flat_double(metric.weight).clone());
    }
    if (!weights_.empty()) negative_weight_ = weights_.front().clamp_max(0);
    return;
  }
  check_names(metrics);
  for (size_t i = 0; i < metrics.size(); ++i) {
    add_to(sums_[i], metrics[i].sum);
    add_to(weights_[i], metrics[i].weight);
  }
  if (!metrics.empty()) add_negative(negative_weight_, metrics.front().weight);
}

void MetricAccumulator::check_names(const std::vector<Metric>& metrics) const {
  std::vector<std::string> names;
  for (const Metric& metric : metrics) names.push_back(metric.name);
  if (names != names_)
    throw Error(Failure::training, "the metrics of one batch are ", join(names, ", "), " and of another ",
                join(names_, ", "), "; a model must give the same ones, in the same order, for every batch");
  for (size_t i = 0; i < metrics.size(); ++i)
    if (metrics[i].sum.numel() != sums_[i].numel() || metrics[i].weight.numel() != weights_[i].numel())
      throw Error(Failure::training, "metric '", names_[i], "' has ", metrics[i].sum.numel(),
                  " numbers for one batch and ", sums_[i].numel(), " for another");
}

std::map<std::string, MetricValue> MetricAccumulator::reduce(Communicator& world) {
  at::NoGradGuard no_grad;
  std::map<std::string, MetricValue> values;
  if (names_.empty()) return values;
  std::vector<at::Tensor> flat(sums_);
  flat.insert(flat.end(), weights_.begin(), weights_.end());
  flat.push_back(negative_weight_);
  at::Tensor all = at::cat(flat);
  world.all_reduce(all, ReduceOp::sum, {"metrics", {}})->wait();
  all = all.to(at::kCPU);
  const double* sum = all.data_ptr<double>();
  const double* weight = sum;
  for (const at::Tensor& each : sums_) weight += each.numel();
  const double* const end = sum + all.numel();
  values[names_.front()].negative_weight = std::accumulate(end - negative_weight_.numel(), end, 0.0);
  for (size_t i = 0; i < names_.size(); ++i) {
    const int64_t members = weights_[i].numel();
    const int64_t each = members == 0 ? 0 : sums_[i].numel() / members;  // numbers of a member: 1, or one per item
    MetricValue& value = values[names_[i]];
    value.lower_is_better = lower_is_better_[i];
    double total = 0;
    for (int64_t m = 0; m < members; ++m) {
      const bool ratio = forms_[i] == Metric::Form::ratio;
      const double member = ratio ? sum[m] : value_of_counts(sum + m * each, each, forms_[i]);
      total += ratio ? member : member * weight[m];
      value.weight += weight[m];
      if (members > 1) value.members.push_back(ratio ? member / weight[m] : member);
    }
    value.value = total / value.weight;
    sum += members * each;
    weight += members;
  }
  names_.clear();
  forms_.clear();
  lower_is_better_.clear();
  sums_.clear();
  weights_.clear();
  return values;
}

void BestMetrics::add(const std::map<std::string, MetricValue>& values, int64_t step) {
  for (const auto& [name, metric] : values) {
    Json& entry = json_[name];
    entry["last"] = number_or_text(metric.value);
    if (metric.lower_is_better) entry["lower_is_better"] = true;
    if (better(metric, entry)) {
      entry["best"] = number_or_text(metric.value);
      entry["best_step"] = step;
    }
    if (metric.members.empty()) continue;
    entry["members"] = Json::array();
    for (double member : metric.members) entry["members"].push_back(number_or_text(member));
  }
}

void SameMetrics::check(const std::string& kind, const std::vector<std::string>& names) {
  const auto [entry, inserted] = agreed_.emplace(kind, names);
  const std::string mine = join(names, ", ");
  if (!inserted) {
    if (entry->second == names) return;
    throw Error(Failure::training, "the metrics of an evaluation are ", mine, "; earlier they were ",
                join(entry->second, ", "), "; a model must give the same ones each time");
  }
  if (context_.size == 1) return;
  // The barrier's time limit finds and names a rank that is late or never comes.
  context_.world->barrier({"metrics of all ranks", {}})->wait();
  const auto timeout = timeout_of(context_.config.launch.rendezvous);
  const std::vector<std::string> all =
      context_.channel->agree("metrics/" + kind, context_.rank, context_.size, mine, timeout);
  for (size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all.front())
      throw CommError(Failure::disagreement, static_cast<int>(rank),
                      "ranks give different metrics: rank 0: ", all.front(), "; rank ", rank, ": ", all[rank],
                      "; Model::metrics must give the same names in the same order on every rank");
}

}  // namespace convoy
