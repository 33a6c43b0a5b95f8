// Run: mistakes of a program get an error or a warning that names them.
#include <convoy/run.h>

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>
#include <torch/optim/schedulers/step_lr.h>

#include "tests/api/run_support.h"

namespace convoy {
namespace {

using testing::expect_error;
using testing::killed_after;
using testing::saving_every;
using testing::share_options;
using testing::TestFolder;
using testing::TestRows;
using testing::TestTraining;
using testing::train_rows;

std::string log_of(const std::function<void()>& action) {
  ::testing::internal::CaptureStderr();
  action();
  return ::testing::internal::GetCapturedStderr();
}

TEST(RunMistakes, RefusesTheFolderOfADifferentRun) {
  const TestFolder folder;
  TestTraining training{folder / "run", saving_every(share_options(2, 6), Every::steps(2))};
  training.in_step = killed_after(3);
  EXPECT_THROW(train_rows(2, training), std::runtime_error);
  TestTraining other{folder / "run", saving_every(share_options(2, 4), Every::steps(2))};
  other.options.seed = 9;
  expect_error([&] { train_rows(2, other); }, Failure::output, "batch_size: 6 -> 4, seed: 1 -> 9");
  other = {folder / "run", training.options, {"seed=3"}};
  expect_error([&] { train_rows(2, other); }, Failure::output, "seed: 1 -> 3");
  // In a separate folder, this run may start from a checkpoint of the first one.
  TestTraining began{folder / "new", share_options(3, 4)};
  int64_t first = -1;
  began.before = [&](Job&, convoy::Run& run) { run.resume(folder / "run"); };
  began.in_step = [&](Job& job, convoy::Run&, const ShareBatch& batch) {
    if (job.rank() == 0 && first < 0) first = batch.step;
  };
  train_rows(2, began);
  EXPECT_EQ(first, 3) << "the same row of the epoch: 12 rows in batches of 4";
}

// Code between the calls of share runs again when a run resumes, and would step the scheduler twice.
TEST(RunMistakes, RefusesAKeptObjectThatChangesAfterTheLoop) {
  for (const bool in_body : {true, false}) {
    const TestFolder folder;
    const auto train = [&](const std::string& name, int64_t killed) {
      double rate = 0;
      test_jobs(1, [&](Job& job) {
        torch::nn::Linear net(3, 1);
        net->to(at::kDouble);
        torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.01));
        torch::optim::StepLR scheduler(sgd, 1, 0.5);
        Replicas replicas(job, *net, sgd);
        convoy::Run run = job.resume(folder / name, replicas);
        run.keep("scheduler", scheduler);
        for (int64_t epoch = 1; epoch <= 3; ++epoch) {
          ShareOptions options = share_options(epoch, 6);
          options.checkpoint_every = Every::steps(5);
          for (ShareBatch& batch : run.share(TestRows(), options)) {
            replicas.step((net(batch.data) - batch.target).square().sum(), batch.rows);
            if (in_body && batch.ends_epoch) scheduler.step();
            if (batch.step == killed) throw std::runtime_error("killed");
          }
          if (!in_body) scheduler.step();
        }
        run.finish();
        rate = static_cast<torch::optim::SGDOptions&>(sgd.param_groups()[0].options()).lr();
      });
      return rate;
    };
    const double whole = train("whole", -1);
    EXPECT_THROW(train("killed", 10), std::runtime_error);
    if (in_body)
      EXPECT_DOUBLE_EQ(train("killed", -1), whole);
    else
      expect_error([&] { train("killed", -1); }, Failure::config, "'scheduler' has changed since");
  }
}

TEST(RunMistakes, NamesAParameterThatOneRankChanged) {
  const TestFolder folder;
  TestTraining training{folder / "run", share_options(2, 6)};
  training.options.checkpoint_every = Every::steps(3);
  const auto train = [&](int changed) {
    test_jobs(2, [&](Job& job) {
      torch::nn::Linear net(3, 1);
      net->to(at::kDouble);
      torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.01));
      Replicas replicas(job, *net, sgd);
      convoy::Run run = job.resume(training.folder, replicas);
      for (ShareBatch& batch : run.share(TestRows(), training.options)) {
        replicas.step((net(batch.data) - batch.target).square().sum(), batch.rows);
        at::NoGradGuard no_grad;
        if (job.rank() == changed && batch.step == 1) net->bias.add_(0.1);
      }
    });
  };
  expect_error([&] { train(1); }, Failure::disagreement, "parameter 1 is bias with values of hash");
  training.folder = folder / "equal";
  train(-1);
}

TEST(RunMistakes, NamesARankThatEndsBetweenTwoCallsOfShare) {
  const TestFolder folder;
  const auto train = [&] {
    test_jobs(2, [&](Job& job) {
      torch::nn::Linear net(3, 1);
      net->to(at::kDouble);
      torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.01));
      Replicas replicas(job, *net, sgd);
      convoy::Run run = job.resume(folder / "run", replicas);
      for (int64_t epoch = 1; epoch <= 3; ++epoch) {
        for (ShareBatch& batch : run.share(TestRows(), share_options(epoch, 6)))
          replicas.step((net(batch.data) - batch.target).square().sum(), batch.rows);
        if (job.rank() == 1 && epoch == 2) return;
      }
    });
  };
  expect_error(train, Failure::disagreement, "barrier 'share'");
}

