// single and ddp besides equal results: errors, refusals, bytes sent, and resuming.
#include <ATen/core/Tensor.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/instance_norm.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>

#include <limits>
#include <mutex>

#include "core/base/error.h"
#include "core/model.h"
#include "strategies/plans/catalogue.h"
#include "strategies/registry.h"
#include "tests/support/torch/feature_model.h"
#include "tests/support/torch/subjects.h"

namespace convoy::testing {
namespace {

// A module whose function the block calls on its inputs.
struct OwnFunction {
  virtual ~OwnFunction() = default;
  virtual at::Tensor call(const at::Tensor& input) = 0;
};

// A block that creates a norm of LibTorch itself, in a module within the block.
class OwnNormModel : public Model {
 public:
  using Make = std::function<std::shared_ptr<torch::nn::Module>()>;
  explicit OwnNormModel(Make make) : make_(std::move(make)) {}
  int64_t blocks() const override { return 1; }
  std::string block_name(int64_t) const override { return "stem"; }
  BlockPtr block(int64_t, Layers& layers) const override {
    struct Stem : Block {
      Layer linear;
      std::shared_ptr<OwnFunction> own;  // may be null
      TensorList forward(const TensorList& inputs) override {
        return {linear->forward(own ? own->call(inputs.front()) : inputs.front())};
      }
    };
    struct StateOwner : torch::nn::Module {};
    auto stem = std::make_shared<Stem>();
    stem->linear = stem->register_module("linear", layers.linear("linear", 6, 5));
    const std::shared_ptr<torch::nn::Module> own = make_();
    stem->own = std::dynamic_pointer_cast<OwnFunction>(own);
    stem->register_module("norms", std::make_shared<StateOwner>())->register_module("first", own);
    return stem;
  }
  TensorList inputs(const Batch& batch) const override { return {batch.at("features")}; }
  Examples examples(const TensorList& outputs, const Batch& batch) const override {
    return {outputs[0], batch.at("target"), {}};
  }
  std::string default_loss() const override { return "cross_entropy"; }
  std::vector<Metric> metrics(const TensorList&, const Batch&, Layers&) const override { return {}; }

