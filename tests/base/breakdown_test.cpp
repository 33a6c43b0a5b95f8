// The time breakdown in summary.json, and its advice.
#include "core/rank_state/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace convoy {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Json parts(std::map<std::string, double> given) {
  Json all = Json::object();
  for (const char* part : {"start_up", "data", "forward", "backward", "communication", "waiting", "update",
                           "evaluation", "checkpoint", "other"})
    all[part] = given.count(part) > 0 ? given.at(part) : 0.0;
  return all;
}

Json waits(int rank, double seconds) { return Json::array({{{"rank", rank}, {"seconds", seconds}}}); }

// Summary of 1000 steps on two ranks.
Json summary_of(const Json& first, const Json& second, const Json& config = Json::object()) {
  Json ranks = Json::array();
  for (const Json& one : {first, second}) {
    ranks.push_back(one);
    ranks.back()["rank"] = ranks.size() - 1;
    if (!one.contains("waits_for")) ranks.back()["waits_for"] = Json::array();
  }
  return {{"steps_here", 1000},
          {"epochs", 1.0},
          {"config", config},
          {"ranks", Json::array({{{"rank", 0}, {"cores", {0}}}, {{"rank", 1}, {"cores", {1}}}})},
          {"breakdown", {{"wall_s", 10.0}, {"ranks", ranks}}}};
}

TEST(Breakdown, AddsWhatRanksCannotMeasure) {
  std::map<int, Json> ranks;
  ranks[0] = {{"host", "a"}, {"times", parts({{"start_up", 1}, {"forward", 5}})}, {"waits_for", waits(1, 2)}};
  ranks[1] = {{"times", parts({{"start_up", 2}, {"forward", 4.5}})}};
  const Json breakdown = take_breakdown(ranks, 10, 0.5);
  EXPECT_EQ(breakdown["wall_s"], 10);
  EXPECT_EQ(breakdown["ranks"][0]["start_up"], 1 + 3.5);
  EXPECT_EQ(breakdown["ranks"][0]["other"], 0.5);
  for (const Json& rank : breakdown["ranks"]) {
    double sum = 0;
    for (const auto& [name, value] : rank.items())
      if (name != "rank" && value.is_number()) sum += value.get<double>();
    EXPECT_NEAR(sum, 10, 1e-6);
  }
  EXPECT_EQ(ranks[0], Json({{"host", "a"}})) << "the reports move into the breakdown";
  EXPECT_TRUE(take_breakdown(ranks, 10, 0.5).is_null());
}

TEST(Breakdown, NamesTheRankWithSlowData) {
  const Json waiting = parts({{"data", 0.1}, {"forward", 3}, {"backward", 2.8}, {"waiting", 4.1}});
  Json first = waiting, second = parts({{"data", 4.2}, {"forward", 3}, {"backward", 2.8}});
  first["waits_for"] = waits(1, 4.1);
  const Json images = {{"data", {{"decoders", 1}}}};
  EXPECT_EQ(time_advice(summary_of(first, second, images)),
            "41 % of rank 0's time waits for rank 1, whose data loading takes 4.2 ms per step; try data.decoders=2");
}

TEST(Breakdown, NamesTheSlowRank) {
  Json first = parts({{"forward", 2}, {"backward", 2}, {"waiting", 4}}),
       second = parts({{"forward", 4}, {"backward", 4}});
  first["waits_for"] = waits(1, 4);
  EXPECT_THAT(time_advice(summary_of(first, second)),
              HasSubstr("whose forward, backward and update take 8 ms per step, 4 ms more than those of rank 0; look"));
  Json fewer = summary_of(first, second);
  fewer["ranks"][0]["cores"] = {0, 1};
  EXPECT_THAT(time_advice(fewer), HasSubstr("rank 1 has 1 of 2 cores"));
}

TEST(Breakdown, GivesNoAdviceWithoutACause) {
  // Rank 0 waits, and no part of rank 1 explains it.
  Json first = parts({{"forward", 3}, {"waiting", 4}}), second = parts({{"forward", 3}, {"waiting", 4}});
  first["waits_for"] = waits(1, 4);
  second["waits_for"] = waits(0, 4);
  EXPECT_THAT(time_advice(summary_of(first, second)), IsEmpty());
}

TEST(Breakdown, GivesNoAdviceForSmallGains) {
  const Json busy = parts({{"data", 0.5}, {"forward", 4}, {"backward", 5}, {"evaluation", 0.5}});
  const Json config = {{"data", {{"decoders", 1}}},
                       {"train", {{"evaluate_every", {{"every", 1}, {"unit", "epochs"}}}}}};
  EXPECT_THAT(time_advice(summary_of(busy, busy, config)), IsEmpty());
  EXPECT_THAT(breakdown_line(summary_of(busy, busy, config)), Not(HasSubstr(";")));
}

TEST(Breakdown, AdvisesFewerEvaluations) {
  Json summary = summary_of(parts({{"forward", 4}, {"evaluation", 5}}), parts({{"forward", 4}, {"evaluation", 5}}),
                            {{"train", {{"evaluate_every", {{"every", 1}, {"unit", "epochs"}}}}}});
  EXPECT_THAT(time_advice(summary), IsEmpty()) << "the only evaluation, at the end, must stay";
  summary["epochs"] = 4.0;
  EXPECT_EQ(time_advice(summary), "50 % of rank 0's time evaluates; try train.evaluate_every='2 epochs'");
}

TEST(Breakdown, AdvisesMoreMicroBatchesOnlyForPipelines) {
  Json first = parts({{"forward", 4}, {"waiting", 3}}), second = parts({{"forward", 4}, {"waiting", 3}});
  first["waits_for"] = waits(1, 3);
  const Json config = {{"strategy", {{"micro_batches", 4}, {"schedule", "1f1b"}}}};
  EXPECT_THAT(time_advice(summary_of(first, second, config)), HasSubstr("try strategy.micro_batches=8"));
}

TEST(Breakdown, WritesOneLine) {
  Json summary = summary_of(parts({{"backward", 6}, {"forward", 3.96}, {"update", 0.04}}), parts({}));
  EXPECT_EQ(breakdown_line(summary), "time of rank 0: backward 60 %, forward 40 %");
  summary["breakdown"]["advice"] = "try this";
  EXPECT_EQ(breakdown_line(summary), "time of rank 0: backward 60 %, forward 40 %; try this");
  EXPECT_THAT(breakdown_line(Json::object()), IsEmpty());
}

}  // namespace
}  // namespace convoy
