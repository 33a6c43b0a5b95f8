// pipeline and model_parallel besides equal results: failures of one stage, ties, bytes sent, live activations, metrics
// on every rank, resuming.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <mutex>

#include "core/base/error.h"
#include "core/losses/losses.h"
#include "core/model.h"
#include "strategies/common/model/model_part.h"
#include "strategies/common/step/gradient_collector.h"
#include "strategies/plans/catalogue.h"
#include "strategies/registry.h"
#include "tests/support/torch/model_subjects.h"
#include "tests/support/torch/subjects.h"

namespace convoy::testing {
namespace {

constexpr int64_t features = 4;
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// Action of a probe's block on its output.
using Hook = std::function<at::Tensor(int64_t block, const at::Tensor& value)>;

class ProbeBlock : public Block {
 public:
  ProbeBlock(Layers& layers, int64_t index, const LinearOptions& options, Hook hook)
      : index_(index), hook_(std::move(hook)) {
    linear_ = register_module("linear", layers.linear("linear", features, features, options));
  }
  TensorList forward(const TensorList& inputs) override {
    const at::Tensor value = linear_->forward(inputs[0]).tanh();
    return {hook_ ? hook_(index_, value) : value};
  }

 private:
  int64_t index_;
  Hook hook_;
  Layer linear_;
};

// A chain of equal blocks. `tie` returns the name to which a block's weight is tied; "": not tied.
class Probe : public Model {
 public:
  Probe(int64_t blocks, Hook hook, std::function<std::string(int64_t)> tie = nullptr)
      : blocks_(blocks), hook_(std::move(hook)), tie_(std::move(tie)) {}
  int64_t blocks() const override { return blocks_; }
  std::string block_name(int64_t index) const override { return convoy::str("blocks.", index); }
  BlockPtr block(int64_t index, Layers& layers) const override {
    LinearOptions options;
    if (tie_) options.tied_to = tie_(index);
    return std::make_shared<ProbeBlock>(layers, index, options, hook_);
  }
  TensorList inputs(const Batch& batch) const override { return {batch.at("features")}; }
  Examples examples(const TensorList& outputs, const Batch& batch) const override {
    return {outputs[0], batch.at("target"), {}};
  }
  std::string default_loss() const override { return "cross_entropy"; }
  std::vector<Metric> metrics(const TensorList& outputs, const Batch&, Layers&) const override {
    const at::Tensor rows = at::scalar_tensor(static_cast<double>(outputs[0].size(0)), at::kDouble);
    return {{"outputs", outputs[0].detach().to(at::kDouble).sum(), rows, true}};
  }

