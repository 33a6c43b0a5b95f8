// Replicas against a program without convoy, on one to four ranks.
#include <convoy/replicas.h>

#include <ATen/ops/isfinite.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/serialize.h>

#include <limits>
#include <sstream>

#include "tests/api/training.h"
#include "tests/support/errors.h"

namespace convoy::testing {
namespace {

using ::testing::HasSubstr;

struct Outcome {
  std::mutex mutex;
  State parameters;  // values of rank 0; equal on all ranks
  void add(int rank, State state) {
    const std::lock_guard<std::mutex> lock(mutex);
    SCOPED_TRACE(rank);
    if (parameters.empty()) parameters = state;
    EXPECT_SAME(state, parameters, 0);
  }
};

State trained_by_replicas(int ranks, const std::function<Net()>& make_net, const MakeOptimizer& make,
                          const Schedule& schedule, ReplicaOptions options = {}) {
  if (schedule.clip_norm > 0) options.clip_norm = schedule.clip_norm;
  Outcome outcome;
  test_jobs(ranks, [&](Job& job) {
    const Net net = make_net();
    if (job.rank() > 0) fill(*net.module, 99);  // rank 0's values count
    const OptimizerPtr optimizer = make(*net.module);
    Replicas replicas(job, *net.module, *optimizer, options);
    steps_on(job, replicas, net.forward, schedule);
    outcome.add(job.rank(), parameters_of(*net.module));
  });
  return outcome.parameters;
}

TEST(Replicas, MatchAProgramWithoutConvoy) {
  for (const auto& [name, make] : optimizers())
    for (int ranks : {1, 2, 3, 4}) {
      SCOPED_TRACE(name + " on " + std::to_string(ranks));
      const State plain = plain_program(odd_net(), make, {});
      EXPECT_SAME(trained_by_replicas(ranks, [] { return odd_net(); }, make, {}), plain, fp64_tolerance);
      EXPECT_GT(worst_difference(plain, parameters_of(*odd_net().module)).first, 3e-3);
    }
}

TEST(Replicas, KeepAModuleThatAPointerOwns) {
  test_jobs(2, [&](Job& job) {
    Net net = odd_net();
    const OptimizerPtr optimizer = optimizers().begin()->second(*net.module);
    Replicas replicas(job, *net.module, *optimizer);
    steps_on(job, replicas, net.forward, {});
    const std::weak_ptr<torch::nn::Module> kept = net.module;
    net = Net();
    ASSERT_FALSE(kept.expired());
    EXPECT_FALSE(parameters_of(replicas.module()).empty());
  });
}

TEST(Replicas, AccumulateAndClipLikeAProgramWithoutConvoy) {
  Schedule schedule;
  schedule.batches = {16, 12, 9, 16, 5};
  schedule.accumulate = 3;
  schedule.clip_norm = 0.3;
  ReplicaOptions small;
  small.first_bucket_mb = small.bucket_cap_mb = 0.0004;
  for (const char* name : {"sgd", "adamw in groups"})
    for (int ranks : {2, 3, 4}) {
      SCOPED_TRACE(std::string(name) + " on " + std::to_string(ranks));
      const MakeOptimizer make = optimizers().at(name);
      EXPECT_SAME(trained_by_replicas(
                      ranks, [] { return odd_net(); }, make, schedule, small),
                  plain_program(odd_net(), make, schedule), fp64_tolerance);
    }
}

// A parameter has no gradient until a rank uses it, and then has one in each step.
TEST(Replicas, FindParametersUsedInLaterSteps) {
  const MakeOptimizer make = optimizers().at("sgd with momentum");
  const auto late = [](const OddModule& module, const at::Tensor& out, size_t number) {
    return number < 3 ? out : out + module.unused->weight.sum() * out;
  };
  const auto program = [&](const std::function<void(const std::shared_ptr<OddModule>&, size_t, const Rows&)>& step,
                           const std::shared_ptr<OddModule>& module) {
    for (size_t number = 0; number < 6; ++number) step(module, number, batch_of(8, number));
    return parameters_of(*module);
  };
  auto module = std::make_shared<OddModule>();
  fill(*module, 1);
  const OptimizerPtr optimizer = make(*module);
  const State plain = program(
      [&](const auto& net, size_t number, const Rows& rows) {
        optimizer->zero_grad();
        (loss_sum(late(*net, net->forward(rows.input), number), rows) / double(rows.count())).backward();
        optimizer->step();
      },
      module);
  test_jobs(2, [&](Job& job) {
    auto mine = std::make_shared<OddModule>();
    fill(*mine, 1);
    const OptimizerPtr own = make(*mine);
    Replicas replicas(job, *mine, *own);
    const State result = program(
        [&](const auto& net, size_t number, const Rows& rows) {
          const Rows share = part_of(rows, job.rank(), 2);
          replicas.step(loss_sum(late(*net, net->forward(share.input), number), share), share.count());
        },
        mine);
    EXPECT_SAME(result, plain, fp64_tolerance);
  });
}

TEST(Replicas, AcceptFusedOptimizers) {
  FusedOptimizer fused("adamw", 3e-3);
  fused.eps = 1e-5;
  fused.weight_decay = 0.1;
  fused.groups = {{"bias", 1e-2, 0.0}};
  // Use a module without unused layers: a fused optimizer gives their parameters gradients of zero.
  const State plain = plain_program(sequential_net(), optimizers().at("adamw in groups"), {});
  test_jobs(3, [&](Job& job) {
    const Net net = sequential_net();
    Replicas replicas(job, *net.module, fused);
    steps_on(job, replicas, net.forward, {});
    EXPECT_SAME(parameters_of(*net.module), plain, fp64_tolerance);
    EXPECT_EQ(replicas.learning_rate(), 3e-3);
    EXPECT_THROW(replicas.set_learning_rate(std::numeric_limits<double>::infinity()), Error);
    replicas.set_learning_rate(1e-4);
    EXPECT_EQ(replicas.learning_rate(), 1e-4);
    EXPECT_EQ(replicas.updates(), int64_t(Schedule().batches.size()));
  });
}

TEST(Replicas, FollowATorchScheduler) {
  const MakeOptimizer make = optimizers().at("adam");
  std::unique_ptr<torch::optim::StepLR> plain_scheduler;
  const State plain = plain_program(odd_net(), make, {}, [&](torch::optim::Optimizer& optimizer, size_t) {
    if (!plain_scheduler) plain_scheduler = std::make_unique<torch::optim::StepLR>(optimizer, 2, 0.5);
    plain_scheduler->step();
  });
  test_jobs(2, [&](Job& job) {
    const Net net = odd_net();
    const OptimizerPtr optimizer = make(*net.module);
    Replicas replicas(job, *net.module, *optimizer);
    torch::optim::StepLR scheduler(*optimizer, 2, 0.5);
    for (size_t number = 0; number < Schedule().batches.size(); ++number) {
      steps_on(job, replicas, net.forward, {}, number, number + 1);
      scheduler.step();
    }
    EXPECT_SAME(parameters_of(*net.module), plain, fp64_tolerance);
  });
}

// The weight of a step may be any number, not only rows.
TEST(Replicas, AcceptALossWeightTensor) {
  const MakeOptimizer make = optimizers().at("sgd");
  test_jobs(2, [&](Job& job) {
    const Net by_rows = odd_net(), by_weight = odd_net();
    const OptimizerPtr one = make(*by_rows.module), other = make(*by_weight.module);
    Replicas rows(job, *by_rows.module, *one), weights(job, *by_weight.module, *other);
    const Rows mine = part_of(batch_of(7, 0), job.rank(), 2);
    rows.step(loss_sum(by_rows.forward(mine.input), mine), mine.count());
    weights.step(loss_sum(by_weight.forward(mine.input), mine) * 0.25,
                 at::full({}, 0.25 * double(mine.count()), at::kFloat));
    EXPECT_SAME(parameters_of(*by_weight.module), parameters_of(*by_rows.module), fp64_tolerance);
  });
}

TEST(Replicas, StartWithTheBuffersOfRank0AndFollowThem) {
  for (const char* buffers : {"broadcast", "mean", "local"}) {
    SCOPED_TRACE(buffers);
    std::vector<at::Tensor> means(2);
    test_jobs(2, [&](Job& job) {
      torch::nn::Sequential net(torch::nn::Linear(6, 4), torch::nn::BatchNorm1d(4));
      fill(*net, 1);
      net->named_buffers()["1.running_mean"].fill_(job.rank() + 1);
      torch::optim::SGD sgd(net->parameters(), 0.1);
      ReplicaOptions options;
      options.buffers = buffers;
      Replicas replicas(job, *net, sgd, options);
      EXPECT_EQ(net->named_buffers()["1.running_mean"][0].item<double>(), 1);
      const Rows mine = part_of(batch_of(8, 0), job.rank(), 2);
      replicas.step(loss_sum(net->forward(mine.input), mine), mine.count());
      means[size_t(job.rank())] = net->named_buffers()["1.running_mean"].clone();
    });
    EXPECT_EQ(means[0].equal(means[1]), buffers != std::string("local"));
  }
}

// torch::load gives each tensor other memory and another gradient accumulator.
TEST(Replicas, TrainWhatTheProgramLoadsLater) {
  const auto make_net = [](uint64_t seed) {
    torch::nn::Sequential net(torch::nn::Linear(6, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 4));
    fill(*net, seed);
    return net;
  };
  // `late`: step after which the module is loaded; −1: before Replicas are made.
  const auto trained = [&](int ranks, int late) {
    State state;
    test_jobs(ranks, [&](Job& job) {
      std::stringstream saved;
      torch::save(make_net(2), saved);
      torch::nn::Sequential net = make_net(late < 0 ? 2 : 1);
      torch::optim::SGD sgd(net->parameters(), 0.1);
      ReplicaOptions options;
      options.buffers = "mean";
      Replicas replicas(job, *net, sgd, options);
      for (int step = 0; step < 6; ++step) {
        if (step == late) torch::load(net, saved);
        const Rows mine = part_of(batch_of(8, step), job.rank(), ranks);
        const StepReport report = replicas.step(loss_sum(net->forward(mine.input), mine), mine.count());
        EXPECT_GT(report.gradient_norm.item<double>(), 0) << step;
      }
      if (job.rank() != 0) return;
      state = parameters_of(*net);
      for (const auto& entry : net->named_buffers()) state["buffer/" + entry.key()] = entry.value().clone();
      strategy_of(replicas).visit_state([&](const StateEntry& entry) {
        if (entry.kind != StateKind::parameter) return;
        EXPECT_TRUE(entry.tensor.equal(state.at(entry.key()))) << entry.name;
      });
    });
    return state;
  };
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    EXPECT_SAME(trained(ranks, 0), trained(ranks, -1), 0);
    // Loads after some steps, when buckets have their layout. The replicas then train the loaded values.
    State again = trained(ranks, 5);
    for (auto entry = again.begin(); entry != again.end();)
      entry = entry->first.rfind("buffer/", 0) == 0 ? again.erase(entry) : std::next(entry);
    EXPECT_GT(worst_difference(again, parameters_of(*make_net(2))).first, 1e-3);
  }
}

TEST(ReplicasErrors, NameAParameterThatIsFrozenOrUnfrozenLater) {
  for (const bool frozen : {false, true})
    test_jobs(2, [&](Job& job) {
      torch::nn::Sequential net(torch::nn::Linear(3, 3), torch::nn::Linear(3, 1));
      const at::Tensor weight = net->parameters().front();
      weight.set_requires_grad(!frozen);
      torch::optim::SGD sgd(net->parameters(), 0.1);
      Replicas replicas(job, *net, sgd);
      const auto step = [&] { replicas.step(net->forward(at::ones({2, 3})).sum(), 2); };
      step();
      weight.set_requires_grad(frozen);
      const std::string error = message_of(step, Failure::config);
      EXPECT_THAT(error, HasSubstr("step ")) << frozen;
      EXPECT_THAT(error, HasSubstr("0.weight")) << frozen;
      EXPECT_THAT(error, HasSubstr("a learning rate of 0 while it is frozen")) << frozen;
    });
}

TEST(ReplicasErrors, RefuseAModuleThatChangedItsType) {
  test_jobs(1, [&](Job& job) {
    torch::nn::Linear net(3, 1);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    Replicas replicas(job, *net, sgd);
    net->to(at::kDouble);
    const std::string error = message_of(
        [&] {
          replicas.step(net(at::ones({2, 3}, at::kDouble)).sum(), 2);
        },
        Failure::config);
    EXPECT_THAT(error, HasSubstr("weight was Float [1, 3] on cpu and is now Double"));
  });
}

TEST(Replicas, ComputeInHalfPrecision) {
  for (const char* precision : {"bf16", "fp16"}) {
    SCOPED_TRACE(precision);
    test_jobs(2, [&](Job& job) {
      Net net = sequential_net();
      net.module->to(at::kFloat);
      torch::optim::Adam adam(net.module->parameters(), 1e-2);
      ReplicaOptions options;
      options.precision = precision;
      if (options.precision == "fp16") options.loss_scale.initial = 4294967296.0;
      Replicas replicas(job, *net.module, adam, options);
      double first = 0, last = 0;
      int64_t skipped = 0;
      for (int step = 0; step < 60; ++step) {
        Rows rows = part_of(batch_of(16, 0), job.rank(), 2);
        at::Tensor loss;
        {
          const Autocast autocast = replicas.autocast();
          const at::Tensor output = net.forward(rows.input.to(at::kFloat));
          EXPECT_EQ(output.scalar_type(), options.precision == "bf16" ? at::kBFloat16 : at::kHalf);
          loss = loss_sum(output.to(at::kFloat), rows);
        }
        const StepReport report = replicas.step(loss, rows.count());
        if (report.skipped.defined() && report.skipped.item<bool>()) ++skipped;
        (step == 0 ? first : last) = loss.item<double>();
      }
      EXPECT_LT(last, 0.5 * first);
      // The first loss scales are too large.
      EXPECT_EQ(skipped > 0, options.precision == "fp16");
      EXPECT_LT(skipped, 40);
    });
  }
}

// --- Errors ---

std::string error_on(int ranks, const std::function<void(Job&)>& body, const std::vector<std::string>& settings = {}) {
  return error_of([&] { test_jobs(ranks, body, settings); });
}

void make_replicas_of(Job& job, torch::nn::Module& module) {
  torch::optim::SGD sgd(module.parameters(), 0.1);
  Replicas replicas(job, module, sgd);
}

TEST(ReplicasErrors, NameParametersThatDiffer) {
  EXPECT_THAT(error_on(2, [](Job& job) { make_replicas_of(job, *torch::nn::Linear(4, 3 + job.rank())); }),
              HasSubstr("weight [3, 4] float on rank 0 and weight [4, 4] float on rank 1"));
  EXPECT_THAT(error_on(2,
                       [](Job& job) {
                         torch::nn::Sequential net(torch::nn::Linear(4, 3));
                         if (job.rank() == 1) net->push_back(torch::nn::Linear(3, 2));
                         make_replicas_of(job, *net);
                       }),
              HasSubstr("parameter 2 is no parameter on rank 0 and 1.weight"));
}

TEST(ReplicasErrors, NameTheRankWhoseLossIsNotFinite) {
  EXPECT_THAT(error_on(3,
                       [](Job& job) {
                         const Net net = sequential_net();
                         torch::optim::SGD sgd(net.module->parameters(), 0.1);
                         Replicas replicas(job, *net.module, sgd);
                         for (int step = 0; step < 4; ++step) {
                           const Rows rows = batch_of(4, 0);
                           at::Tensor loss = loss_sum(net.forward(rows.input), rows);
                           if (job.rank() == 1 && step == 2) loss = loss * std::nan("");
                           replicas.step(loss, rows.count());
                         }
                       }),
              HasSubstr("the loss of rank 1 is not finite at step 2"));
}

// Run::each_batch repeats a body whose update is part of the state already.
TEST(Replicas, MakeNoUpdateInSkippedCalls) {
  test_jobs(2, [](Job& job) {
    const Net net = sequential_net();
    torch::optim::Adam adam(net.module->parameters());
    Replicas replicas(job, *net.module, adam);
    steps_on(job, replicas, net.forward, {}, 0, 2);
    const State before = parameters_of(*net.module);
    int done = 0;
    replicas.impl().skip_calls(2, [&] { ++done; });
    const Rows rows = part_of(batch_of(8, 2), job.rank(), 2);
    replicas.accumulate(loss_sum(net.forward(rows.input), rows), rows.count());
    EXPECT_EQ(done, 0);
    const StepReport report = replicas.step(loss_sum(net.forward(rows.input), rows), rows.count());
    EXPECT_EQ(done, 1);
    EXPECT_TRUE(report.updated);
    EXPECT_TRUE(report.gradient_norm.isnan().item<bool>());
    EXPECT_SAME(before, parameters_of(*net.module), 0);
    EXPECT_EQ(replicas.updates(), 2);
    steps_on(job, replicas, net.forward, {}, 2, 3);
    EXPECT_EQ(replicas.updates(), 3);
  });
}

TEST(ReplicasErrors, EndARankThatTakesAnExtraStep) {
  const std::string error = error_on(2,
                                     [](Job& job) {
                                       const Net net = sequential_net();
                                       torch::optim::SGD sgd(net.module->parameters(), 0.1);
                                       Replicas replicas(job, *net.module, sgd);
                                       for (int step = 0; step < 3 + job.rank(); ++step) replicas.step();
                                     },
                                     {"launch.collective=2", "launch.rendezvous=2", "launch.heartbeat=2"});
  EXPECT_THAT(error, ::testing::AnyOf(HasSubstr("gradients, bucket 0"), HasSubstr("barrier")));
}

TEST(ReplicasErrors, ReportAStepThatTheProgramMade) {
  const auto error_with = [](const std::string& optimizer, bool before) {
    return error_on(1, [&](Job& job) {
      const Net net = odd_net();
      const OptimizerPtr made = optimizers().at(optimizer)(*net.module);
      const auto step_of_its_own = [&] {
        const Rows rows = batch_of(4, 0);
        loss_sum(net.forward(rows.input), rows).backward();
        made->step();
      };
      if (before) step_of_its_own();  // an optimizer may have a state before
      Replicas replicas(job, *net.module, *made);
      steps_on(job, replicas, net.forward, {}, 0, 2);
      if (!before) made->step();
      steps_on(job, replicas, net.forward, {}, 2, 4);
    });
  };
  for (const char* optimizer : {"adam", "adamw in groups", "adagrad", "rmsprop"}) {
    SCOPED_TRACE(optimizer);
    EXPECT_THAT(error_with(optimizer, false), HasSubstr("something else has called step() of the optimizer"));
    EXPECT_EQ(error_with(optimizer, true), "no error");
  }
}

TEST(ReplicasErrors, ExplainLossesThatAreNotSums) {
  const auto with_loss = [](const std::function<void(Replicas&, const at::Tensor&)>& use) {
    return error_on(1, [&](Job& job) {
      const Net net = sequential_net();
      torch::optim::SGD sgd(net.module->parameters(), 0.1);
      Replicas replicas(job, *net.module, sgd);
      use(replicas, net.forward(batch_of(4, 0).input));
    });
  };
  EXPECT_THAT(with_loss([](Replicas& one, const at::Tensor& out) { one.step(out.sum(1), 4); }),
              HasSubstr("step 0 of the program: the loss has shape [4] and must be one number, the sum over rows"));
  EXPECT_THAT(with_loss([](Replicas& one, const at::Tensor& out) { one.step(out.sum().detach(), 4); }),
              HasSubstr("it has no graph"));
  EXPECT_THAT(with_loss([](Replicas& one, const at::Tensor& out) { one.step(out.argmax(), 4); }),
              HasSubstr("must be of floating-point numbers"));
  EXPECT_THAT(with_loss([](Replicas& one, const at::Tensor& out) { one.step(out.sum(), -1); }),
              HasSubstr("has -1 rows"));
  EXPECT_THAT(with_loss([](Replicas& one, const at::Tensor& out) { one.step(out.sum(), out); }),
              HasSubstr("the weight has shape [4, 4]"));
  EXPECT_THAT(with_loss([](Replicas& one, const at::Tensor&) { one.set_learning_rate(1); }),
              HasSubstr("has a torch optimizer"));
}

TEST(ReplicasErrors, NameTheWrongOption) {
  const auto with_options = [](const std::function<void(ReplicaOptions&)>& change, FusedOptimizer fused) {
    return error_on(1, [&](Job& job) {
      ReplicaOptions options;
      change(options);
      Replicas replicas(job, *sequential_net().module, fused, options);
    });
  };
  const FusedOptimizer adam("adam");
  EXPECT_THAT(with_options([](auto& options) { options.sync.what = "parameter"; }, adam),
              HasSubstr("ReplicaOptions: sync.what: is 'parameter', must be one of gradients, parameters, "
                        "diloco; did you mean parameters?"));
  EXPECT_THAT(with_options([](auto& options) { options.buffers = "rank0"; }, adam),
              HasSubstr("ReplicaOptions: buffers: "));
  EXPECT_THAT(with_options([](auto& options) { options.clip_norm = 0; }, adam),
              HasSubstr("ReplicaOptions: clip_norm: is 0.0, must be above 0"));
  EXPECT_THAT(with_options([](auto& options) { options.sync.start_after = 3; }, adam),
              HasSubstr("ReplicaOptions: sync.start_after: "));
  EXPECT_THAT(with_options([](auto& options) { options.precision = "fp16"; }, adam),
              HasSubstr("convert it with to(torch::kFloat)"));
  EXPECT_THAT(with_options([](auto&) {}, FusedOptimizer("adan")), HasSubstr("FusedOptimizer: name: "));
  FusedOptimizer sgd("sgd");
  sgd.eps = 1;
  EXPECT_THAT(with_options([](auto&) {}, sgd), HasSubstr("FusedOptimizer: eps: unknown key"));
}

TEST(ReplicasErrors, RefuseUnsupportedOptimizers) {
  EXPECT_THAT(error_on(1,
                       [](Job& job) {
                         const Net net = sequential_net(), other = sequential_net();
                         torch::optim::SGD sgd(other.module->parameters(), 0.1);
                         Replicas replicas(job, *net.module, sgd);
                       }),
              HasSubstr("group 0 of the optimizer holds a tensor [8, 6] that is no parameter of the module"));
  EXPECT_THAT(error_on(1,
                       [](Job& job) {
                         torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2));
                         net[1]->to(at::kDouble);
                         make_replicas_of(job, *net);
                       }),
              HasSubstr("parameter 0.weight has type Float, but 1.weight has Double"));
}

}  // namespace
}  // namespace convoy::testing
