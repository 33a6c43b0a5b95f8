// A strategy that only counts, its data, and trainings with them in a temporary folder.
#pragma once
#include "core/trainer.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <set>

#include "core/checkpoint/checkpoint.h"
#include "core/communicator.h"
#include "core/control/assignment.h"
#include "core/control/channel.h"
#include "core/rank_state/state_file.h"
#include "core/training/membership.h"

namespace convoy {

namespace fs = std::filesystem;

// Ten rows of one number each; nothing is drawn.
class NumbersToFit : public Dataset {
 public:
  Schema schema() const override { return {{{"features", {{}, at::kDouble, 0}}}}; }
  int64_t size(Split split) const override { return split == Split::train ? 10 : 3; }
  int64_t instances_per_row() const override { return 5; }
  Batch gather(Split, const at::Tensor& indices, int64_t, BatchBuffers&) const override {
    Batch batch;
    batch.tensors = {{"features", indices.to(at::kDouble)}};
    batch.rows = indices.numel();
    return batch;
  }
};

// Its one parameter is the sum of all rows seen, so it shows a lost or repeated row.
class Counting : public Strategy {
 public:
  void setup(const Context&, ModelPtr, std::shared_ptr<const LossFunction>) override {}
  Sampling sampling() const override { return {}; }
  StepResult step(const StepInput& input) override {
    steps.push_back(input.step);
    if (input.flush) flushes.push_back(input.step);
    const at::Tensor rows = input.batch.at("features");
    const bool finite = input.step != poisoned_step;
    if (finite) total.add_(rows.sum());
    StepResult result;
    const at::Tensor sum = finite ? rows.sum() : at::scalar_tensor(std::numeric_limits<double>::quiet_NaN());
    const double factor = input.step == negative_step ? -weight_factor : weight_factor;
    const double weight = weightless.count(input.step) != 0 ? 0 : factor * static_cast<double>(input.batch.rows);
    result.metrics = {{"loss", sum, at::scalar_tensor(weight, at::kDouble), true}};
    result.finite = at::scalar_tensor(finite, at::kBool);
    result.updated = input.flush || (input.step + 1) % accumulate == 0;
    if (result.updated) result.learning_rate = at::full({1}, 0.5 / static_cast<double>(input.step + 1), at::kDouble);
    if (on_step) on_step(input.step);
    return result;
  }
  std::vector<Metric> evaluate(const Batch& batch) override {
    evaluated_rows += batch.rows;
    if (on_evaluation) on_evaluation();
    std::vector<Metric> metrics{
        {"seen", batch.at("features").sum(), at::scalar_tensor(static_cast<double>(batch.rows), at::kDouble), false}};
    const double score = scores.empty() ? 0 : scores[std::min(evaluations++, scores.size() - 1)];
    if (!scores.empty())
      metrics.push_back({"score", at::scalar_tensor(score, at::kDouble), at::scalar_tensor(1.0, at::kDouble), false});
    return metrics;
  }
  bool evaluated(const std::map<std::string, MetricValue>&) override { return false; }
  void flush() override { ++flushed; }
  void visit_state(const StateVisitor& visit) override {
    StateEntry entry;
    entry.name = "total";
    entry.kind = StateKind::parameter;
    entry.piece = Piece::whole(total.sizes());
    entry.tensor = total;
    visit(entry);
  }
  void state_restored() override { ++restored; }

  at::Tensor total = at::zeros({1}, at::kDouble);
  std::vector<int64_t> steps, flushes;
  std::set<int64_t> weightless;  // steps whose loss has the weight 0
  double weight_factor = 1;
  int64_t negative_step = -1;  // its weight has the other sign
  int64_t evaluated_rows = 0, poisoned_step = -1, accumulate = 1;
  int flushed = 0, restored = 0;
  std::vector<double> scores;  // metric `score` of each evaluation batch; the last one repeats
  size_t evaluations = 0;
  std::function<void(int64_t)> on_step;
  std::function<void()> on_evaluation;
};

class TrainerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("convoy-trainer-" + random_token());
    fs::create_directories(folder_ / "logs");
  }
  void TearDown() override { fs::remove_all(folder_); }

  TrainingResult run(Counting& strategy, const std::function<void(RunConfig&)>& change = {}) {
    Context context;
    context.world = make_single_communicator();
    context.process_ranks = process_ranks_;
    context.channel = channel_ = make_local_channel();
    context.folder = folder_.string();
    context.state = std::make_shared<StateFile>((folder_ / "logs" / "rank0.state").string());
    RunConfig& config = context.config;
    config.data.options = Options(Json{{"prefetch", 2}});
    config.resolved = {{"model", {{"name", "counting"}}}};
    config.train.epochs = 2;
    config.train.batch.rows = 4;
    config.train.evaluate_every = {Interval::Unit::epochs, 1};
    config.train.checkpoint_every = {Interval::Unit::epochs, 1};
    if (change) change(config);
    TrainingComponents components{std::make_shared<NumbersToFit>(), {}, &strategy, after_update_};
    components.kept = kept_;
    return train(context, components);
  }

  // A new run with these settings, in a new folder.
  void start_anew() {
    TearDown();
    SetUp();
  }

  std::vector<std::string> records(const std::string& kind) const {
    std::ifstream lines(folder_ / "metrics.jsonl");
    std::vector<std::string> records;
    for (std::string line; std::getline(lines, line);)
      if (Json::parse(line)["kind"] == kind) records.push_back(line);
    return records;
  }
  std::vector<std::string> evaluations() const { return records("evaluate"); }

  void drop_last_record() const {
    std::ifstream lines(folder_ / "metrics.jsonl");
    std::vector<std::string> kept;
    for (std::string line; std::getline(lines, line);) kept.push_back(line);
    kept.pop_back();
    std::ofstream file(folder_ / "metrics.jsonl");
    for (const std::string& line : kept) file << line << '\n';
  }

  size_t checkpoints() const {
    size_t count = 0;
    for (const auto& entry : fs::directory_iterator(folder_ / "checkpoints"))
      count += entry.path().filename().string().rfind("step-", 0) == 0;
    return count;
  }

  fs::path folder_;
  int process_ranks_ = 1;
  std::shared_ptr<Channel> channel_;
  std::function<void(int64_t)> after_update_;
  KeptTraining* kept_ = nullptr;
};

}  // namespace convoy
