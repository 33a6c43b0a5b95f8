// calibration.json: computed from samples, written atomically, read strictly.
#include "launch/explain/calibration.h"

#include <gmock/gmock.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

namespace convoy {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Calibrations : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = (std::filesystem::temp_directory_path() / "convoy-calibration-XXXXXX").string();
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name = "calibration.json") const { return folder_ + "/" + name; }

  // The error of reading `json`.
  std::string refusal(const Json& json) const {
    std::ofstream(path()) << json.dump();
    try {
      read_calibration(path());
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Failure::config);
      return error.what();
    }
    return "";
  }

  std::string folder_;
};

Json resolved() {
  return {{"precision", "fp32"},
          {"model", {{"name", "mlp"}, {"hidden", {8}}}},
          {"data", {{"name", "table"}, {"path", "/here/a.csv"}}},
          {"optimizer", {{"name", "adam"}, {"lr", 0.1}}},
          {"train", {{"batch", {{"global", 64}}}}},
          {"strategy", {{"name", "ddp"}, {"recompute", "none"}}}};
}

// Two ranks. Alone a step takes 10 ms, 3 of them for the update; at once one takes 12 ms and the other 14.
Calibration measured() {
  MeasurementRequest request;
  request.alone.threads = 2;
  request.together = {{{0}, 1}, {{1}, 1}};
  Measurement first, second;
  first.alone = {{32, {10e-3, 10e-3, 10e-3}, {3e-3}}};
  first.together = {{32, {12e-3, 12e-3}, {2e-3}}, {8, {5e-3, 5e-3}, {}}};
  second.together = {{32, {14e-3, 14e-3}, {4e-3}}, {8, {5e-3, 5e-3}, {}}};
  first.exchanges = {{"gloo", Exchange::all_reduce, 256, {1e-3, 1e-3}, 0.2},
                     {"gloo", Exchange::all_reduce, 1000256, {3e-3, 3e-3}, 0.8}};
  first.blocks = {{"block0", 3}, {"block1", 1}};
  first.device = "cpu";
  Host host;
  host.name = "here";
  host.cores = {{0, 0, 0, {0}}, {1, 0, 0, {1}}};
  host.memory = 1 << 30;
  return calibration_of(request, {first, second}, host, resolved());
}

TEST(Timing, LeavesOutTheSlowestTenthAndHasASpread) {
  std::vector<double> samples(10, 1.0);
  samples[3] = 100;
  EXPECT_DOUBLE_EQ(timing_of(samples).seconds, 1);
  EXPECT_DOUBLE_EQ(timing_of(samples).spread, 0);
  EXPECT_NEAR(timing_of({1, 2, 3, 4, 5}).spread, 1.0 / 3, 1e-9);
  EXPECT_EQ(timing_of({}).seconds, 0);
}

TEST(Timing, UsesTheMedianOfDifferences) {
  EXPECT_DOUBLE_EQ(difference_of({-3, 1, 2, 4, 90}).seconds, 2);
  EXPECT_DOUBLE_EQ(difference_of({1, 2}).seconds, 1.5);
  EXPECT_EQ(difference_of({-2, -1, 5}).seconds, 0);
  EXPECT_EQ(difference_of({}).seconds, 0);
}

TEST_F(Calibrations, AStepTakesTheTimeOfItsSlowestRank) {
  const Calibration calibration = measured();
  ASSERT_EQ(calibration.steps.size(), 2u);
  EXPECT_EQ(calibration.steps[0].threads, 2);
  EXPECT_NEAR(calibration.steps[0].update.seconds, 3e-3, 1e-12);
  const StepTimings& together = calibration.steps[1];
  EXPECT_EQ(together.ranks, 2);
  ASSERT_EQ(together.passes.size(), 2u);
  EXPECT_EQ(together.passes[0].rows, 8);
  EXPECT_NEAR(together.passes[1].step.seconds, 14e-3, 1e-12);
  EXPECT_NEAR(together.passes[1].mean_wait, 1e-3, 1e-12);
  EXPECT_NEAR(together.update.seconds, 3e-3, 1e-12);
  EXPECT_NEAR(calibration.blocks[0].second, 0.75, 1e-12);
  ASSERT_EQ(calibration.exchanges.size(), 1u);
  EXPECT_NEAR(calibration.exchanges[0].bandwidth(), 5e8, 1);
  EXPECT_NEAR(calibration.exchanges[0].busy, 0.8, 1e-12);
}

// The measured update has the rows of three batches; a step's update has those of one.
TEST(Updates, OfFewRowsAreScaledToAllParameters) {
  MeasurementRequest request;
  request.alone_rows = {256, 64};
  request.alone_updated = {{0.01, 0.025}, {0.003, 0.008}};
  Measurement one;
  one.alone = {{256, {10e-3, 10e-3}, {5e-3, 5e-3}}, {64, {4e-3, 4e-3}, {}}};
  one.device = "cpu";
  const Calibration calibration = calibration_of(request, {one}, Host(), resolved());
  const StepTimings& steps = calibration.steps.front();
  EXPECT_NEAR(steps.update.seconds, 5e-3 / 0.025, 1e-12);  // for all rows
  ASSERT_EQ(steps.passes.size(), 2u);
  EXPECT_EQ(steps.passes[0].updated, 0.003);
  EXPECT_EQ(steps.passes[1].updated, 0.01);
}

