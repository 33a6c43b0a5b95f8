#include "strategies/common/step/overlap_choice.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <thread>

#include "core/files/files.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/torch/ranks.h"

namespace convoy::testing {
namespace {

struct Updates {
  std::vector<bool> overlapped;  // by update
  Json report;                   // for the summary
};

// Two ranks make `count` updates. On rank `slow`, updates with overlap == `slow_kind` take 20 ms longer.
std::vector<Updates> choices_of(std::optional<bool> configured, bool measures, int count, int slow, bool slow_kind,
                                const Context& job = {}) {
  std::vector<Updates> all(2);
  run_ranks({"local", 2}, [&](Communicator& world) {
    Context context = job;
    context.rank = world.rank();
    context.add_to_summary = [&](const Json& json) { all[static_cast<size_t>(world.rank())].report = json; };
    OverlapChoice choice(context, CommunicatorPtr(CommunicatorPtr(), &world), configured, measures, 0);
    for (int update = 0; update < count; ++update) {
      choice.begin_update();
      all[static_cast<size_t>(world.rank())].overlapped.push_back(choice.overlaps());
      if (world.rank() == slow && choice.overlaps() == slow_kind)
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      choice.end_update();
    }
  });
  return all;
}

TEST(OverlapChoice, TakesTheFasterOneOnAllRanks) {
  for (const bool slow_kind : {true, false}) {
    const std::vector<Updates> all = choices_of(std::nullopt, true, 20, 1, slow_kind);
    for (const Updates& rank : all) {
      EXPECT_EQ(rank.overlapped[18], !slow_kind);
      EXPECT_EQ(rank.overlapped[19], !slow_kind);
      const Json& overlap = rank.report.at("overlap");
      EXPECT_EQ(overlap.at("on"), !slow_kind);
      EXPECT_EQ(overlap.at("seconds_with") > overlap.at("seconds_without"), slow_kind);
    }
    EXPECT_EQ(all[0].overlapped, all[1].overlapped);
  }
}

TEST(OverlapChoice, MeasuresBothInTurn) {
  const std::vector<bool> measured = choices_of(std::nullopt, true, 18, -1, true)[0].overlapped;
  std::vector<bool> expected(2, true);
  for (const bool overlap : {true, false, true, false}) expected.insert(expected.end(), 4, overlap);
  EXPECT_EQ(measured, expected);
}

TEST(OverlapChoice, AConfiguredChoiceStays) {
  for (const bool configured : {true, false}) {
    const Updates one = choices_of(configured, true, 20, 0, configured)[0];
    EXPECT_EQ(one.overlapped, std::vector<bool>(20, configured));
    EXPECT_TRUE(one.report.is_null());
  }
}

TEST(OverlapChoice, AResumedRunReadsTheChoice) {
  TemporaryFolder folder;
  Context job;
  job.folder = folder.path();
  job.size = job.local_size = 2;
  job.host = "here";
  for (const bool slow_kind : {true, false}) {
    const Json measured = choices_of(std::nullopt, true, 20, 1, slow_kind, job)[0].report;
    for (const Updates& rank : choices_of(std::nullopt, true, 1, -1, true, job)) {
      EXPECT_EQ(rank.overlapped, std::vector<bool>{!slow_kind});
      EXPECT_EQ(rank.report, measured);
    }
    std::filesystem::remove(job.folder + "/overlap.json");
  }
}

TEST(OverlapChoice, MeasuresAgainIfTheKeptChoiceDoesNotFit) {
  TemporaryFolder folder;
  Context job;
  job.folder = folder.path();
  job.size = job.local_size = 2;
  job.host = "here";
  choices_of(std::nullopt, true, 20, 1, true, job);
  const auto takes_it = [&job] { return !choices_of(std::nullopt, true, 1, -1, true, job)[0].overlapped[0]; };
  ASSERT_TRUE(takes_it());
  for (const auto& change : std::vector<std::function<void(Context&)>>{
           [](Context& context) { context.host = "there"; }, [](Context& context) { context.size = 4; },
           [](Context& context) { context.local_size = 1; }, [](Context& context) { context.threads = 2; },
           [](Context& context) { context.process_ranks = 2; }, [](Context& context) { context.folder.clear(); },
           [](Context& context) { context.config.train.resume = "never"; }}) {
    const Context before = job;
    change(job);
    EXPECT_FALSE(takes_it());
    job = before;
  }
  const std::string file = job.folder + "/overlap.json", whole = read_file(file);
  Json no_seconds = Json::parse(whole), negative = no_seconds;
  no_seconds.erase("seconds_with");
  negative["seconds_without"] = -1;
  for (const std::string& damaged :
       {std::string(), std::string("[]"), whole.substr(0, whole.size() / 2), no_seconds.dump(), negative.dump()}) {
    write_whole(file, damaged, false);
    EXPECT_FALSE(takes_it()) << damaged;
  }
}

TEST(OverlapChoice, OverlapsWhereThereIsNothingToMeasure) {
  EXPECT_EQ(choices_of(std::nullopt, false, 14, 0, true)[1].overlapped, std::vector<bool>(14, true));
}

}  // namespace
}  // namespace convoy::testing
