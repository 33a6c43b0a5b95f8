// Run: counts, saves, resumes and stops like a training of `convoy run`.
#include <convoy/run.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>
#include <torch/optim/schedulers/step_lr.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <set>

#include "tests/api/run_support.h"

namespace convoy {
namespace {

using testing::expect_error;
using testing::json_in;
using testing::killed_after;
using testing::lines_in;
using testing::saving_every;
using testing::share_options;
using testing::TestFolder;
using testing::TestRows;
using testing::TestTraining;
using testing::train_rows;

// Requests a stop. Returns when the channel's thread has called all earlier watchers: callbacks run in order, and the
// one below is the last.
void request_stop(Job& job) {
  Channel& channel = *context_of(job).channel;
  channel.set(protocol::stop_request, "{}");
  const auto seen = std::make_shared<std::promise<void>>();
  channel.watch(protocol::stop_request, [seen](const std::string&, const std::string&) { seen->set_value(); });
  EXPECT_EQ(seen->get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
}

std::function<void(Job&, convoy::Run&, const ShareBatch&)> stopped_in(int64_t step) {
  return [step](Job& job, convoy::Run&, const ShareBatch& batch) {
    if (batch.step == step && job.rank() == 0) request_stop(job);
  };
}

TEST(Run, TrainsTheSameOnAnyNumberOfRanks) {
  const TestFolder folder;
  const at::Tensor one = train_rows(1, {folder / "1", share_options(3, 6)});
  EXPECT_TRUE(one.isfinite().all().item<bool>());
  for (int ranks : {2, 3}) {
    const at::Tensor more = train_rows(ranks, {folder / std::to_string(ranks), share_options(3, 6)});
    EXPECT_LT((one - more).abs().max().item<double>(), 1e-12) << ranks;
  }
}

TEST(Run, EachBatchMakesTheStepsOfShare) {
  const TestFolder folder;
  for (int ranks : {1, 2}) {
    std::vector<at::Tensor> results;
    for (const bool each_batch : {false, true}) {
      TestTraining training{folder / str(ranks, each_batch), saving_every(share_options(3, 6), Every::steps(2))};
      training.each_batch = each_batch;
      if (ranks == 1) {
        training.in_step = killed_after(5);
        EXPECT_THROW(train_rows(1, training), std::runtime_error);
        training.in_step = nullptr;
      }
      results.push_back(train_rows(ranks, training));
      std::vector<int64_t> steps;  // the first step of each process, and the last of each epoch
      for (const Json& line : lines_in(training.folder + "/metrics.jsonl")) steps.push_back(line.at("step"));
      EXPECT_EQ(steps, (ranks == 1 ? std::vector<int64_t>{1, 4, 5, 8, 12} : std::vector<int64_t>{1, 4, 8, 12}));
    }
    EXPECT_TRUE(results[0].equal(results[1])) << ranks;
  }
}

// A program may draw its data after Job::resume: each start draws the same. One rank: threads share the generator.
TEST(Run, LeavesRandomNumbersBeforeShareAlone) {
  const TestFolder folder;
  std::vector<double> drawn;
  TestTraining training{folder / "run", saving_every(share_options(2, 6), Every::steps(3))};
  training.before = [&](Job&, convoy::Run&) { drawn.push_back(at::rand({1}, at::kDouble).item<double>()); };
  training.in_step = killed_after(4);
  at::manual_seed(5);
  EXPECT_THROW(train_rows(1, training), std::runtime_error);
  training.in_step = nullptr;
  at::manual_seed(5);
  train_rows(1, training);
  ASSERT_EQ(drawn.size(), 2U);
  EXPECT_EQ(drawn[0], drawn[1]);
}

TEST(Run, ResumesInTheMiddleOfAnEpochBitForBit) {
  for (int ranks : {1, 2}) {
    const TestFolder folder;
    const ShareOptions options = saving_every(share_options(3, 6), Every::steps(5));
    const at::Tensor whole = train_rows(ranks, {folder / "whole", options});
    TestTraining training{folder / "run", options};
    training.in_step = killed_after(7);
    EXPECT_THROW(train_rows(ranks, training), std::runtime_error);
    EXPECT_EQ(json_in(folder / "run/summary.json")["status"], "failed");
    std::mutex mutex;
    std::set<int64_t> steps;
    training.before = [](Job&, convoy::Run& run) {
      EXPECT_TRUE(run.resumed());
      EXPECT_EQ(run.step(), 5);
    };
    training.in_step = [&](Job&, convoy::Run& run, const ShareBatch& batch) {
      const std::lock_guard<std::mutex> lock(mutex);
      EXPECT_EQ(run.step(), batch.step + 1);
      steps.insert(batch.step);
    };
    EXPECT_TRUE(train_rows(ranks, training).equal(whole)) << ranks;
    EXPECT_EQ(*steps.begin(), 5);
    EXPECT_EQ(steps.size(), 7u);
    const Json summary = json_in(folder / "run/summary.json");
    EXPECT_EQ(summary["status"], "done");
    EXPECT_EQ(summary["attempt"], 1);
    EXPECT_EQ(summary["steps"], 12);
    EXPECT_EQ(summary["steps_here"], 7);
    EXPECT_EQ(summary["samples"], 3 * 23);
  }
}

TEST(Run, ResumesOnADifferentNumberOfRanks) {
  const TestFolder folder;
  const ShareOptions options = saving_every(share_options(2, 6), Every::steps(3));
  const at::Tensor whole = train_rows(1, {folder / "whole", options});
  TestTraining training{folder / "run", options};
  training.in_step = killed_after(4);
  EXPECT_THROW(train_rows(3, training), std::runtime_error);
  training.in_step = nullptr;
  EXPECT_LT((train_rows(2, training) - whole).abs().max().item<double>(), 1e-12);
}

TEST(Run, StopsOnRequestWithACheckpoint) {
  for (int ranks : {1, 3}) {
    const TestFolder folder;
    const ShareOptions options = saving_every(share_options(3, 6), Every::never());
    const at::Tensor whole = train_rows(ranks, {folder / "whole", options});
    EXPECT_FALSE(std::filesystem::exists(folder / "whole/checkpoints")) << "checkpoint_every is never";
    TestTraining training{folder / "run", options};
    training.in_step = stopped_in(4);
    std::atomic<int64_t> stopped_at{0};
    training.after = [&](Job&, convoy::Run& run) {
      EXPECT_TRUE(run.stopped());
      stopped_at = run.step();
    };
    train_rows(ranks, training);
    EXPECT_GE(stopped_at, 5);
    EXPECT_LT(stopped_at, 12);
    const Json summary = json_in(folder / "run/summary.json");
    EXPECT_EQ(summary["status"], "stopped");
    EXPECT_EQ(summary["exit_code"], 143);
    EXPECT_TRUE(std::filesystem::exists(folder / str("run/checkpoints/step-", stopped_at, "/manifest.json")));
    training.in_step = nullptr;
    training.after = [](Job&, convoy::Run& run) { EXPECT_FALSE(run.stopped()); };
    EXPECT_TRUE(train_rows(ranks, training).equal(whole));
  }
}

TEST(Run, WritesTheRecordsAndTheSummaryOfConvoyRun) {
  const TestFolder folder;
  TestTraining training{folder / "run", share_options(2, 6)};
  training.options.log_every = 3;
  training.in_step = [](Job& job, convoy::Run& run, const ShareBatch& batch) {
    run.log("rows", static_cast<double>(batch.rows), 1);
    if (job.rank() == 1 && batch.step == 5) run.log("rare", 6.0, 2);
    if (batch.ends_epoch) run.evaluated("error", job.rank() + 10.0 / static_cast<double>(batch.epoch), 1, Best::lowest);
  };
  train_rows(2, training);
  std::vector<int64_t> logged;
  for (const Json& line : lines_in(folder / "run/metrics.jsonl")) {
    if (line["kind"] == "evaluate") {
      EXPECT_EQ(line["metrics"]["error"], line["epoch"] == 1 ? 10.5 : 5.5);
      continue;
    }
    logged.push_back(line["step"]);
    EXPECT_EQ(line["kind"], "train");
    EXPECT_EQ(line["epoch"], (line["step"].get<int64_t>() - 1) / 4 + 1);
    EXPECT_GT(line["seconds"], 0);
    EXPECT_GT(line["samples_per_second"], 0);
    EXPECT_GT(line["metrics"]["loss"], 0);
    EXPECT_NEAR(line["metrics"]["rows"], 3, 0.6);
    EXPECT_EQ(line["metrics"].contains("rare"), line["step"] == 6);
    EXPECT_EQ(line["metrics"].value("rare", 3.0), 3.0);
  }
  EXPECT_EQ(logged, (std::vector<int64_t>{1, 3, 4, 6, 8}));
  const Json summary = json_in(folder / "run/summary.json");
  EXPECT_EQ(summary["status"], "done");
  EXPECT_EQ(summary["exit_code"], 0);
  EXPECT_EQ(summary["world_size"], 2);
  EXPECT_EQ(summary["parameters"], 4);
  EXPECT_EQ(summary["epochs"], 2.0);
  EXPECT_EQ(summary["steps"], 8);
  EXPECT_EQ(summary["samples"], 46);
  EXPECT_EQ(summary["metrics"]["error"]["best"], 5.5);
  EXPECT_EQ(summary["metrics"]["error"]["best_step"], 8);
  EXPECT_EQ(summary["ranks"].size(), 2u);
  EXPECT_EQ(summary["cpu_efficiency"].size(), 2u);
  for (const char* key : {"train_seconds", "samples_per_second", "evaluate_seconds", "data_seconds", "wait_seconds",
                          "bytes_sent_per_step"})
    EXPECT_TRUE(summary[key].is_number()) << key;
  ASSERT_EQ(summary["breakdown"]["ranks"].size(), 2u);
  for (const Json& rank : summary["breakdown"]["ranks"])
    for (const char* part : {"data", "forward", "backward", "update", "checkpoint"})
      EXPECT_GT(rank[part], 0) << part << " of " << rank;
  EXPECT_FALSE(std::filesystem::is_empty(folder / "run/tensorboard"));
  EXPECT_TRUE(std::filesystem::exists(folder / "run/config.yaml"));
  EXPECT_TRUE(std::filesystem::exists(folder / "run/checkpoints/step-8/manifest.json"));
}

TEST(Run, DropsMetricsOfRepeatedSteps) {
  const TestFolder folder;
  TestTraining training{folder / "run", saving_every(share_options(2, 6), Every::steps(3))};
  training.options.log_every = 1;
  training.in_step = killed_after(6);
  EXPECT_THROW(train_rows(1, training), std::runtime_error);
  training.in_step = nullptr;
  train_rows(1, training);
  std::vector<int64_t> steps;
  for (const Json& line : lines_in(folder / "run/metrics.jsonl")) steps.push_back(line["step"]);
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8}));
}

