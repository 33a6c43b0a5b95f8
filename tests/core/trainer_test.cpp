// The trainer with a strategy that only counts: order of calls, content of checkpoints, and resuming.
#include "tests/core/trainer_support.h"

namespace convoy {
namespace {

// Three steps an epoch.
TEST_F(TrainerTest, AnEpochWithoutWeightIsAnError) {
  const auto reason = [&](const std::set<int64_t>& weightless, int64_t max_steps = 0) -> std::string {
    start_anew();
    Counting strategy;
    strategy.weightless = weightless;
    try {
      run(strategy, [&](RunConfig& config) {
        config.loss.name = "mine";
        config.train.max_steps = max_steps;
      });
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Failure::config);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(reason({0, 1, 4, 5}), "") << "some batches";
  EXPECT_NE(reason({3, 4, 5}).find("the loss mine had the weight 0 in every batch of epoch 2"), std::string::npos);
  EXPECT_NE(reason({0, 1, 2}).find("epoch 1: nothing was trained; give data"), std::string::npos);
  EXPECT_NE(reason({0, 1}, 2).find("epoch 1"), std::string::npos) << "the run ends within the epoch";
}

TEST_F(TrainerTest, ANegativeWeightIsAnError) {
  Counting strategy;
  strategy.weight_factor = -1;
  try {
    run(strategy, [](RunConfig& config) { config.loss.name = "mine"; });
    ADD_FAILURE() << "it trained away from the targets";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Failure::config);
    EXPECT_NE(std::string(error.what()).find("the loss mine has batches with a weight below 0"), std::string::npos)
        << error.what();
  }
}

// The metrics of an epoch's three steps are one line. The weight of the second step is negative, and the sum of the
// three weights is not.
TEST_F(TrainerTest, ReportsABatchOfNegativeWeightAtTheNextLine) {
  Counting strategy;
  strategy.negative_step = 4;
  try {
    run(strategy, [](RunConfig& config) { config.train.log_every = 100; });
    ADD_FAILURE() << "it trained away from the targets";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Failure::config);
    EXPECT_NE(std::string(error.what()).find("weight below 0 in epoch 2, -4 together"), std::string::npos)
        << error.what();
  }
  EXPECT_EQ(strategy.steps.back(), 5);
}

TEST_F(TrainerTest, AcceptsIntervalsWithoutWeight) {
  Counting first;
  run(first, [](RunConfig& config) {
    config.train.max_steps = 2;
    config.train.checkpoint_every = {Interval::Unit::steps, 1};
  });
  Counting second;
  second.weightless = {2};
  EXPECT_NO_THROW(run(second)) << "the epoch began with weight";
  EXPECT_EQ(second.steps.front(), 2);
}

TEST_F(TrainerTest, VisitsEachRowOnceAndFlushesAtTheEnd) {
  Counting strategy;
  const TrainingResult result = run(strategy);
  EXPECT_EQ(strategy.steps, (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(strategy.flushes, (std::vector<int64_t>{2, 5}));
  EXPECT_EQ(strategy.total.item<double>(), 2 * 45.0);
  EXPECT_EQ(strategy.evaluated_rows, 2 * 3);
  EXPECT_EQ(result.summary["samples"], 2 * 10 * 5);
  EXPECT_EQ(result.summary["steps"], 6);
  EXPECT_EQ(result.summary["parameters"], 1);
  EXPECT_DOUBLE_EQ(result.summary["metrics"]["seen"]["last"].get<double>(), 1.0);
  EXPECT_FALSE(result.stopped);
}

TEST_F(TrainerTest, ReportsUpdates) {
  Counting strategy;
  strategy.accumulate = 2;
  std::vector<int64_t> message;
  std::vector<size_t> steps_before;
  after_update_ = [&](int64_t done) {
    message.push_back(done);
    steps_before.push_back(strategy.steps.size());
  };
  run(strategy);
  EXPECT_EQ(message, (std::vector<int64_t>{0, 2, 3, 4, 6}));
  EXPECT_EQ(steps_before, (std::vector<size_t>{0, 2, 3, 4, 6}));
}

TEST_F(TrainerTest, LogsTheLearningRateOfTheLastUpdate) {
  Counting strategy;
  strategy.accumulate = 2;
  run(strategy, [](RunConfig& config) { config.train.log_every = 1; });
  std::ifstream lines(folder_ / "metrics.jsonl");
  std::map<int64_t, double> rates;  // by steps done; none before the first update
  for (std::string line; std::getline(lines, line);) {
    const Json record = Json::parse(line);
    if (record["kind"] == "train" && record.contains("learning_rate")) rates[record["step"]] = record["learning_rate"];
  }
  const std::map<int64_t, double> expected{{2, 0.5 / 2}, {3, 0.5 / 3}, {4, 0.5 / 4}, {5, 0.5 / 4}, {6, 0.5 / 6}};
  EXPECT_EQ(rates, expected);
}

TEST_F(TrainerTest, ContinuesWhereTheLastRunEnded) {
  Counting first;
  run(first, [](RunConfig& config) { config.train.max_steps = 4; });
  Counting second;
  const TrainingResult result = run(second);
  EXPECT_EQ(second.restored, 1);
  EXPECT_EQ(second.steps.front(), 4);
  EXPECT_EQ(second.total.item<double>(), 2 * 45.0);
  EXPECT_EQ(result.summary["samples"], 2 * 10 * 5);
}

TEST_F(TrainerTest, ResumeNeverStartsFromScratch) {
  Counting first;
  run(first);
  Counting second;
  run(second, [](RunConfig& config) { config.train.resume = "never"; });
  EXPECT_EQ(second.steps.size(), 6u);
}

// After one epoch of ten rows and four more: with another batch size no row is left out.
TEST_F(TrainerTest, ANewBatchSizeContinuesAtTheSameRow) {
  Counting first;
  run(first, [](RunConfig& config) { config.train.max_steps = 4; });
  const fs::path before = folder_;
  const std::map<int64_t, int64_t> first_steps{{2, 7}, {5, 2}, {10, 1}};
  for (const auto& [rows, first_step] : first_steps) {
    folder_ = before / ("batch-" + std::to_string(rows));
    fs::create_directories(folder_ / "logs");
    Counting second;
    run(second, [&, rows = rows](RunConfig& config) {
      config.train.batch.rows = rows;
      config.train.resume = before;
      config.data.options = Options(Json{{"prefetch", 0}});
    });
    EXPECT_EQ(second.steps.front(), first_step) << rows;
    EXPECT_EQ(second.steps.back(), 20 / rows - 1) << rows;
    // Four rows are read a second time, because no batch begins after them.
    const double total = second.total.item<double>();
    EXPECT_TRUE(rows == 2 ? total == 90.0 : total > 90.0) << rows << ": " << total;
  }
  folder_ = before;
}

TEST_F(TrainerTest, EvaluatesAndSavesWithoutStepsLeft) {
  Counting first;
  run(first);
  const fs::path before = folder_;
  folder_ = before / "next";
  fs::create_directories(folder_ / "logs");
  Counting second;
  const TrainingResult result = run(second, [&](RunConfig& config) {
    config.train.resume = before;
    config.train.checkpoint_every = {Interval::Unit::never, 0};
  });
  EXPECT_TRUE(second.steps.empty());
  EXPECT_EQ(second.evaluated_rows, 3);
  EXPECT_EQ(result.summary["steps_here"], 0);
  EXPECT_TRUE(fs::exists(folder_ / "checkpoints" / "step-6" / "manifest.json"));
  folder_ = before;
}

TEST_F(TrainerTest, WritesEachStepOnceToTheMetrics) {
  Counting first;
  run(first, [](RunConfig& config) { config.train.log_every = 1; });
  fs::remove_all(folder_ / "checkpoints" / "step-6");
  Counting second;
  run(second, [](RunConfig& config) { config.train.log_every = 1; });
  std::vector<int64_t> steps;
  for (const std::string& line : records("train")) steps.push_back(Json::parse(line)["step"]);
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3, 4, 5, 6}));
}

