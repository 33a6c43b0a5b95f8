#include "core/training/evaluation.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/base/error.h"

namespace convoy {
namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

std::map<std::string, MetricValue> values(double loss, double accuracy = 0) {
  MetricValue low{loss, {}, true, 1}, high{accuracy, {}, false, 1};
  return {{"loss", low}, {"accuracy", high}};
}

TEST(WatchedMetric, DirectionsDecideWhatIsBetter) {
  WatchedMetric automatic("k", {"loss", "auto", 0}), up("k", {"loss", "maximize", 0}),
      high("k", {"accuracy", "auto", 0});
  EXPECT_TRUE(automatic.add(values(2), 1));
  EXPECT_TRUE(automatic.add(values(1), 2));
  EXPECT_FALSE(automatic.add(values(1), 3)) << "an equal value is no improvement";
  EXPECT_TRUE(up.add(values(2), 1));
  EXPECT_FALSE(up.add(values(1), 2));
  EXPECT_TRUE(high.add(values(1, 0.5), 1));
  EXPECT_FALSE(high.add(values(0, 0.4), 2));
}

TEST(WatchedMetric, NaNIsNeverTheBest) {
  WatchedMetric metric("k", {"loss", "auto", 2});
  EXPECT_FALSE(metric.add(values(not_a_number), 1));
  EXPECT_FALSE(metric.exhausted());
  EXPECT_FALSE(metric.add(values(std::numeric_limits<double>::infinity()), 2));
  EXPECT_TRUE(metric.exhausted()) << "two evaluations without improvement";
  EXPECT_TRUE(metric.add(values(5), 3));
  EXPECT_FALSE(metric.exhausted());
}

TEST(WatchedMetric, ContinuesFromItsState) {
  WatchedMetric first("k", {"loss", "auto", 3}), second("k", {"loss", "auto", 2}), other("k", {"accuracy", "auto", 2});
  first.add(values(1), 10);
  first.add(values(2), 20);
  first.add(values(2), 30);
  EXPECT_FALSE(first.exhausted());
  second.restore(first.json());
  EXPECT_TRUE(second.exhausted()) << "a shorter patience counts at once";
  EXPECT_EQ(second.json()["step"], 10);
  other.restore(first.json());
  EXPECT_TRUE(other.json().is_null()) << "another metric starts anew";
}

TEST(WatchedMetric, WithoutAMetricNothingIsWatched) {
  WatchedMetric none("k", {});
  EXPECT_FALSE(none.watches());
  EXPECT_FALSE(none.add(values(1), 1));
  EXPECT_FALSE(none.exhausted());
}

}  // namespace
}  // namespace convoy