TEST(Run, UserSettingsOverrideTheProgram) {
  const TestFolder folder;
  TestTraining training{folder / "run", saving_every(share_options(1, 6), Every::never())};
  training.options.log_every = 100;
  training.options.keep_last = 1;
  training.settings = {"train.checkpoint_every=2 steps", "train.log_every=1"};
  train_rows(1, training);
  EXPECT_EQ(lines_in(folder / "run/metrics.jsonl").size(), 4u);
  EXPECT_FALSE(std::filesystem::exists(folder / "run/checkpoints/step-2")) << "keep_last";
  EXPECT_TRUE(std::filesystem::exists(folder / "run/checkpoints/step-4"));
}

TEST(Run, ResumesLibTorchsGenerator) {
  const TestFolder folder;
  std::vector<double> draws;
  TestTraining training{folder / "whole", saving_every(share_options(2, 6), Every::steps(3))};
  const auto draw = [&](Job&, convoy::Run&, const ShareBatch&) { draws.push_back(at::rand({}).item<double>()); };
  training.in_step = draw;
  train_rows(1, training);
  const std::vector<double> whole = std::exchange(draws, {});
  training.folder = folder / "run";
  training.in_step = [&](Job& job, convoy::Run& run, const ShareBatch& batch) {
    draw(job, run, batch);
    killed_after(5)(job, run, batch);
  };
  EXPECT_THROW(train_rows(1, training), std::runtime_error);
  draws.resize(3);
  training.in_step = draw;
  train_rows(1, training);
  EXPECT_EQ(draws, whole);
}

