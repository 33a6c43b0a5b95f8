#include "launch/rank_process.h"

#include <gtest/gtest.h>

namespace convoy {
namespace {

Variables variables_of(int threads, bool shared, Variables environment = {}) {
  Assigned assigned;
  RankPlan rank;
  rank.threads = threads;
  assigned.job.ranks = {rank};
  assigned.job.processes = {{0, {0}}};
  assigned.passive = shared;
  return rank_process("/bin/true", assigned, 0, "channel", std::move(environment)).environment;
}

TEST(RankProcess, ThreadsThatMayWaitForACoreDoNotSpin) {
  EXPECT_EQ(variables_of(2, false).at("OMP_WAIT_POLICY"), "passive");
  EXPECT_EQ(variables_of(1, true).at("OMP_WAIT_POLICY"), "passive");
  EXPECT_EQ(variables_of(1, false).count("OMP_WAIT_POLICY"), 0u);  // nobody to wait for
  EXPECT_EQ(variables_of(2, true, {{"OMP_WAIT_POLICY", "active"}}).at("OMP_WAIT_POLICY"), "active");
  EXPECT_EQ(variables_of(3, false).at("OMP_NUM_THREADS"), "3");
}

}  // namespace
}  // namespace convoy