 private:
  Make make_;
};

Layout ddp(int ranks, const std::string& more = "") {
  return {"ddp", ", first_bucket_mb: 0.0002, bucket_cap_mb: 0.0006" + more, ranks};
}

TEST(Replicas, RefuseDifferentModelsByName) {
  const RunConfig config = test_config(ddp(3), {});
  const Subject one = mlp_subject(), other = norms_subject();
  std::string message;
  std::mutex mutex;
  EXPECT_THROW(with_ranks(ddp(3), config,
                          [&](const Context& context) {
                            auto strategy = make_strategy(config);
                            try {
                              strategy->setup(context, (context.rank == 2 ? other : one).model(), one.loss);
                            } catch (const Error& error) {
                              EXPECT_EQ(error.kind(), Failure::disagreement);
                              std::lock_guard<std::mutex> lock(mutex);
                              message = error.what();
                              throw;
                            }
                          }),
               Error);
  EXPECT_NE(message.find("parameter 0 is blocks.0.linear.weight [10, 6]"), std::string::npos) << message;
  EXPECT_NE(message.find("[8, 6]"), std::string::npos) << message;
  EXPECT_NE(message.find("rank 2"), std::string::npos) << message;
}

TEST(Replicas, NameBlockAndStepOfAModelsError) {
  Subject subject = mlp_subject();
  for (auto& entry : subject.data.tensors)
    if (entry.first == "features") entry.second = entry.second.narrow(1, 0, 4);  // two columns short
  for (const Layout& layout : {Layout{}, ddp(2)}) {
    const std::string error = run(layout, subject, [&](const Context&, Strategy& strategy) {
      strategy.step({share(subject, strategy.sampling()), 17, true});
    });
    EXPECT_EQ(error.rfind("training: block 0 (blocks.0), forward, step 17: ", 0), 0u) << error;
  }
}

TEST(Replicas, NanOnOneRankStopsTheUpdateOnAll) {
  const Subject subject = mlp_subject();
  const std::string error = run(ddp(3), subject, [&](const Context& context, Strategy& strategy) {
    const auto before = state_of(strategy);
    Batch batch = share(subject, strategy.sampling());
    if (context.rank == 1) {
      for (auto& entry : batch.tensors)
        if (entry.first == "features") entry.second = entry.second * std::numeric_limits<double>::quiet_NaN();
    }
    const StepResult result = strategy.step({batch, 0, true});
    EXPECT_FALSE(result.finite.item<bool>());
    EXPECT_TRUE(bitwise_equal(state_of(strategy), before));
    EXPECT_TRUE(strategy.step({share(subject, strategy.sampling()), 1, true}).finite.item<bool>());
  });
  EXPECT_EQ(error, "no error");
}

TEST(Replicas, SendNothingBetweenUpdates) {
  const Subject subject = tied_subject();
  const std::string error = run(ddp(2, ", sync: {every: 3}"), subject, [&](const Context& context, Strategy& strategy) {
    std::vector<bool> updated;
    for (int64_t step = 0; step < 7; ++step) {
      const int64_t before = context.world->bytes_sent();
      const StepResult result = strategy.step({share(subject, strategy.sampling()), step, step == 6});
      updated.push_back(result.updated);
      // In step 0 the ranks exchange the order of gradients, once.
      if (step > 0) {
        EXPECT_EQ(context.world->bytes_sent() > before, result.updated) << step;
      }
    }
    EXPECT_EQ(updated, (std::vector<bool>{false, false, true, false, false, true, true}));
  });
  EXPECT_EQ(error, "no error");
}

TEST(Replicas, BytesSentMatchTheCost) {
  Subject subject = mlp_subject();
  const Trajectory result = train(ddp(4), subject, {});
  double parameters = 0;
  for (const auto& [key, tensor] : result.initial)
    if (key.rfind("parameter/", 0) == 0) parameters += static_cast<double>(tensor.numel());
  const JobPlan job = planned(ddp(4), test_config(ddp(4), {}));
  ModelDescription description;
  description.blocks = {{"all", static_cast<int64_t>(parameters), 0, 0, 0, 0}};
  description.element_bytes = 8;
  const double predicted = strategy_entry("ddp").cost(job, description).front().bytes_sent_per_step;
  // Bytes besides the gradients: 64 bytes of header and each parameter's padding to 64 bytes.
  const double padding = 1.5 * 64 * (1 + 6);
  EXPECT_GE(static_cast<double>(result.bytes_sent), predicted);
  EXPECT_LE(static_cast<double>(result.bytes_sent), predicted + padding);
}

TEST(Replicas, ResumeBitForBit) {
  const Subject subject = tied_subject();
  for (const Layout& layout : {Layout{}, ddp(3)}) {
    std::mutex mutex;
    std::map<std::string, at::Tensor> saved, undisturbed, resumed;
    const auto step = [&](Strategy& strategy, int64_t number) {
      strategy.step({share(subject, strategy.sampling()), number, true});
    };
    EXPECT_EQ(run(layout, subject,
                  [&](const Context& context, Strategy& strategy) {
                    for (int64_t number = 0; number < 6; ++number) {
                      if (number == 3 && context.rank == 0) saved = state_of(strategy);
                      step(strategy, number);
                    }
                    std::lock_guard<std::mutex> lock(mutex);
                    undisturbed = state_of(strategy);
                  }),
              "no error");
    EXPECT_EQ(run(layout, subject,
                  [&](const Context&, Strategy& strategy) {
                    strategy.visit_state([&](const StateEntry& entry) { entry.tensor.copy_(saved.at(entry.key())); });
                    strategy.state_restored();
                    for (int64_t number = 3; number < 6; ++number) step(strategy, number);
                    std::lock_guard<std::mutex> lock(mutex);
                    resumed = state_of(strategy);
                  }),
              "no error");
    EXPECT_TRUE(bitwise_equal(resumed, undisturbed)) << to_string(layout);
  }
}

TEST(Replicas, SynchroniseBuffersAsConfigured) {
  const Subject subject = norms_subject();
  for (const std::string how : {"broadcast", "mean", "local"}) {
    std::mutex mutex;
    std::vector<at::Tensor> means(3);
    EXPECT_EQ(run(ddp(3, ", buffers: " + how), subject,
                  [&](const Context& context, Strategy& strategy) {
                    strategy.step({share(subject, strategy.sampling()), 0, true});
                    std::lock_guard<std::mutex> lock(mutex);
                    means[static_cast<size_t>(context.rank)] =
                        state_of(strategy).at("buffer/blocks.0.batch.running_mean");
                  }),
              "no error");
    EXPECT_EQ(means[0].equal(means[1]) && means[0].equal(means[2]), how != "local") << how;
    EXPECT_GT(means[0].abs().max().item<double>(), 0);
  }
}

TEST(Replicas, RefuseAForeignBatchNormUnderSyncBatchNorm) {
  using torch::nn::BatchNormOptions;
  using torch::nn::InstanceNormOptions;
  const std::vector<std::pair<OwnNormModel::Make, std::string>> norms = {
      {[] { return torch::nn::BatchNorm2d(4).ptr(); }, "stem.norms.first (torch::nn::BatchNorm2dImpl)"},
      {[] { return torch::nn::BatchNorm1d(BatchNormOptions(4).track_running_stats(false)).ptr(); },
       "stem.norms.first (torch::nn::BatchNorm1dImpl)"},
      {[] { return torch::nn::InstanceNorm2d(InstanceNormOptions(4).track_running_stats(true)).ptr(); },
       "stem.norms.first (torch::nn::InstanceNorm2dImpl)"},
      {[] { return torch::nn::InstanceNorm2d(4).ptr(); }, ""},
      {[] { return torch::nn::InstanceNorm1d(InstanceNormOptions(4).affine(true)).ptr(); }, ""},
  };
  for (const auto& [make, named] : norms) {
    Subject subject = mlp_subject();
    subject.model = [make = make] { return std::make_shared<OwnNormModel>(make); };
    const std::string refused = named.empty() ? "nothing is refused" : "strategy.batch_norm";
    EXPECT_EQ(refused_key(ddp(2, ", batch_norm: sync"), subject, {}), refused) << named;
    EXPECT_EQ(refused_key({"fsdp", ", batch_norm: sync", 2}, subject, {}), refused) << named;
    EXPECT_EQ(refused_key(ddp(2), subject, {}), "nothing is refused") << named;
    for (const Layout& alone : {ddp(1, ", batch_norm: sync"), Layout{"fsdp", ", batch_norm: sync", 1}})
      EXPECT_EQ(refused_key(alone, subject, {}), "nothing is refused") << named << ", " << alone.strategy;
    const Layout layout = ddp(2, ", batch_norm: sync");
    const JobPlan job = planned(layout, test_config(layout, {}));
    const StrategyEntry& entry = strategy_entry(layout.strategy);
    EXPECT_TRUE(wants_blocks(entry, job));
    try {
      check_blocks(entry, job, describe_model(*subject.model(), "fp64"));
    } catch (const ConfigError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("block stem makes " + named), std::string::npos) << text;
      const bool tracks = named.find("Instance") != std::string::npos;
      EXPECT_EQ(text.find("set track_running_stats to false") != std::string::npos, tracks) << text;
      EXPECT_EQ(text.find("take the layer from Layers::batch_norm") != std::string::npos, !tracks) << text;
    }
  }
}

// Functions cannot be seen in the plan. The first step finds them.
TEST(Replicas, ABlocksCallOfBatchNormIsRefusedWhereNormsAreSynchronised) {
  struct Norms : torch::nn::Module, OwnFunction {
    at::Tensor mean = at::zeros({6}, at::kDouble), variance = at::ones({6}, at::kDouble);
    explicit Norms(int kind) : kind(kind) {}
    at::Tensor call(const at::Tensor& x) override {
      if (kind == 0) return at::batch_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, false);
      if (kind == 1) return std::get<0>(at::native_batch_norm(x, {}, {}, mean, variance, true, 0.1, 1e-5));
      if (kind == 2) return at::batch_norm(x, {}, {}, mean, variance, false, 0.1, 1e-5, false);
      const at::Tensor images = x.unsqueeze(-1).expand({-1, -1, 2});
      const bool tracks = kind == 3;
      return at::instance_norm(images, {}, {}, tracks ? mean : at::Tensor(), tracks ? variance : at::Tensor(), true,
                               0.1, 1e-5, false)
                 .sum(-1) +
             x;
    }
    int kind;
  };
  const std::vector<std::string> found = {"aten::batch_norm", "aten::native_batch_norm", "", "aten::instance_norm", ""};
  for (int kind = 0; kind < 5; ++kind) {
    Subject subject = mlp_subject();
    subject.model = [kind] { return std::make_shared<OwnNormModel>([kind] { return std::make_shared<Norms>(kind); }); };
    const auto step = [&](const Context&, Strategy& strategy) {
      strategy.step({share(subject, strategy.sampling()), 0, true});
    };
    const std::string& name = found[static_cast<size_t>(kind)];
    for (const std::string more : {"", ", recompute: blocks", ", micro_batches: 2"}) {
      const std::string error = run(ddp(2, ", batch_norm: sync" + more), subject, step);
      if (name.empty())
        EXPECT_EQ(error, "no error") << kind;
      else
        EXPECT_NE(error.find("strategy.batch_norm is sync, and block stem calls " + name + ","), std::string::npos)
            << kind << ": " << error;
    }
    EXPECT_EQ(run(ddp(2), subject, step), "no error") << kind;
    EXPECT_EQ(run(ddp(1, ", batch_norm: sync"), subject, step), "no error") << kind;
  }
}