struct Window {
  std::string save() const { return last; }
  void load(const std::string& text) { last = text; }
  std::string last;
};

TEST(Run, SavesObjectsInCheckpoints) {
  const TestFolder folder;
  const auto train = [&](int ranks, bool resumes, int64_t kill) {
    test_jobs(ranks, [&](Job& job) {
      torch::nn::Linear net(3, 1);
      net->to(at::kDouble);
      torch::optim::SGD sgd(net->parameters(), 0.1);
      torch::optim::StepLR scheduler(sgd, 2, 0.5);
      Replicas replicas(job, *net, sgd);
      convoy::Run run = job.resume(folder / "run", replicas);
      int64_t seen = 0;
      double best = 0;
      Window window;
      run.keep("seen", seen);
      run.keep("best", best);
      run.keep("window", window);
      run.keep("scheduler", scheduler);
      expect_error([&] { run.keep("seen", best); }, Failure::config, "is kept already");
      if (resumes) {
        EXPECT_EQ(seen, 4 + 1000 * (ranks == 2 ? job.rank() : 0));
        EXPECT_EQ(best, 1.0 / 3);
        EXPECT_EQ(window.last, "\x01\xff, 3");
        EXPECT_EQ(replicas.learning_rate(), 0.05) << "halved by the third of four steps of the scheduler";
      }
      for (ShareBatch& batch : run.share(TestRows(), saving_every(share_options(2, 6), Every::steps(4)))) {
        replicas.step((net(batch.data) - batch.target).square().sum(), batch.rows);
        scheduler.step();
        seen = batch.step + 1 + 1000 * job.rank();
        best = 1.0 / 3;
        window.last = str("\x01\xff, ", batch.step);
        if (batch.step + 1 == kill) throw std::runtime_error("killed");
      }
    });
  };
  EXPECT_THROW(train(2, false, 6), std::runtime_error);
  EXPECT_THROW(train(2, true, 6), std::runtime_error);
  EXPECT_THROW(train(1, true, 6), std::runtime_error);
}