TEST_F(Calibrations, RoundTrip) {
  Calibration calibration = measured();
  calibration.dense_embeddings = std::make_shared<Calibration>(measured());
  calibration.steps[0].passes[0].updated = 0.25;
  write_calibration(path(), calibration);
  EXPECT_EQ(to_json(read_calibration(path())), to_json(calibration));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);  // no temporary file
}

TEST_F(Calibrations, ReportAFolderThatCannotBeWritten) {
  try {
    write_calibration(folder_ + "/none/calibration.json", measured());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Failure::output);
    EXPECT_THAT(error.what(), HasSubstr("none/calibration.json"));
  }
}

TEST_F(Calibrations, CheckEveryField) {
  const Json good = to_json(measured());
  EXPECT_EQ(refusal(good), "");
  const auto changed = [&](const std::string& pointer, const Json& value) {
    Json bad = good;
    bad[Json::json_pointer(pointer)] = value;
    return refusal(bad);
  };
  EXPECT_THAT(changed("/format", "other"), HasSubstr("format must be \"convoy calibration\""));
  EXPECT_THAT(changed("/version", 2), HasSubstr("version is 2, but this convoy reads version 1"));
  EXPECT_THAT(changed("/steps", Json::array()), HasSubstr("steps must be a list of at least 1"));
  EXPECT_THAT(changed("/steps/1/passes/0/seconds", 0),
              HasSubstr("steps.1.passes.0.seconds is 0, must be a number above 0"));
  EXPECT_THAT(changed("/steps/1/passes/0/rows", 4096), HasSubstr("steps.1.passes must be in ascending order"));
  EXPECT_THAT(changed("/steps/0/threads", 1.5), HasSubstr("steps.0.threads is 1.5, must be a whole number"));
  EXPECT_THAT(changed("/exchanges/0/kind", "gossip"), HasSubstr("'gossip' is no kind of exchange"));
  EXPECT_THAT(changed("/exchanges/0/busy", 2), HasSubstr("exchanges.0.busy must be at most 1"));
  EXPECT_THAT(changed("/load", 1.5), HasSubstr("load must be at most 1"));
  EXPECT_THAT(changed("/host/memory", 2.5e22), HasSubstr("host.memory must be at most"));
  EXPECT_THAT(changed("/host/gpus", {1}), HasSubstr("host.gpus must be a list of texts"));
  EXPECT_THAT(changed("/device", "tpu"), HasSubstr("device must be cpu or cuda"));
  for (const auto& [key, value] : good.items()) {
    Json bad = good;
    bad.erase(key);
    if (key == "load") {
      EXPECT_EQ(refusal(bad), "") << "files of before have none";
      continue;
    }
    EXPECT_THAT(refusal(bad), AllOf(HasSubstr(path()), HasSubstr(key + " is missing"), HasSubstr("--calibrate")));
  }
}

TEST_F(Calibrations, ReportAMissingOrInvalidFile) {
  EXPECT_THROW(read_calibration(path("none")), Error);
  std::ofstream(path()) << "{\"format\": ";
  try {
    read_calibration(path());
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("is no JSON"), HasSubstr("--calibrate")));
  }
}

TEST_F(Calibrations, RefuseOtherConfigurations) {
  const Calibration calibration = measured();
  Json other = resolved();
  other["data"]["path"] = "/elsewhere/a.csv";
  other["optimizer"]["lr"] = 1e-3;
  other["train"]["batch"]["global"] = 128;
  other["strategy"]["name"] = "fsdp";
  EXPECT_NO_THROW(check_calibration(calibration, other, "x.json"));
  other["model"]["hidden"] = {16};
  try {
    check_calibration(calibration, other, "x.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Failure::config);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("x.json"), HasSubstr("model.hidden")));
  }
}

TEST(Measurements, RoundTrip) {
  MeasurementRequest request;
  request.config = {{"name", "x"}};
  request.alone = {{0, 1}, 2, 0, "GPU-1"};
  request.together = {{{0}, 1}, {{1}, 1}};
  request.alone_rows = {2, 8};
  request.together_rows = {1, 4};
  request.exchanges = {{"local", true, {Exchange::all_reduce, Exchange::send}}};
  request.bytes = {256, 4096};
  request.seconds = 4;
  request.address = "127.0.0.1";
  EXPECT_EQ(Json(Json(request).get<MeasurementRequest>()), Json(request));
  Measurement measurement;
  measurement.alone = {{8, {1, 2}, {0.5}}};
  measurement.exchanges = {{"local", Exchange::gather, 256, {1e-3}, 0.5}};
  measurement.blocks = {{"a", 1}};
  measurement.device = "cpu";
  EXPECT_EQ(Json(Json(measurement).get<Measurement>()), Json(measurement));
}

TEST(Links, HaveALatencyAndABandwidth) {
  EXPECT_DOUBLE_EQ(parse_link("20us,12GB/s").latency, 20e-6);
  EXPECT_DOUBLE_EQ(parse_link("20us,12GB/s").bandwidth, 12e9);
  EXPECT_DOUBLE_EQ(parse_link("1 ms, 125 MB/s").bandwidth, 125e6);
  for (const char* bad :
       {"", "20us", "20us,", "20us,12GB", "12GB/s,20us", "20us,0GB/s", "-1us,1GB/s", "20us,12Gb/s", "a,b"})
    try {
      parse_link(bad);
      ADD_FAILURE() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Failure::command_line);
      EXPECT_THAT(error.what(), HasSubstr("--link 20us,12GB/s"));
    }
}

}  // namespace
}  // namespace convoy
