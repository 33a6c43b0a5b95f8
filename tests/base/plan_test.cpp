// A job is unchanged after its transfer over the channel.
#include "core/config/job_plan.h"

#include <gtest/gtest.h>

#include "tests/support/config_text.h"

namespace convoy {
namespace {

JobPlan sample_job() {
  JobPlan job;
  job.name = "ncf";
  RankPlan first;
  first.rank = 0;
  first.devices.push_back({DevicePlan::Kind::cores, -1, {0, 2}});
  first.cores = {0, 2, 3};
  first.threads = 2;
  RankPlan second;
  second.rank = 1;
  second.host = 1;
  second.process = 1;
  second.devices.push_back({DevicePlan::Kind::gpu, 3, {4}});
  second.devices.push_back({DevicePlan::Kind::gpu, 4, {}});
  job.ranks = {first, second};
  job.processes = {{0, {0}}, {1, {1}}};
  job.mesh = Mesh({{"data", 2}, {"tensor", 1}});
  job.backend = "gloo";
  job.config =
      testing::read_config("program: [./mine]\nname: ncf\n").changed({{"seed", uint64_t{18446744073709551615u}}});
  return job;
}

TEST(Plan, ReadsAJobBackFromJson) {
  const JobPlan job = sample_job();
  const JobPlan copy = job_from_json(Json::parse(to_json(job).dump()));
  EXPECT_EQ(copy.name, "ncf");
  ASSERT_EQ(copy.ranks.size(), 2u);
  EXPECT_EQ(copy.ranks[0].devices[0].kind, DevicePlan::Kind::cores);
  EXPECT_EQ(copy.ranks[0].devices[0].cores, (std::vector<int>{0, 2}));
  EXPECT_EQ(copy.ranks[0].cores, (std::vector<int>{0, 2, 3}));
  EXPECT_EQ(copy.ranks[0].threads, 2);
  EXPECT_EQ(copy.ranks[1].host, 1);
  EXPECT_EQ(copy.ranks[1].process, 1);
  ASSERT_EQ(copy.ranks[1].devices.size(), 2u);
  EXPECT_EQ(copy.ranks[1].devices[0].kind, DevicePlan::Kind::gpu);
  EXPECT_EQ(copy.ranks[1].devices[1].gpu, 4);
  ASSERT_EQ(copy.processes.size(), 2u);
  EXPECT_EQ(copy.processes[1].host, 1);
  EXPECT_EQ(copy.processes[1].ranks, (std::vector<int>{1}));
  EXPECT_EQ(copy.mesh.degree("data"), 2);
  EXPECT_EQ(copy.mesh.axes().size(), 2u);
  EXPECT_EQ(copy.backend, "gloo");
  EXPECT_EQ(copy.config.resolved, job.config.resolved);
  EXPECT_EQ(copy.config.seed, 18446744073709551615u);
  EXPECT_EQ(to_json(copy).dump(), to_json(job).dump());
}

TEST(Plan, RefusesOtherJson) {
  Json json = to_json(sample_job());
  json.erase("mesh");
  EXPECT_THROW(job_from_json(json), Error);
  json = to_json(sample_job());
  json["ranks"][0]["threads"] = "two";
  EXPECT_THROW(job_from_json(json), Error);
  json = to_json(sample_job());
  json["ranks"][0]["devices"][0]["kind"] = "tpu";
  EXPECT_THROW(job_from_json(json), Error);
  EXPECT_THROW(job_from_json(Json("text")), Error);
}

}  // namespace
}  // namespace convoy