TEST(Run, FallsBackToAnOlderCheckpointAfterDamage) {
  const TestFolder folder;
  TestTraining training{folder / "run", saving_every(share_options(2, 6), Every::steps(2))};
  const at::Tensor whole = train_rows(1, {folder / "whole", training.options});
  training.in_step = killed_after(5);
  EXPECT_THROW(train_rows(1, training), std::runtime_error);
  std::ofstream(folder / "run/checkpoints/step-4/rank-0.safetensors") << "damaged";
  int64_t first = -1;
  training.in_step = [&](Job&, convoy::Run&, const ShareBatch& batch) {
    if (first < 0) first = batch.step;
  };
  EXPECT_TRUE(train_rows(1, training).equal(whole));
  EXPECT_EQ(first, 2);
}

TEST(Run, LocksItsFolder) {
  const TestFolder folder;
  TestTraining training{folder / "run", share_options(1, 6)};
  training.in_step = [&](Job&, convoy::Run&, const ShareBatch& batch) {
    if (batch.step == 0)
      expect_error([&] { train_rows(1, {folder / "run", share_options(1, 6)}); }, Failure::output, "another run uses");
  };
  train_rows(1, training);
  std::filesystem::create_directory(folder / "target");
  std::filesystem::create_directory(folder / "linked");
  std::filesystem::create_symlink(folder / "target", folder / "linked/checkpoints");
  expect_error([&] { train_rows(1, {folder / "linked", share_options(1, 6)}); }, Failure::refused, "checkpoints");
}

TEST(Run, LeavesACompletedFolderUnchanged) {
  const TestFolder folder;
  const at::Tensor whole = train_rows(2, {folder / "run", share_options(2, 6)});
  const std::string summary = read_file(folder / "run/summary.json");
  TestTraining again{folder / "run", share_options(2, 6)};
  again.in_step = [](Job&, convoy::Run&, const ShareBatch& batch) { FAIL() << batch.step; };
  EXPECT_TRUE(train_rows(2, again).equal(whole));
  EXPECT_EQ(read_file(folder / "run/summary.json"), summary);
  expect_error([&] { train_rows(2, {folder / "run", share_options(3, 6)}); }, Failure::output, "is done, of 8 steps");
}