TEST_F(TrainerTest, ANonFiniteLossSavesNothing) {
  Counting strategy;
  strategy.poisoned_step = 1;
  try {
    run(strategy, [](RunConfig& config) { config.train.checkpoint_every = {Interval::Unit::steps, 1}; });
    FAIL() << "should throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Failure::training);
    EXPECT_NE(std::string(error.what()).find("rank 0 is not finite at step 1"), std::string::npos) << error.what();
  }
  EXPECT_EQ(strategy.steps.size(), 2u);
  EXPECT_EQ(checkpoints(), 1u);  // that of step 0
}

TEST_F(TrainerTest, SavesAfterACompleteUpdate) {
  Counting strategy;
  strategy.accumulate = 2;
  std::vector<int64_t> saved;
  run(strategy, [](RunConfig& config) {
    config.train.checkpoint_every = {Interval::Unit::steps, 1};
    config.train.keep_last = 100;
  });
  EXPECT_FALSE(fs::exists(folder_ / "checkpoints" / "step-1"));
  EXPECT_TRUE(fs::exists(folder_ / "checkpoints" / "step-2"));
  EXPECT_TRUE(fs::exists(folder_ / "checkpoints" / "step-3"));  // end of the epoch
}

TEST_F(TrainerTest, StopsAndSavesAfterTheStep) {
  Counting strategy;
  strategy.on_step = [&](int64_t step) {
    if (step == 1) channel_->set(protocol::stop_request, "test");
  };
  const TrainingResult result = run(strategy, [](RunConfig& config) { config.train.epochs = 1000; });
  EXPECT_TRUE(result.stopped);
  EXPECT_LT(strategy.steps.size(), 3000u);
  EXPECT_EQ(result.summary["steps"], strategy.steps.size());
  EXPECT_TRUE(fs::exists(folder_ / "checkpoints" / ("step-" + std::to_string(strategy.steps.size()))));
}

