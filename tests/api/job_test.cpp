#include <convoy/job.h>

#include <ATen/Functions.h>
#include <gmock/gmock.h>

#include <cmath>
#include <functional>

#include "tests/support/errors.h"
#include "tests/support/torch/jobs.h"

namespace convoy {
namespace {

using ::testing::HasSubstr;

TEST(Job, IsOneRankWhenEmbedded) {
  Job job = Job::embedded({"seed=3"});
  EXPECT_EQ(job.rank(), 0);
  EXPECT_EQ(job.size(), 1);
  EXPECT_EQ(job.world()->size(), 1);
  EXPECT_EQ(context_of(job).config.seed, 3u);
  EXPECT_EQ(job.sum(2.0, 5).value, 2.0);
  EXPECT_EQ(job.sum(2.0, 4).mean(), 0.5);
  EXPECT_TRUE(std::isnan(job.sum(2.0, 0).mean()));
  EXPECT_FALSE(job.arguments().empty());
}

TEST(Job, NamesTheWrongSetting) {
  EXPECT_THAT(error_of([] { Job::embedded({"sed=3"}); }), HasSubstr("did you mean seed"));
  EXPECT_THAT(error_of([] { Job::embedded({"train.epochs=3"}); }), HasSubstr("train.epochs: does not apply"));
}

TEST(Job, SumsMetricsOverRanks) {
  test_jobs(3, [](Job& job) {
    const Sum sum = job.sum(job.rank() + 1.0, 2);
    EXPECT_EQ(sum.value, 6);
    EXPECT_EQ(sum.weight, 6);
    EXPECT_EQ(job.sum(at::scalar_tensor(job.rank())).value, 3);
  });
}

TEST(Job, DividesRanksIntoAMesh) {
  test_jobs(4, [](Job& job) {
    const auto groups = job.mesh({{"data", 2}, {"tensor", 2}});
    ASSERT_EQ(groups.size(), 2u);
    EXPECT_EQ(groups.at("data")->size(), 2);
    EXPECT_EQ(groups.at("data")->rank(), job.rank() / 2);
    EXPECT_EQ(groups.at("tensor")->rank(), job.rank() % 2);
    EXPECT_EQ(context_of(job).axis("tensor"), groups.at("tensor"));
    // A second mesh replaces the first.
    EXPECT_EQ(job.mesh({{"data", 4}}).at("data"), job.world());
  });
}

TEST(Job, NamesTheRankWithADifferentMesh) {
  const std::string error = error_of([] {
    test_jobs(2, [](Job& job) { job.mesh(job.rank() == 1 ? MeshAxes{{"tensor", 2}} : MeshAxes{{"data", 2}}); });
  });
  EXPECT_THAT(error, HasSubstr("rank 1 called Job::mesh({tensor: 2}) and rank 0 Job::mesh({data: 2})"));
}

TEST(Job, RefusesAMeshOfTheWrongSize) {
  EXPECT_THAT(error_of([] { Job::embedded().mesh({{"data", 2}}); }), HasSubstr("has 2 ranks, and this job has 1"));
}

TEST(Job, NamesBothCollectivesOfAMismatch) {
  const std::string error = error_of([] {
    test_jobs(2, [](Job& job) {
      if (job.rank() == 0)
        job.sum(1);
      else
        job.mesh({{"data", 2}});
    });
  });
  EXPECT_THAT(error, HasSubstr("Job::sum"));
  EXPECT_THAT(error, HasSubstr("Job::mesh"));
}

TEST(Job, NamesRankAndStepOfAnUncaughtException) {
  const std::function<void()> body = [] {
    Job job = Job::embedded();
    context_of(job).state->step(3);
    throw std::runtime_error("my own mistake");
  };
  const auto program = [&]() noexcept { body(); };
  EXPECT_DEATH(program(), "rank 0 on .*, step 3: an exception left the scope.*my own mistake");
}

TEST(Job, AbortsOtherRanksWhenOneFails) {
  const auto fails = [](Job& job) {
    if (job.rank() == 1) throw std::runtime_error("it broke");
    job.sum(1);
  };
  EXPECT_THROW(test_jobs(2, fails), std::runtime_error);
}

}  // namespace
}  // namespace convoy