// `convoy verify` checks this. Where rows are not divided (`splits` is false), blocks may mix them.
TEST(Replicas, ALossThatIsNoSumIsFound) {
  struct Mean : LossFunction {
    explicit Mean(bool rows) : rows(rows) {}
    Loss operator()(const Examples& examples, Layers& layers) const override {
      const at::Tensor each = layers.cross_entropy(examples.prediction, examples.target);
      const double weight = rows ? static_cast<double>(each.size(0)) : 1;
      return {each.mean(), at::scalar_tensor(weight, each.options().requires_grad(false))};
    }
    bool rows;
  };
  Context context;
  context.config = test_config({}, {});
  const auto fault = [&](const Subject& subject, const std::shared_ptr<const LossFunction>& loss, bool splits = true) {
    return loss_fault(context, subject.model(), loss, subject.data, splits);
  };
  for (const Subject& subject : {mlp_subject(), pairs_subject(), norms_subject(), dropout_subject(), tied_subject()})
    for (const bool splits : {true, false}) EXPECT_EQ(fault(subject, subject.loss, splits), "") << subject.name;
  const std::string mean = fault(mlp_subject(), std::make_shared<Mean>(false));
  EXPECT_EQ(mean.rfind("the loss is no sum over rows: 75 rows give ", 0), 0u) << mean;
  EXPECT_NE(mean.find(" with weight 1, their first 26 give "), std::string::npos) << mean;
  EXPECT_NE(fault(mlp_subject(), std::make_shared<Mean>(true)).find("no block may mix rows"), std::string::npos);
  for (const bool rows : {true, false}) {
    const std::string undivided = fault(mlp_subject(), std::make_shared<Mean>(rows), false);
    EXPECT_EQ(undivided.rfind("the loss is no sum over rows: 75 rows give ", 0), 0u) << undivided;
    EXPECT_EQ(undivided.find("no block may mix rows"), std::string::npos) << undivided;
  }
  struct MixedRows : FeatureModel {
    int64_t blocks() const override { return 1; }
    BlockPtr block(int64_t, Layers& layers) const override {
      struct Mixing : Block {
        explicit Mixing(Layers& layers) : linear(register_module("linear", layers.linear("linear", 6, 5))) {}
        TensorList forward(const TensorList& inputs) override {
          const at::Tensor values = linear->forward(inputs[0]);
          return {values * values.abs().sum(0, true)};
        }
        Layer linear;
      };
      return std::make_shared<Mixing>(layers);
    }
  };
  Subject mixed = mlp_subject();
  mixed.model = [] { return std::make_shared<MixedRows>(); };
  EXPECT_NE(fault(mixed, mixed.loss, true).find("no block may mix rows"), std::string::npos);
  EXPECT_EQ(fault(mixed, mixed.loss, false), "");
}