// Evaluations of any length: the trained state is saved at once, and the resumed run makes the evaluation.
TEST_F(TrainerTest, StopsDuringAnEvaluationAndRepeatsIt) {
  Counting first;
  first.on_step = [&](int64_t step) {
    if (step != 2) return;  // the last one of the epoch
    channel_->set(protocol::stop_request, "test");
    channel_->get(protocol::stop_at, Timeout(10000));
  };
  const TrainingResult stopped = run(first);
  EXPECT_TRUE(stopped.stopped);
  EXPECT_EQ(first.steps.size(), 3u);
  EXPECT_EQ(first.evaluated_rows, 0);
  EXPECT_TRUE(fs::exists(folder_ / "checkpoints" / "step-3"));
  Counting second;
  const TrainingResult whole = run(second);
  EXPECT_FALSE(whole.stopped);
  EXPECT_EQ(second.steps.size(), 3u);
  EXPECT_EQ(second.evaluated_rows, 2 * 3);
  // A run that was killed after the repeated evaluation, and before its next save, repeats it once more.
  fs::remove_all(folder_ / "checkpoints" / "step-6");
  Counting third;
  run(third);
  std::vector<int64_t> evaluated;
  for (const std::string& line : evaluations()) evaluated.push_back(Json::parse(line)["step"]);
  EXPECT_EQ(evaluated, (std::vector<int64_t>{3, 6}));
}

TEST_F(TrainerTest, RepeatsAnInterruptedLastEvaluation) {
  const auto one_epoch = [](RunConfig& config) { config.train.epochs = 1; };
  Counting first;
  first.on_step = [&](int64_t step) {
    if (step != 2) return;
    channel_->set(protocol::stop_request, "test");
    channel_->get(protocol::stop_at, Timeout(10000));
  };
  EXPECT_TRUE(run(first, one_epoch).stopped);
  for (const int64_t evaluated : {3, 0}) {  // and no second time
    Counting again;
    EXPECT_FALSE(run(again, one_epoch).stopped);
    EXPECT_TRUE(again.steps.empty());
    EXPECT_EQ(again.evaluated_rows, evaluated);
  }
}

TEST_F(TrainerTest, ReportsAnAbortAsALostPeer) {
  Counting strategy;
  strategy.on_step = [&](int64_t step) {
    if (step == 1) channel_->abort({Failure::training, 3, 7, 0, "elsewhere", "broken"});
  };
  try {
    run(strategy, [](RunConfig& config) { config.train.epochs = 1000; });
    FAIL() << "should throw";
  } catch (const CommError& error) {
    EXPECT_EQ(error.kind(), Failure::peer_lost);
    EXPECT_EQ(error.rank(), 3);
  }
}

// Blocks' draws from LibTorch's generator continue with a checkpoint of the same layout.
TEST_F(TrainerTest, ResumesLibTorchsGenerator) {
  const auto trained = [&](int64_t epochs, const std::string& strategy_name, const std::string& resume) {
    Counting strategy;
    strategy.on_step = [&](int64_t) { strategy.total.add_(at::rand({1}, at::kDouble)); };
    run(strategy, [&](RunConfig& config) {
      config.train.epochs = epochs;
      config.train.resume = resume;
      config.strategy.name = strategy_name;
    });
    return strategy.total.item<double>();
  };
  const double whole = trained(2, "single", "never");
  start_anew();
  EXPECT_EQ(trained(2, "single", "never"), whole) << "two runs draw equal numbers";
  start_anew();
  EXPECT_NE(trained(1, "single", "never"), whole);
  EXPECT_EQ(trained(2, "single", "auto"), whole);
  start_anew();
  trained(1, "single", "never");
  EXPECT_NE(trained(2, "other", "auto"), whole) << "another layout draws anew";
}

TEST_F(TrainerTest, SavesOnlyUsedGenerators) {
  for (const bool draws : {false, true}) {
    start_anew();
    Counting strategy;
    if (draws) strategy.on_step = [](int64_t) { at::rand({1}); };
    run(strategy);
    const Json trainer = read_manifest((folder_ / "checkpoints" / "step-6").string()).trainer;
    EXPECT_TRUE(trainer.at("generators").contains("layout"));
    EXPECT_EQ(trainer.contains("ranks"), draws);
  }
}