 private:
  int64_t blocks_;
  Hook hook_;
  std::function<std::string(int64_t)> tie_;
};

Subject probe(int64_t blocks, Hook hook = nullptr, std::function<std::string(int64_t)> tie = nullptr) {
  const Subject like = mlp_subject();
  Batch data = like.data.slice(0, 16);
  for (auto& [name, tensor] : data.tensors)
    tensor = name == "target" ? tensor.remainder(features) : tensor.narrow(1, 0, features).contiguous();
  return {"probe", [=] { return std::make_shared<Probe>(blocks, hook, tie); }, make_cross_entropy(Options()), data};
}

// All rows, in the strategy's number of micro-batches.
Batch batch_of(const Subject& subject, const Sampling& sampling) {
  Batch batch = subject.data;
  batch.global_rows = batch.nominal_rows = batch.rows;
  batch.micro = micro_batches_of(batch.rows, sampling.micro_batches, sampling.index, sampling.count);
  return batch;
}

Layout pipeline(int ranks, const std::string& options = ", micro_batches: 4") { return {"pipeline", options, ranks}; }
Layout devices(const std::string& options = ", devices: [cores:0, cores:1, cores:2], micro_batches: 4") {
  return {"model_parallel", options, 1};
}

// ---- failures -------------------------------------------------------------------------------------------------------

TEST(PipelineFaults, AnExceptionInAnyStageEndsAllRanks) {
  for (const int64_t faulty : {0, 1, 2}) {
    for (const bool backward : {false, true}) {
      for (const Layout& layout : {pipeline(3), pipeline(3, ", schedule: gpipe, micro_batches: 4"), devices()}) {
        std::array<std::atomic<int>, 3> calls{};
        const Subject subject = probe(3, [&](int64_t block, const at::Tensor& value) {
          // In the third micro-batch of the second step.
          if (block != faulty || ++calls[static_cast<size_t>(block)] != 7) return value;
          if (!backward) throw std::runtime_error("the model's own words");
          value.register_hook([](const at::Tensor& gradient) -> at::Tensor {
            if (gradient.defined()) throw std::runtime_error("the model's own words");
            return gradient;
          });
          return value;
        });
        const std::string error = run(layout, subject, [&](const Context&, Strategy& strategy) {
          for (int64_t step = 10; step < 14; ++step)
            strategy.step({batch_of(subject, strategy.sampling()), step, true});
        });
        const std::string where = backward
                                      ? "backward, step 11: "
                                      : convoy::str("block ", faulty, " (blocks.", faulty, "), forward, step 11: ");
        EXPECT_EQ(error, "training: " + where + "the model's own words") << to_string(layout) << ", stage " << faulty;
      }
    }
  }
}

TEST(PipelineFaults, InfInOneStageStopsTheUpdateOnAll) {
  for (const int64_t faulty : {0, 1, 2}) {
    for (const Layout& layout : {pipeline(3), devices()}) {
      std::atomic<bool> wrong{true};
      // The gradients of one block's parameters and of earlier blocks are not finite; the loss is.
      const Subject subject = probe(3, [&](int64_t block, const at::Tensor& value) {
        if (block == faulty && wrong && value.requires_grad())
          value.register_hook(
              [](const at::Tensor& gradient) { return gradient * std::numeric_limits<double>::infinity(); });
        return value;
      });
      const std::string error = run(layout, subject, [&](const Context& context, Strategy& strategy) {
        const auto before = state_of(strategy);
        const StepResult bad = strategy.step({batch_of(subject, strategy.sampling()), 0, true});
        EXPECT_FALSE(bad.finite.item<bool>()) << context.rank;
        EXPECT_TRUE(bitwise_equal(state_of(strategy), before)) << context.rank;
        context.world->barrier({"all have seen it", {}})->wait();
        wrong = false;
        EXPECT_TRUE(strategy.step({batch_of(subject, strategy.sampling()), 1, true}).finite.item<bool>());
        EXPECT_FALSE(bitwise_equal(state_of(strategy), before));
      });
      EXPECT_EQ(error, "no error") << to_string(layout) << ", stage " << faulty;
    }
  }
}

TEST(PipelineFaults, DistinguishesShapesThatDependOnMoreThanTheBatch) {
  std::atomic<int> calls{0};
  const Subject subject = probe(2, [&](int64_t block, const at::Tensor& value) {
    return block == 0 && ++calls == 3 ? value.unsqueeze(1) : value;
  });
  const std::string error = run(pipeline(2), subject, [&](const Context&, Strategy& strategy) {
    strategy.step({batch_of(subject, strategy.sampling()), 0, true});
  });
  EXPECT_EQ(error.rfind("training: the outputs before stage 1 have other shapes", 0), 0u) << error;
}

// ---- ties -----------------------------------------------------------------------------------------------------------

std::string tied(int64_t block, const std::string& to, const Layout& layout) {
  const Subject subject = probe(4, nullptr, [=](int64_t index) { return index == block ? to : std::string(); });
  return run(layout, subject, [&](const Context&, Strategy& strategy) {
    strategy.step({batch_of(subject, strategy.sampling()), 0, true});
  });
}

TEST(PipelineTies, RefuseTiesToLaterStages) {
  for (const Layout& layout : {pipeline(2), pipeline(4), pipeline(2, ", schedule: interleaved, micro_batches: 4"),
                               devices(", devices: [cores:0, cores:1], micro_batches: 2")}) {
    EXPECT_EQ(tied(3, "blocks.0.linear.weight", layout), "no error") << to_string(layout);
    EXPECT_EQ(tied(3, "blocks.1.linear.weight", layout), "no error") << to_string(layout);
    for (const char* wrong : {"blocks.3.linear.weight", "blocks.9.linear.weight"}) {
      const std::string error = tied(1, wrong, layout);
      EXPECT_EQ(error.rfind("config: model: ", 0), 0u) << to_string(layout) << ": " << error;
      EXPECT_NE(error.find(convoy::str("is tied to ", wrong, ", which no layer before it has made")), std::string::npos)
          << to_string(layout) << ": " << error;
    }
    EXPECT_NE(tied(3, "blocks.0.linear.bias", layout).find("has a weight of [4, 4] and is tied to"), std::string::npos)
        << to_string(layout) << ": " << tied(3, "blocks.0.linear.bias", layout);
  }
}

TEST(PipelineTies, StayEqualOverThreeStages) {
  const auto tie = [](int64_t index) { return index == 0 ? std::string() : std::string("blocks.0.linear.weight"); };
  const Subject subject = probe(4, nullptr, tie);
  const std::string micro = ", micro_batches: 4, sync: {every: 1}";
  Training training;
  training.global_rows = 16;
  const Trajectory whole = train({"single", micro, 1}, subject, training);
  for (const Layout& layout :
       {pipeline(4, micro), pipeline(3, micro), pipeline(2, ", schedule: interleaved" + micro), devices(micro)}) {
    const Trajectory cut = train(layout, subject, training);
    EXPECT_TRUE(bitwise_equal(cut.initial, whole.initial)) << to_string(layout);
    EXPECT_LE(difference(cut.final, whole.final).worst, 1e-12) << to_string(layout);
    EXPECT_NEAR(cut.norms.back() / whole.norms.back(), 1, 1e-12) << to_string(layout);
  }
}

TEST(PipelineTies, ExactlyOneRankOwnsEachEntry) {
  const Subject subject = gpt_subject();
  for (const Layout& layout : {pipeline(3), pipeline(2, ", schedule: interleaved"), devices()}) {
    std::mutex mutex;
    std::map<std::string, int> owners;
    std::map<std::string, int> seen;
    EXPECT_EQ(run(layout, subject,
                  [&](const Context&, Strategy& strategy) {
                    std::lock_guard<std::mutex> lock(mutex);
                    strategy.visit_state([&](const StateEntry& entry) {
                      owners[entry.key()] += entry.owner;
                      ++seen[entry.key()];
                    });
                  }),
              "no error");
    for (const auto& [key, count] : owners) EXPECT_EQ(count, 1) << key << ", " << to_string(layout);
    EXPECT_EQ(seen.at("parameter/embedding.tokens.weight"), layout.ranks > 1 ? 2 : 1) << to_string(layout);
    EXPECT_EQ(seen.at("parameter/output.norm.weight"), 1) << to_string(layout);
  }
}

// ---- statistics ----

TEST(PipelineStatistics, BytesSentMatchTheCost) {
  const Subject subject = gpt_subject();
  ModelDescription model = describe_model(*subject.model(), "fp64");
  constexpr int64_t length = 6, dim = 16, vocabulary = 12;
  for (BlockDescription& block : model.blocks) block.row_output_bytes = length * dim * 8;
  model.blocks.back().row_output_bytes = length * vocabulary * 8;
  EXPECT_EQ(model.blocks.back().ties.at(0).elements, vocabulary * dim);
  for (const Layout& layout :
       {pipeline(2), pipeline(3, ", schedule: gpipe, micro_batches: 5"), pipeline(2, ", schedule: interleaved")}) {
    const RunConfig config = test_config(layout, {});
    PlanRequest request;
    request.ranks = layout.ranks;
    Topology topology;
    topology.hosts.push_back({"here", {{0, 0, 0, {0}}}, {}, 0});
    const JobPlan job = strategy_entry("pipeline").plan(config, topology, request).jobs.at(0);
    const std::vector<RankCost> costs = strategy_entry("pipeline").cost(job, model);
    Subject full = subject;
    full.data = subject.data.slice(0, 16);
    EXPECT_EQ(run(layout, full,
                  [&](const Context& context, Strategy& strategy) {
                    const Batch batch = batch_of(full, strategy.sampling());
                    strategy.step({batch, 0, true});  // the first one sends shapes and the order of gradients too
                    const int64_t before = context.world->bytes_sent();
                    strategy.step({batch, 1, true});
                    const double sent = static_cast<double>(context.world->bytes_sent() - before);
                    const double predicted = costs[static_cast<size_t>(context.rank)].bytes_sent_per_step;
                    // Each message is counted in whole bytes.
                    EXPECT_NEAR(sent, predicted, 2) << to_string(layout) << ", rank " << context.rank;
                  }),
              "no error");
  }
}

// A rank of a stage also sends its gradients along the axis `data`, as buckets or as shards.
TEST(HybridStatistics, BytesSentMatchTheCost) {
  const Subject subject = gpt_subject();
  ModelDescription model = describe_model(*subject.model(), "fp64");
  constexpr int64_t length = 6, dim = 16;
  int64_t tensors = 0;
  for (BlockDescription& block : model.blocks) {
    block.row_output_bytes = length * dim * 8;
    block.cut_parameters = 0;
    tensors += 16;  // at most, of a block
  }
  const std::string shards = "{degree: 2, how: fsdp}, pipeline: 2}, shard: ";
  for (const std::string& mesh :
       {std::string("2, pipeline: 2}"), shards + "optimizer", shards + "gradients", shards + "parameters"}) {
    const Layout layout{"hybrid", ", micro_batches: 2, buffers: local, mesh: {data: " + mesh, 4};
    PlanRequest request;
    request.ranks = layout.ranks;
    Topology topology;
    topology.hosts.push_back({"here", {{0, 0, 0, {0}}}, {}, 0});
    const JobPlan job = strategy_entry("hybrid").plan(test_config(layout, {}), topology, request).jobs.at(0);
    const std::vector<RankCost> costs = strategy_entry("hybrid").cost(job, model);
    Subject full = subject;
    full.data = subject.data.slice(0, 16);
    EXPECT_EQ(run(layout, full,
                  [&](const Context& context, Strategy& strategy) {
                    const Batch batch = batch_of(full, strategy.sampling());
                    strategy.step({batch, 0, true});
                    const int64_t before = context.world->bytes_sent();
                    strategy.step({batch, 1, true});
                    const double sent = static_cast<double>(context.world->bytes_sent() - before);
                    const double predicted = costs[static_cast<size_t>(context.rank)].bytes_sent_per_step;
                    // Additional bytes: padding of parameters in messages, loss and norm.
                    EXPECT_GE(sent, predicted) << to_string(layout) << ", rank " << context.rank;
                    EXPECT_LE(sent, predicted + 64.0 * 3 * static_cast<double>(tensors) / 2)
                        << to_string(layout) << ", rank " << context.rank;
                    EXPECT_LE(sent, predicted * 1.15) << to_string(layout) << ", rank " << context.rank;
                  }),
              "no error");
  }
}

TEST(PipelineStatistics, ParametersMatchTheCost) {
  const Subject subject = gpt_subject();
  const ModelDescription model = describe_model(*subject.model(), "fp64");
  const Layout layout = pipeline(3);
  Topology topology;
  topology.hosts.push_back({"here", {{0, 0, 0, {0}}}, {}, 0});
  PlanRequest request;
  request.ranks = layout.ranks;
  const JobPlan job = strategy_entry("pipeline").plan(test_config(layout, {}), topology, request).jobs.at(0);
  const std::vector<RankCost> costs = strategy_entry("pipeline").cost(job, model);
  EXPECT_EQ(run(layout, subject,
                [&](const Context& context, Strategy& strategy) {
                  double parameters = 0, moments = 0;
                  strategy.visit_state([&](const StateEntry& entry) {
                    const auto bytes = static_cast<double>(entry.tensor.nbytes());
                    if (entry.kind == StateKind::parameter) parameters += bytes;
                    if (entry.kind == StateKind::moment) moments += bytes;
                  });
                  EXPECT_DOUBLE_EQ(parameters, costs[static_cast<size_t>(context.rank)].parameter_bytes)
                      << context.rank;
                  EXPECT_DOUBLE_EQ(moments, costs[static_cast<size_t>(context.rank)].moment_bytes) << context.rank;
                }),
            "no error");
}

TEST(PipelineStatistics, LiveMicroBatchesMatchTheSchedule) {
  struct Case {
    Layout layout;
    std::array<int, 3> live;
  };
  for (const Case& one : {Case{pipeline(3, ", micro_batches: 6"), {3, 2, 1}},
                          Case{pipeline(3, ", schedule: gpipe, micro_batches: 6"), {6, 6, 6}},
                          Case{devices(", devices: [cores:0, cores:1, cores:2], micro_batches: 6"), {3, 2, 1}}}) {
    std::array<std::atomic<int>, 3> live{}, most{};
    const Subject subject = probe(3, [&](int64_t block, const at::Tensor& value) {
      const auto at = static_cast<size_t>(block);
      most[at] = std::max<int>(most[at], ++live[at]);
      value.register_hook([&live, at](const at::Tensor& gradient) {
        --live[at];
        return gradient;
      });
      return value;
    });
    EXPECT_EQ(run(one.layout, subject,
                  [&](const Context&, Strategy& strategy) {
                    for (int64_t step = 0; step < 3; ++step)
                      strategy.step({batch_of(subject, strategy.sampling()), step, true});
                  }),
              "no error");
    for (size_t block = 0; block < 3; ++block) EXPECT_EQ(most[block], one.live[block]) << to_string(one.layout);
  }
}

TEST(PipelineStatistics, AllRanksGetTheMetrics) {
  const Subject subject = probe(3);
  std::map<std::string, double> expected;
  const auto sums = [](const std::vector<Metric>& metrics) {
    std::map<std::string, double> all;
    for (const Metric& metric : metrics) {
      all[metric.name] += metric.sum.item<double>();
      all[metric.name + " weight"] += metric.weight.item<double>();
    }
    return all;
  };
  EXPECT_EQ(
      run({}, subject, [&](const Context&, Strategy& strategy) { expected = sums(strategy.evaluate(subject.data)); }),
      "no error");
  EXPECT_EQ(expected.count("outputs"), 1u);
  for (const Layout& layout : {pipeline(3), pipeline(2), devices()}) {
    std::mutex mutex;
    for (const int64_t rows : {int64_t{16}, int64_t{3}, int64_t{0}}) {
      std::map<std::string, double> together;
      EXPECT_EQ(run(layout, subject,
                    [&](const Context& context, Strategy& strategy) {
                      for (int time = 0; time < 3; ++time) {
                        const std::vector<Metric> metrics = strategy.evaluate(subject.data.slice(0, rows));
                        ASSERT_EQ(metrics.size(), 2u) << context.rank;
                        EXPECT_EQ(metrics[0].name, "loss");
                        EXPECT_EQ(metrics[1].name, "outputs");
                        EXPECT_TRUE(metrics[1].lower_is_better);
                        std::lock_guard<std::mutex> lock(mutex);
                        for (const auto& [name, value] : sums(metrics)) together[name] += value / 3;
                      }
                    }),
                "no error");
      EXPECT_NEAR(together["loss weight"], static_cast<double>(rows), 1e-9);
      if (rows != 16) continue;
      for (const auto& [name, value] : expected) EXPECT_NEAR(together[name], value, 1e-11) << name << to_string(layout);
    }
  }
}

// ---- resuming -------------------------------------------------------------------------------------------------------

// The previous stage gets its gradients before the products that only this stage's weights need. The results have the
// same bits as without a waiting stage; gradients of a tied weight are summed after all of its layers.
TEST(PipelineGradients, InputGradientsComeBeforeWeightGradients) {
  const Subject subject =
      probe(4, nullptr, [](int64_t block) { return std::string(block == 3 ? "blocks.1.linear.weight" : ""); });
  const Layout layout{"single", "", 1};
  const RunConfig config = test_config(layout, {});
  with_ranks(layout, config, [&](const Context& context) {
    ModelPart part(context, subject.model(), subject.loss);
    int ready = 0;
    GradientCollector collector(part.parameters(), part.state(), [&](int) { ++ready; });
    for (const ParameterPtr& parameter : part.parameters()) parameter->gradient = at::empty_like(parameter->value);
    const auto gradients = [&](int64_t rows, const std::function<void()>& inputs_done) {
      for (const ParameterPtr& parameter : part.parameters()) parameter->gradient.fill_(nan);
      collector.begin();
      std::map<std::string, at::Tensor> all;
      for (int micro = 0; micro < 2; ++micro) {
        ready = 0;
        const Batch batch = subject.data.slice(micro * rows, (micro + 1) * rows);
        part.backward(part.loss(part.forward(batch, 0), batch), 16, inputs_done);
        EXPECT_EQ(ready, static_cast<int>(part.parameters().size()));
      }
      for (const ParameterPtr& parameter : part.parameters()) all[parameter->name] = parameter->gradient.clone();
      return all;
    };
    int reports = 0;
    const auto late = gradients(1, [&] {
      EXPECT_EQ(ready, 0);
      if (++reports > 1) return;
      for (const ParameterPtr& parameter : part.parameters())
        EXPECT_TRUE(parameter->gradient.isnan().all().item<bool>()) << parameter->name;
    });
    EXPECT_EQ(reports, 2);
    EXPECT_TRUE(bitwise_equal(late, gradients(1, nullptr)));
    // Waiting products need at most the memory of parameters and gradients: with more rows some products are not
    // deferred.
    int at_once = 0;
    const auto some = gradients(8, [&] { at_once = ready; });
    EXPECT_GT(at_once, 0);
    EXPECT_LT(at_once, static_cast<int>(part.parameters().size()));
    EXPECT_TRUE(bitwise_equal(some, gradients(8, nullptr)));
    for (const auto& [name, gradient] : late) EXPECT_TRUE(gradient.isfinite().all().item<bool>()) << name;
  });
}

TEST(PipelineState, SingleAndPipelineReadEachOthersCheckpoints) {
  const Subject subject = gpt_subject();
  Subject full = subject;
  full.data = subject.data.slice(0, 16);
  const Layout single{"single", ", micro_batches: 4", 1};
  const auto steps = [&](Strategy& strategy, int64_t from, int64_t to) {
    for (int64_t step = from; step < to; ++step) strategy.step({batch_of(full, strategy.sampling()), step, true});
  };
  std::mutex mutex;
  const auto add_state = [&](Strategy& strategy, std::map<std::string, at::Tensor>& into) {
    std::lock_guard<std::mutex> lock(mutex);
    for (const auto& [key, tensor] : state_of(strategy)) into.emplace(key, tensor);
  };
  std::map<std::string, at::Tensor> saved, undisturbed;
  EXPECT_EQ(run(single, full,
                [&](const Context&, Strategy& strategy) {
                  steps(strategy, 0, 3);
                  saved = state_of(strategy);
                  steps(strategy, 3, 6);
                  undisturbed = state_of(strategy);
                }),
            "no error");
  for (const Layout& layout : {pipeline(3), pipeline(2, ", schedule: interleaved"), devices()}) {
    std::map<std::string, at::Tensor> resumed, cut;
    EXPECT_EQ(run(layout, full,
                  [&](const Context&, Strategy& strategy) {
                    steps(strategy, 0, 2);  // bytes and layouts before this point do not count
                    strategy.visit_state([&](const StateEntry& entry) { entry.tensor.copy_(saved.at(entry.key())); });
                    strategy.state_restored();
                    add_state(strategy, cut);
                    steps(strategy, 3, 6);
                    add_state(strategy, resumed);
                  }),
              "no error");
    EXPECT_TRUE(bitwise_equal(cut, saved)) << to_string(layout);
    EXPECT_LE(difference(resumed, undisturbed).worst, 1e-12) << to_string(layout);
  }
}

}  // namespace
}  // namespace convoy::testing