// The ranks of other axes may hold equal tensors or pieces.
TEST(RunMistakes, SavesNothingOfAMeshWithOtherAxes) {
  for (const bool saves : {true, false}) {
    const TestFolder folder;
    TestTraining training{folder / "run", share_options(1, 6)};
    training.options.checkpoint_every = saves ? Every::steps(2) : Every::never();
    const auto train = [&] {
      test_jobs(4, [&](Job& job) {
        job.mesh({{"data", 2}, {"tensor", 2}});
        torch::nn::Linear net(3, 1);
        net->to(at::kDouble);
        torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.01));
        Replicas replicas(job, *net, sgd);
        convoy::Run run = job.resume(training.folder, replicas);
        for (ShareBatch& batch : run.share(TestRows(), training.options)) {
          replicas.step((net(batch.data) - batch.target).square().sum(), batch.rows);
          if (!saves) expect_error([&] { run.save(); }, Failure::config, "Job::mesh has the axis tensor of 2 ranks");
        }
      });
    };
    if (saves)
      expect_error(train, Failure::config, "Job::mesh has the axis tensor of 2 ranks");
    else
      train();
  }
}

TEST(RunMistakes, SavesOnlyBetweenUpdates) {
  const TestFolder folder;
  std::set<int64_t> saved;
  test_jobs(2, [&](Job& job) {
    torch::nn::Linear net(3, 1);
    net->to(at::kDouble);
    torch::optim::SGD sgd(net->parameters(), 0.01);
    Replicas replicas(job, *net, sgd);
    convoy::Run run = job.resume(folder / "run", replicas);
    ShareOptions options = saving_every(share_options(2, 6), Every::steps(3));
    options.keep_last = 0;
    for (ShareBatch& batch : run.share(TestRows(), options)) {
      const at::Tensor loss = (net(batch.data) - batch.target).square().sum();
      if (batch.step % 2 == 0) {
        replicas.accumulate(loss, batch.rows);
        expect_error([&] { run.save(); }, Failure::config, "gradients are accumulated");
      } else {
        replicas.step(loss, batch.rows);
        if (batch.step == 1) run.save();
      }
    }
  });
  for (const std::string& name : names_in(folder / "run/checkpoints"))
    if (begins_with(name, "step-")) saved.insert(std::stoll(name.substr(5)));
  EXPECT_EQ(saved, (std::set<int64_t>{2, 4, 6, 8})) << "the one due after 3 steps is made after 4";
}

TEST(RunMistakes, NamesTrainingWithoutEffect) {
  const TestFolder folder;
  const auto train = [&](const std::string& name, bool steps) {
    return log_of([&] {
      test_jobs(2, [&](Job& job) {
        torch::nn::Linear net(3, 1);
        net->to(at::kDouble);
        torch::optim::SGD sgd(net->parameters(), 0.01);
        Replicas replicas(job, *net, sgd);
        convoy::Run run = job.resume(folder / name, replicas);
        for (ShareBatch& batch : run.share(TestRows(), share_options(1, 6))) {
          if (steps || batch.step == 0) replicas.step((net(batch.data) - batch.target).square().sum(), 0);
        }
      });
    });
  };
  EXPECT_NE(train("weightless", true).find("step 0: the weight of the loss is 0 on all ranks"), std::string::npos);
  EXPECT_NE(train("skipped", false).find("3 batches of this loop ended without step()"), std::string::npos);
}

TEST(RunMistakes, RefusesASecondTrained) {
  const TestFolder folder;
  const std::string log = log_of([&] {
    test_jobs(1, [&](Job& job) {
      torch::nn::Linear net(3, 1), other(3, 1);
      net->to(at::kDouble);
      torch::optim::SGD sgd(net->parameters(), 0.01), second(other->parameters(), 0.01);
      Replicas replicas(job, *net, sgd), others(job, *other, second);
      convoy::Run run = job.resume(folder / "run", replicas);
      expect_error([&] { job.resume(folder / "other", others); }, Failure::config, "this job has a Run already");
      expect_error([&] { run.log("", 1.0, 1); }, Failure::config, "log: the metric has no name");
      expect_error([&] { run.evaluated("", 1.0, 1); }, Failure::config, "evaluated: the metric has no name");
      for (ShareBatch& batch : run.share(TestRows(), share_options(1, 6)))
        replicas.step((net(batch.data) - batch.target).square().sum(), batch.rows);
    });
  });
  EXPECT_NE(log.find("2 objects of Replicas or Shards, and checkpoints have only the one"), std::string::npos) << log;
}

TEST(RunMistakes, NamesARankThatSkipsAnEmptyBatch) {
  const TestFolder folder;
  const auto train = [&] {
    test_jobs(2, [&](Job& job) {
      torch::nn::Linear net(3, 1);
      net->to(at::kDouble);
      torch::optim::SGD sgd(net->parameters(), 0.01);
      Replicas replicas(job, *net, sgd);
      convoy::Run run = job.resume(folder / "run", replicas);
      for (ShareBatch& batch : run.share(TestRows(), share_options(2, 2))) {
        if (batch.rows == 0) continue;
        replicas.step((net(batch.data) - batch.target).square().sum(), batch.rows);
      }
    });
  };
  expect_error(train, Failure::training, "made no step with it; call step() on every rank");
}

}  // namespace
}  // namespace convoy
