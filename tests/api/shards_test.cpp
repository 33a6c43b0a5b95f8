// Shards against a program without convoy, and against Replicas.
#include <convoy/replicas.h>
#include <convoy/shards.h>

#include <gmock/gmock.h>
#include <torch/serialize.h>

#include <sstream>

#include "tests/api/training.h"
#include "tests/support/errors.h"
#include "tests/support/torch/whole_state.h"

namespace convoy::testing {
namespace {

using ::testing::HasSubstr;

ShardOptions stage(int number) {
  ShardOptions options;
  options.stage = number;
  return options;
}

// The state of all ranks after training, without gradients, as in a checkpoint.
template <class MakeTrained>
State trained_state(int ranks, const std::function<Net()>& make_net, const Schedule& schedule,
                    const MakeTrained& make_trained) {
  WholeState whole;
  test_jobs(ranks, [&](Job& job) {
    const Net net = make_net();
    if (job.rank() > 0) fill(*net.module, 99);  // rank 0's values count
    make_trained(job, net, [&](Trained& trained, const std::function<at::Tensor(const at::Tensor&)>& forward) {
      steps_on(job, trained, forward, schedule);
      strategy_of(trained).visit_state([&](const StateEntry& entry) { whole.add(entry); });
    });
  });
  return whole.tensors();
}

State by_shards(int ranks, const std::function<Net()>& make_net, const MakeOptimizer& make, const Schedule& schedule,
                ShardOptions options) {
  if (schedule.clip_norm > 0) options.clip_norm = schedule.clip_norm;
  return trained_state(ranks, make_net, schedule, [&](Job& job, const Net& net, const auto& use) {
    const OptimizerPtr optimizer = make(*net.module);
    Shards shards(job, *net.module, *optimizer, options);
    if (options.stage < 3) return use(shards, net.forward);
    use(shards, [&](const at::Tensor& input) { return shards.forward(input); });
  });
}

State by_replicas(int ranks, const std::function<Net()>& make_net, const MakeOptimizer& make,
                  const Schedule& schedule) {
  ReplicaOptions options;
  if (schedule.clip_norm > 0) options.clip_norm = schedule.clip_norm;
  return trained_state(ranks, make_net, schedule, [&](Job& job, const Net& net, const auto& use) {
    const OptimizerPtr optimizer = make(*net.module);
    Replicas replicas(job, *net.module, *optimizer, options);
    use(replicas, net.forward);
  });
}

State trained_parameters(const State& state, const State& plain) {
  State parameters;
  for (const auto& entry : plain) parameters.emplace(entry.first, state.at(entry.first));
  return parameters;
}

TEST(Shards, MatchAProgramWithoutConvoy) {
  for (int number : {1, 2, 3})
    for (const auto& [name, make] : optimizers())
      for (int ranks : {1, 2, 3}) {
        SCOPED_TRACE(name + ", stage " + std::to_string(number) + " on " + std::to_string(ranks));
        const auto net = [number] { return number == 3 ? sequential_net() : odd_net(); };
        const State plain = plain_program(net(), make, {});
        EXPECT_SAME(trained_parameters(by_shards(ranks, net, make, {}, stage(number)), plain), plain, fp64_tolerance);
      }
}

// Moments and counters have the same names too, so that each reads the checkpoints of the others.
TEST(Shards, HaveTheSameStateAsReplicas) {
  for (int number : {1, 2, 3})
    for (const char* name : {"adam", "sgd with momentum", "adagrad"}) {
      SCOPED_TRACE(std::string(name) + ", stage " + std::to_string(number));
      const auto net = [number] { return number == 3 ? sequential_net() : odd_net(); };
      const MakeOptimizer make = optimizers().at(name);
      EXPECT_SAME(by_shards(3, net, make, {}, stage(number)), by_replicas(2, net, make, {}), fp64_tolerance);
    }
}

TEST(Shards, AccumulateAndClipLikeAProgramWithoutConvoy) {
  Schedule schedule;
  schedule.batches = {16, 12, 9, 16, 5};
  schedule.accumulate = 3;
  schedule.clip_norm = 0.3;
  for (int number : {1, 2, 3})
    for (bool overlap : {true, false}) {
      SCOPED_TRACE("stage " + std::to_string(number));
      const auto net = [number] { return number == 3 ? sequential_net() : odd_net(); };
      const MakeOptimizer make = optimizers().at("adamw in groups");
      ShardOptions options = stage(number);
      options.overlap = overlap;
      const State plain = plain_program(net(), make, schedule);
      EXPECT_SAME(trained_parameters(by_shards(4, net, make, schedule, options), plain), plain, fp64_tolerance);
    }
}

// One of three ranks has no rows in any of the 24 steps. The first steps also measure overlap.
TEST(Shards, LetARankWithoutRowsSkipItsForward) {
  Schedule schedule;
  schedule.batches.assign(24, 2);
  for (int number : {1, 2, 3}) {
    SCOPED_TRACE("stage " + std::to_string(number));
    const MakeOptimizer make = optimizers().at("adam");
    const State plain = plain_program(sequential_net(), make, schedule);
    EXPECT_SAME(trained_parameters(by_shards(
                                       3, [] { return sequential_net(); }, make, schedule, stage(number)),
                                   plain),
                plain, fp64_tolerance);
  }
}

TEST(Shards, AcceptFusedOptimizers) {
  FusedOptimizer fused("adamw", 3e-3);
  fused.eps = 1e-5;
  fused.weight_decay = 0.1;
  fused.groups = {{"bias", 1e-2, 0.0}};
  const State plain = plain_program(sequential_net(), optimizers().at("adamw in groups"), {});
  for (int number : {1, 2, 3}) {
    const State state = trained_state(
        2, [] { return sequential_net(); }, {},
        [&](Job& job, const Net& net, const auto& use) {
          Shards shards(job, *net.module, fused, stage(number));
          if (number < 3) return use(shards, net.forward);
          use(shards, [&](const at::Tensor& input) { return shards.forward(input); });
        });
    EXPECT_SAME(trained_parameters(state, plain), plain, fp64_tolerance);
  }
}

TEST(Shards, FreeParametersBetweenStepsInStage3) {
  test_jobs(2, [](Job& job) {
    const Net net = sequential_net();
    torch::optim::Adam adam(net.module->parameters());
    Shards shards(job, *net.module, adam);
    const at::Tensor weight = net.module->named_parameters()["2.weight"];
    EXPECT_EQ(weight.storage().data(), nullptr);
    const Rows rows = part_of(batch_of(8, 0), job.rank(), 2);
    const at::Tensor loss = loss_sum(shards.forward(rows.input), rows);
    shards.step(loss, rows.count());
    EXPECT_EQ(weight.storage().data(), nullptr);
    // The optimizer holds this rank's pieces.
    int64_t held = 0, whole = 0;
    for (const at::Tensor& piece : adam.param_groups()[0].params()) held += piece.numel();
    for (const at::Tensor& parameter : net.module->parameters()) whole += parameter.numel();
    EXPECT_EQ(job.sum(double(held)).value, double(whole));
    net.module->eval();
    EXPECT_FALSE(shards.forward(rows.input).requires_grad());
  });
}

TEST(Shards, ComputeInHalfPrecision) {
  for (const char* precision : {"bf16", "fp16"})
    for (int number : {1, 2, 3}) {
      SCOPED_TRACE(std::string(precision) + ", stage " + std::to_string(number));
      test_jobs(2, [&](Job& job) {
        const Net net = sequential_net();
        net.module->to(at::kFloat);
        torch::optim::Adam adam(net.module->parameters(), 1e-2);
        ShardOptions options = stage(number);
        options.precision = precision;
        Shards shards(job, *net.module, adam, options);
        double first = 0, last = 0;
        for (int step = 0; step < 60; ++step) {
          const Rows rows = part_of(batch_of(16, 0), job.rank(), 2);
          const at::Tensor loss = loss_sum(shards.forward(rows.input.to(at::kFloat)).to(at::kFloat), rows);
          shards.step(loss, rows.count());
          (step == 0 ? first : last) = loss.item<double>();
        }
        EXPECT_LT(last, 0.5 * first);
      });
    }
}

TEST(ShardsErrors, ExplainTheInputsOfStage3) {
  EXPECT_THAT(error_of([] {
                test_jobs(1, [](Job& job) {
                  const Net net = odd_net();
                  torch::optim::SGD sgd(net.module->parameters(), 0.1);
                  Shards shards(job, *net.module, sgd);
                });
              }),
              HasSubstr("ShardOptions: stage: is 3, which needs a torch::nn::Sequential"));
  EXPECT_THAT(error_of([] {
                test_jobs(1, [](Job& job) {
                  const Net net = odd_net();
                  torch::optim::SGD sgd(net.module->parameters(), 0.1);
                  Shards shards(job, *net.module, sgd, stage(2));
                  shards.forward(batch_of(2, 0).input);
                });
              }),
              HasSubstr("call forward of the module itself"));
  EXPECT_THAT(error_of([] {
                test_jobs(1, [](Job& job) {
                  const Net net = odd_net();
                  Shards shards(job, *net.module, FusedOptimizer("adam"), stage(4));
                });
              }),
              HasSubstr("stage: is 4, must be 1, 2 or 3"));
  EXPECT_THAT(error_of([] {
                test_jobs(1, [](Job& job) {
                  const Net net = odd_net();
                  ShardOptions options = stage(2);
                  options.reshard_after_forward = false;
                  Shards shards(job, *net.module, FusedOptimizer("adam"), options);
                });
              }),
              HasSubstr("ShardOptions: reshard_after_forward: needs stage 3"));
}

TEST(ShardsErrors, RefuseAModuleThatWasLoadedLater) {
  test_jobs(2, [&](Job& job) {
    torch::nn::Sequential net = layers();
    std::stringstream saved;
    torch::save(net, saved);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    Shards shards(job, *net, sgd, stage(2));
    torch::load(net, saved);
    const std::string error = message_of(
        [&] {
          shards.step(net->forward(at::ones({2, 6})).sum(), 2);
        },
        Failure::config);
    EXPECT_THAT(error, HasSubstr("load the module before Shards is made"));
  });
}

TEST(ShardsErrors, NameParametersThatDiffer) {
  EXPECT_THAT(error_of([] {
                test_jobs(2, [](Job& job) {
                  torch::nn::Sequential net(torch::nn::Linear(4, 3 + job.rank()));
                  Shards shards(job, *net, FusedOptimizer("adam"), stage(1 + job.rank()));
                });
              }),
              HasSubstr("0.weight [3, 4] float on rank 0 and 0.weight [4, 4] float on rank 1"));
}

}  // namespace
}  // namespace convoy::testing
