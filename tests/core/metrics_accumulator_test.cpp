// Sums of additive metrics, and their last and best values.
#include "core/metrics/accumulator.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/communicator.h"

namespace convoy {
namespace {

Metric metric(const std::string& name, std::vector<double> sum, std::vector<double> weight, bool lower = false) {
  return {name, at::tensor(sum, at::kDouble), at::tensor(weight, at::kDouble), lower};
}

TEST(MetricAccumulator, WeighsBatchesByTheirRows) {
  auto world = make_single_communicator();
  MetricAccumulator metrics;
  metrics.add({metric("accuracy", {3}, {4})});
  metrics.add({metric("accuracy", {0}, {0})});  // a share without rows
  metrics.add({metric("accuracy", {1}, {1})});
  EXPECT_DOUBLE_EQ(metrics.reduce(*world).at("accuracy").value, 0.8);
  EXPECT_TRUE(metrics.reduce(*world).empty()) << "reduce starts afresh";
}

TEST(MetricAccumulator, DoesNotRetainTensors) {
  auto world = make_single_communicator();
  MetricAccumulator metrics;
  const Metric first = metric("loss", {2}, {1}, true);
  metrics.add({first});
  metrics.add({metric("loss", {4}, {1}, true)});
  EXPECT_EQ(first.sum.item<double>(), 2);
  EXPECT_DOUBLE_EQ(metrics.reduce(*world).at("loss").value, 3);
}

TEST(MetricAccumulator, SeparatesMembers) {
  auto world = make_single_communicator();
  MetricAccumulator metrics;
  metrics.add({metric("accuracy", {1, 3}, {4, 4})});
  const MetricValue value = metrics.reduce(*world).at("accuracy");
  EXPECT_EQ(value.members, (std::vector<double>{0.25, 0.75}));
  EXPECT_DOUBLE_EQ(value.value, 0.5);
}

TEST(MetricAccumulator, RefusesChangedAndDuplicateNames) {
  const auto message = [](MetricAccumulator& metrics, const std::vector<Metric>& more) -> std::string {
    try {
      metrics.add(more);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Failure::training);
      return error.what();
    }
    return "taken";
  };
  MetricAccumulator metrics;
  metrics.add({metric("loss", {1}, {1}), metric("a", {1}, {1})});
  EXPECT_NE(message(metrics, {metric("loss", {1}, {1})}).find("are loss and of another loss, a"), std::string::npos);
  EXPECT_NE(message(metrics, {metric("a", {1}, {1}), metric("loss", {1}, {1})}).find("a, loss"), std::string::npos);
  EXPECT_NE(message(metrics, {metric("loss", {1}, {1}), metric("a", {1, 2}, {1, 1})}).find("has 2 numbers"),
            std::string::npos);
  MetricAccumulator twice;
  EXPECT_NE(message(twice, {metric("a", {1}, {1}), metric("a", {1}, {1})}).find("'a' occurs twice"), std::string::npos);
}

TEST(BestMetrics, KeepsTheBestInEachDirection) {
  BestMetrics best;
  best.add({{"loss", {2.0, {}, true}}, {"hr@10", {0.5, {}, false}}}, 10);
  best.add({{"loss", {3.0, {}, true}}, {"hr@10", {0.6, {}, false}}}, 20);
  EXPECT_EQ(best.json()["loss"]["best"], 2.0);
  EXPECT_EQ(best.json()["loss"]["best_step"], 10);
  EXPECT_EQ(best.json()["loss"]["last"], 3.0);
  EXPECT_EQ(best.json()["hr@10"]["best_step"], 20);
}

TEST(BestMetrics, NaNIsNeverTheBest) {
  BestMetrics best;
  best.add({{"loss", {std::nan(""), {}, true}}}, 1);
  EXPECT_EQ(best.json()["loss"]["last"], "nan");
  EXPECT_FALSE(best.json()["loss"].contains("best"));
  best.add({{"loss", {5.0, {}, true}}}, 2);
  best.add({{"loss", {std::nan(""), {}, true}}}, 3);
  EXPECT_EQ(best.json()["loss"]["best"], 5.0);
}

}  // namespace
}  // namespace convoy
