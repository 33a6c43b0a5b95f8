// A small training by Run, and temporary run folders, for the tests of Run and Share.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/data/datasets/base.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <convoy/replicas.h>
#include <convoy/run.h>
#include "core/base/json.h"
#include "core/files/files.h"
#include "tests/support/torch/jobs.h"

namespace convoy::testing {

// Twenty-three rows: three features, and one target that they determine.
class TestRows : public torch::data::datasets::Dataset<TestRows> {
 public:
  torch::data::Example<> get(size_t index) override {
    const at::Tensor x = at::tensor({index * 0.125, index * -0.5 + 3, index % 5 * 1.0}, at::kDouble);
    return {x, x.sum().reshape({1}) * 0.25};
  }
  std::optional<size_t> size() const override { return 23; }
};

inline void expect_error(const std::function<void()>& action, Failure kind, const std::string& part) {
  try {
    action();
    ADD_FAILURE() << "no error, instead of: " << part;
  } catch (const Error& error) {
    EXPECT_STREQ(name_of(error.kind()), name_of(kind)) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what() << "\n  lacks: " << part;
  }
}

class TestFolder {
 public:
  TestFolder() : path_(std::filesystem::temp_directory_path() / ("convoy-run-" + random_token())) {}
  ~TestFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

inline Json json_in(const std::string& file) { return Json::parse(read_file(file)); }

inline std::vector<Json> lines_in(const std::string& file) {
  std::vector<Json> lines;
  for (const std::string& line : split(read_file(file), '\n'))
    if (!line.empty()) lines.push_back(Json::parse(line));
  return lines;
}

// A training of a linear layer on TestRows.
struct TestTraining {
  std::string folder;
  ShareOptions options = {};
  std::vector<std::string> settings = {};
  std::function<void(Job&, Run&)> before = nullptr;                      // before share
  std::function<void(Job&, Run&, const ShareBatch&)> in_step = nullptr;  // after step()
  std::function<void(Job&, Run&)> after = nullptr;                       // after the loop
  bool each_batch = false;                                               // instead of a loop over share
};

inline ShareOptions share_options(int64_t epochs, int64_t batch_size, int64_t max_steps = 0) {
  ShareOptions options;
  options.epochs = epochs;
  options.batch_size = batch_size;
  options.max_steps = max_steps;
  return options;
}

inline ShareOptions saving_every(ShareOptions options, Every every) {
  options.checkpoint_every = every;
  return options;
}

// Throws on every rank after `steps` steps, as if the program had been killed.
inline std::function<void(Job&, Run&, const ShareBatch&)> killed_after(int64_t steps) {
  return [steps](Job&, Run&, const ShareBatch& batch) {
    if (batch.step + 1 == steps) throw std::runtime_error("killed");
  };
}

// Returns the parameters of rank 0 after the training.
inline at::Tensor train_rows(int ranks, const TestTraining& training) {
  at::Tensor result;
  test_jobs(
      ranks,
      [&](Job& job) {
        torch::nn::Linear net(3, 1);
        net->to(at::kDouble);
        {
          at::NoGradGuard no_grad;
          net->weight.fill_(0.5);
          net->bias.fill_(-0.25);
        }
        torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
        Replicas replicas(job, *net, sgd);
        Run run = job.resume(training.folder, replicas);
        if (training.before) training.before(job, run);
        const auto step = [&](ShareBatch& batch) {
          const at::Tensor loss = (net(batch.data) - batch.target).square().sum();
          replicas.step(loss, batch.rows);
          run.log("loss", loss);
          if (training.in_step) training.in_step(job, run, batch);
        };
        if (training.each_batch)
          run.each_batch(TestRows(), training.options, step);
        else
          for (ShareBatch& batch : run.share(TestRows(), training.options)) step(batch);
        if (training.after) training.after(job, run);
        run.finish();
        if (job.rank() == 0) result = at::cat({net->weight.detach().flatten(), net->bias.detach()}).clone();
      },
      training.settings);
  return result;
}

}  // namespace convoy::testing