TEST(Run, BreakEndsTrainingAfterTheStep) {
  const TestFolder folder;
  int64_t after = 0;
  test_jobs(1, [&](Job& job) {
    torch::nn::Linear net(3, 1);
    net->to(at::kDouble);
    torch::optim::SGD sgd(net->parameters(), 0.01);
    Replicas replicas(job, *net, sgd);
    convoy::Run run = job.resume(folder / "run", replicas);
    ShareOptions options = share_options(2, 6);
    options.keep_last = 0;
    for (ShareBatch& batch : run.share(TestRows(), options)) {
      replicas.step((net(batch.data) - batch.target).square().sum(), batch.rows);
      if (batch.step == 2) break;
    }
    EXPECT_EQ(run.step(), 3);
    for (ShareBatch& batch : run.share(TestRows(), options)) {
      EXPECT_EQ(batch.step, 3 + after++);
      replicas.step((net(batch.data) - batch.target).square().sum(), batch.rows);
    }
    expect_error([&] { run.share(TestRows(), share_options(2, 5)); }, Failure::config, "batch_size: 6 -> 5");
  });
  EXPECT_EQ(after, 5);
  EXPECT_TRUE(std::filesystem::exists(folder / "run/checkpoints/step-3")) << "saved by the end of the first loop";
  EXPECT_EQ(json_in(folder / "run/summary.json")["samples"], 46);
}

TEST(Run, SupportsALoopOverEpochs) {
  const TestFolder folder;
  const at::Tensor whole = train_rows(2, {folder / "whole", share_options(3, 6)});
  at::Tensor result;
  const auto train = [&](const std::string& name, int64_t killed, int64_t stopped) {
    test_jobs(2, [&](Job& job) {
      torch::nn::Linear net(3, 1);
      net->to(at::kDouble);
      at::NoGradGuard no_grad;
      net->weight.fill_(0.5);
      net->bias.fill_(-0.25);
      at::AutoGradMode grad(true);
      torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
      Replicas replicas(job, *net, sgd);
      convoy::Run run = job.resume(folder / name, replicas);
      for (int64_t epoch = 1; epoch <= 3; ++epoch) {
        for (ShareBatch& batch : run.share(TestRows(), {epoch, 6})) {
          EXPECT_EQ(batch.epoch, epoch);
          replicas.step((net(batch.data) - batch.target).square().sum(), batch.rows);
          if (batch.step == killed) throw std::runtime_error("killed");
          if (batch.step == stopped && job.rank() == 0) request_stop(job);
        }
      }
      if (job.rank() == 0) result = at::cat({net->weight.detach().flatten(), net->bias.detach()}).clone();
    });
  };
  EXPECT_THROW(train("killed", 9, -1), std::runtime_error);
  train("killed", -1, -1);
  EXPECT_FALSE(lines_in(folder / "killed/metrics.jsonl").back().contains("remaining_seconds"))
      << "of what it called for";
  EXPECT_TRUE(result.equal(whole));
  EXPECT_EQ(json_in(folder / "killed/summary.json")["samples"], 69);
  EXPECT_GT(lines_in(folder / "killed/metrics.jsonl").front()["metrics"]["loss"], 0) << "logged by step()";
  train("stopped", -1, 5);
  EXPECT_EQ(json_in(folder / "stopped/summary.json")["status"], "stopped");
  train("stopped", -1, -1);
  EXPECT_TRUE(result.equal(whole));
}

TEST(Run, RecordsTheLossOfAccumulatedSteps) {
  const TestFolder folder;
  std::vector<double> expected;
  test_jobs(2, [&](Job& job) {
    torch::nn::Linear net(3, 1);
    net->to(at::kDouble);
    torch::optim::SGD sgd(net->parameters(), 0.01);
    Replicas replicas(job, *net, sgd);
    convoy::Run run = job.resume(folder / "run", replicas);
    ShareOptions options = share_options(1, 8);
    options.log_every = 1;
    for (ShareBatch& batch : run.share(TestRows(), options)) {
      const auto part = [&](int64_t begin, int64_t end) {
        return (net(batch.data.slice(0, begin, end)) - batch.target.slice(0, begin, end)).square().sum();
      };
      at::Tensor first = part(0, 1), rest = part(1, batch.rows);
      const double mean = job.sum(first.item<double>() + rest.item<double>(), double(batch.rows)).mean();
      if (job.rank() == 0) expected.push_back(mean);
      replicas.accumulate(first, 1);
      first.detach().zero_();  // the program may reuse it
      replicas.step(rest, batch.rows - 1);
    }
  });
  const std::vector<Json> lines = lines_in(folder / "run/metrics.jsonl");
  ASSERT_EQ(lines.size(), 3u);
  for (size_t i = 0; i < lines.size(); ++i) EXPECT_NEAR(lines[i]["metrics"].value("loss", 0.0), expected[i], 1e-12);
}

}  // namespace
}  // namespace convoy
