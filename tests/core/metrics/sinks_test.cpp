// metrics.jsonl.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "core/base/error.h"
#include "core/metrics/sink.h"
#include "tests/support/temporary_folder.h"

namespace convoy {
namespace {

std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

Record record(int64_t step) {
  Record made;
  made.kind = "train";
  made.step = step;
  made.metrics = {{"loss", 0.5}, {"bad", NAN}, {"huge", INFINITY}, {"low", -INFINITY}};
  return made;
}

TEST(JsonlSink, AppendsWholeLinesAndNamesNonFiniteValues) {
  const TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  make_jsonl_sink(path, 9)->write(record(1));
  const auto sink = make_jsonl_sink(path, 9);
  sink->write(record(2));
  const auto lines = lines_of(path);  // there at once, without closing
  ASSERT_EQ(lines.size(), 2u);
  const Json json = Json::parse(lines[1]);
  EXPECT_EQ(json["step"], 2);
  EXPECT_EQ(json["metrics"]["loss"], 0.5);
  EXPECT_EQ(json["metrics"]["bad"], "nan");
  EXPECT_EQ(json["metrics"]["huge"], "inf");
  EXPECT_EQ(json["metrics"]["low"], "-inf");
  EXPECT_FALSE(json.contains("remaining_seconds"));
}

TEST(JsonlSink, EvaluationsHaveTheDirectionOfTheirMetrics) {
  Record evaluated = record(1);
  EXPECT_FALSE(to_json(evaluated).contains("lower_is_better"));
  evaluated.kind = "evaluate";
  EXPECT_EQ(to_json(evaluated)["lower_is_better"], Json::array());
  evaluated.lower_is_better = {"loss"};
  EXPECT_EQ(to_json(evaluated)["lower_is_better"], Json::array({"loss"}));
}

TEST(JsonlSink, ARecordFromItsJsonIsTheSame) {
  Record full = record(7);
  full.kind = "evaluate";
  full.epoch = 2;
  full.seconds = 1.5;
  full.samples_per_second = INFINITY;
  full.remaining_seconds = 3;
  full.learning_rate = 0.25;
  full.gradient_norm = NAN;
  full.members = {{"loss", {0.25, NAN}}};
  full.lower_is_better = {"loss"};
  for (const Record& each : {record(1), full}) EXPECT_EQ(to_json(record_of(to_json(each))), to_json(each));
}

TEST(JsonlSink, DropsAnInterruptedEvaluation) {
  const TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  Record evaluated = record(2);
  evaluated.kind = "evaluate";
  {
    const auto sink = make_jsonl_sink(path, 0);
    sink->write(record(2));
    sink->write(evaluated);
  }
  EXPECT_EQ(evaluations_in(path, 2), 1u);
  EXPECT_EQ(evaluations_in(path, 1), 0u);
  make_jsonl_sink(path, 2);
  EXPECT_EQ(evaluations_in(path, 2), 1u);
  make_jsonl_sink(path, 2, false);
  EXPECT_EQ(evaluations_in(path, 2), 0u);
  EXPECT_EQ(lines_of(path).size(), 1u);
}

TEST(JsonlSink, DropsAnIncompleteLine) {
  const TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  std::ofstream(path) << "{\"kind\": \"tra";
  make_jsonl_sink(path, 9)->write(record(3));
  const auto lines = lines_of(path);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(Json::parse(lines[0])["step"], 3);
}

TEST(JsonlSink, DropsRecordsOfRepeatedSteps) {
  const TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  {
    const auto sink = make_jsonl_sink(path, 0);
    for (int64_t step = 1; step <= 400; ++step) sink->write(record(step));
  }
  std::ofstream(path, std::ios::app) << "{\"kind\": \"tra";
  make_jsonl_sink(path, 300)->write(record(301));
  const auto lines = lines_of(path);
  ASSERT_EQ(lines.size(), 301u);
  for (size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(Json::parse(lines[i])["step"], i + 1);
  make_jsonl_sink(path, 0);
  EXPECT_EQ(lines_of(path).size(), 0u);
}

TEST(JsonlSink, NamesAnUnwritableFile) {
  const TemporaryFolder folder;
  try {
    make_jsonl_sink(folder / "absent/metrics.jsonl", 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Failure::io);
    EXPECT_NE(std::string(error.what()).find("absent/metrics.jsonl"), std::string::npos);
  }
}

}  // namespace
}  // namespace convoy