TEST(Replicas, ExactlyOneRankOwnsEachEntry) {
  const Subject subject = tied_subject();
  std::mutex mutex;
  std::map<std::string, int> owners;
  EXPECT_EQ(run(ddp(3), subject,
                [&](const Context&, Strategy& strategy) {
                  std::lock_guard<std::mutex> lock(mutex);
                  strategy.visit_state([&](const StateEntry& entry) { owners[entry.key()] += entry.owner; });
                }),
            "no error");
  EXPECT_GT(owners.size(), 10u);
  for (const auto& [key, count] : owners) EXPECT_EQ(count, 1) << key;
}

TEST(Replicas, EvaluationOfNoRowsIsZero) {
  const Subject subject = pairs_subject();
  EXPECT_EQ(run({}, subject,
                [&](const Context&, Strategy& strategy) {
                  const Metric loss = strategy.evaluate(subject.data.slice(0, 0)).front();
                  EXPECT_EQ(loss.sum.item<double>(), 0);
                  EXPECT_EQ(loss.weight.item<double>(), 0);
                }),
            "no error");
}

TEST(Replicas, Bf16ComputesInHalfPrecisionAndKeepsFloatParameters) {
  const Subject subject = norms_subject();
  Training training;
  training.precision = "bf16";
  training.optimizer = "{name: sgd, lr: 0.1}";
  const Trajectory narrow = train({}, subject, training);
  training.precision = "fp32";
  const Trajectory wide = train({}, subject, training);
  EXPECT_EQ(narrow.final.at("parameter/blocks.0.linear.weight").scalar_type(), at::kFloat);
  const double worst = difference(narrow.final, wide.final).worst;
  EXPECT_GT(worst, 1e-6);
  EXPECT_LT(worst, 0.1);
}

}  // namespace
}  // namespace convoy::testing