// A block may begin to draw long after the first step, such as a drop path after a warm-up, or in an evaluation alone.
TEST_F(TrainerTest, WarnsOnceOfASharedGenerator) {
  const auto warnings = [&](Counting& strategy) {
    ::testing::internal::CaptureStderr();
    run(strategy);
    const std::string text = ::testing::internal::GetCapturedStderr();
    size_t count = 0;
    for (size_t at = 0; (at = text.find("which the threads of this process share", at)) != std::string::npos; ++at)
      ++count;
    start_anew();
    return count;
  };
  process_ranks_ = 2;
  Counting none, later, evaluating;
  later.on_step = [](int64_t step) {
    if (step >= 4) at::rand({2});
  };
  evaluating.on_evaluation = [] { at::rand({2}); };
  EXPECT_EQ(warnings(none), 0u);
  EXPECT_EQ(warnings(later), 1u);
  EXPECT_EQ(warnings(evaluating), 1u);
  process_ranks_ = 1;
  EXPECT_EQ(warnings(later), 0u);
}

// An epoch has 3 steps and one evaluation of one batch.
std::function<void(RunConfig&)> watching(int64_t epochs, WatchConfig best, WatchConfig stop) {
  return [=](RunConfig& config) {
    config.train.epochs = epochs;
    config.train.keep_last = 1;
    config.train.keep_best = best;
    config.train.early_stop = stop;
  };
}

TEST_F(TrainerTest, KeepsTheBestAndTheNewestCheckpoint) {
  Counting strategy;
  strategy.scores = {0.1, 0.7, 0.3, 0.7};
  const TrainingResult result = run(strategy, watching(4, {"score", "auto", 0}, {}));
  EXPECT_EQ(result.summary["best_checkpoint"]["step"], 6);
  EXPECT_EQ(result.summary["best_checkpoint"]["value"], 0.7);
  EXPECT_EQ(checkpoints(), 2u) << "the best, and the newest of keep_last = 1";
  EXPECT_TRUE(fs::exists(folder_ / "checkpoints" / "step-6"));
  EXPECT_TRUE(fs::exists(folder_ / "checkpoints" / "step-12"));
  std::string named;
  std::ifstream(folder_ / "checkpoints" / "best") >> named;
  EXPECT_EQ(named, "step-6");
}

// The resumed run compares its evaluation with the best value before the resume.
TEST_F(TrainerTest, ABestCheckpointStaysAcrossAResume) {
  Counting first, second;
  first.scores = {0.9, 0.2};
  run(first, watching(2, {"score", "auto", 0}, {}));
  second.scores = {0.5};
  const TrainingResult result = run(second, watching(3, {"score", "auto", 0}, {}));
  EXPECT_EQ(second.steps.front(), 6);
  EXPECT_EQ(result.summary["best_checkpoint"]["step"], 3);
  EXPECT_TRUE(fs::exists(folder_ / "checkpoints" / "step-3"));
}

TEST_F(TrainerTest, SavesTheBestWithoutAnInterval) {
  Counting strategy;
  strategy.scores = {0.5, 0.4};
  run(strategy, [&](RunConfig& config) {
    watching(2, {"score", "minimize", 0}, {})(config);
    config.train.checkpoint_every = {};
  });
  EXPECT_EQ(checkpoints(), 1u);
  EXPECT_TRUE(fs::exists(folder_ / "checkpoints" / "step-6"));
}

TEST_F(TrainerTest, StopsEarlyWhenNothingImproves) {
  Counting strategy;
  strategy.scores = {0.1, 0.2, 0.2, 0.15, 0.9};
  const TrainingResult result = run(strategy, watching(9, {}, {"score", "auto", 2}));
  EXPECT_EQ(result.summary["steps"], 12);
  EXPECT_EQ(result.summary["early_stop"]["step"], 6);
  EXPECT_FALSE(result.stopped);
  Counting again;
  again.scores = {1};
  const TrainingResult nothing = run(again, watching(9, {}, {"score", "auto", 2}));
  EXPECT_TRUE(again.steps.empty()) << "the run had ended";
  EXPECT_EQ(nothing.summary["steps"], 12);
  // With more patience the run continues from there.
  Counting more;
  more.scores = {0.3, 0.1};
  EXPECT_EQ(run(more, watching(9, {}, {"score", "auto", 4})).summary["steps"], 27);
}

TEST_F(TrainerTest, ListsTheMetricsForAnUnknownName) {
  Counting strategy;
  strategy.scores = {0.1};
  try {
    run(strategy, watching(1, {}, {"scor", "auto", 2}));
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Failure::config);
    EXPECT_NE(std::string(error.what()).find("train.early_stop.metric: is scor"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("score, seen; did you mean score?"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace convoy
