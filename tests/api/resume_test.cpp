// State of Replicas and Shards: a checkpoint has everything that a run needs to continue bit for bit.
#include <convoy/replicas.h>
#include <convoy/shards.h>

#include <gmock/gmock.h>

#include "tests/api/training.h"

namespace convoy::testing {
namespace {

struct Layout {
  std::string name;
  int stage = 0;  // 0: replicas
  ReplicaOptions options = {};
};

std::vector<Layout> layouts() {
  ReplicaOptions local;
  local.sync.what = "parameters";
  local.sync.every = 3;
  ReplicaOptions diloco;
  diloco.sync.what = "diloco";
  diloco.sync.every = 2;
  ReplicaOptions compressed;
  compressed.sync.compress = "bf16";
  return {{"replicas"},   {"local", 0, local}, {"diloco", 0, diloco}, {"compressed", 0, compressed},
          {"stage 1", 1}, {"stage 2", 2},      {"stage 3", 3}};
}

std::unique_ptr<Trained> make_trained(Job& job, const Net& net, torch::optim::Optimizer& optimizer,
                                      const Layout& layout) {
  if (layout.stage == 0) return std::make_unique<Replicas>(job, *net.module, optimizer, layout.options);
  ShardOptions options;
  options.stage = layout.stage;
  return std::make_unique<Shards>(job, *net.module, optimizer, options);
}

std::function<at::Tensor(const at::Tensor&)> forward_of(Trained& trained, const Net& net, const Layout& layout) {
  if (layout.stage < 3) return net.forward;
  return [&trained](const at::Tensor& input) { return static_cast<Shards&>(trained).forward(input); };
}

State saved(Trained& trained) {
  Strategy& strategy = strategy_of(trained);
  State state;
  strategy.flush();
  strategy.visit_state([&](const StateEntry& entry) { state.emplace(entry.key(), entry.tensor.clone()); });
  trained.impl().continue_training();
  return state;
}

void restore(Trained& trained, const State& state) {
  Strategy& strategy = strategy_of(trained);
  at::NoGradGuard no_grad;
  strategy.visit_state([&](const StateEntry& entry) { at::Tensor(entry.tensor).copy_(state.at(entry.key())); });
  strategy.state_restored();
}

TEST(TrainedState, ContinuesBitForBit) {
  Schedule schedule;
  schedule.batches = {16, 5, 2, 12, 7, 1, 16, 3};
  for (const Layout& layout : layouts())
    for (const auto& [name, make] : optimizers()) {
      SCOPED_TRACE(layout.name + ", " + name);
      test_jobs(2, [&, &make = make](Job& job) {
        const auto make_net = [&](uint64_t seed) { return layout.stage == 3 ? sequential_net(seed) : odd_net(seed); };
        const Net net = make_net(1);
        const OptimizerPtr optimizer = make(*net.module);
        const auto whole = make_trained(job, net, *optimizer, layout);
        steps_on(job, *whole, forward_of(*whole, net, layout), schedule, 0, 5);
        const State half = saved(*whole);
        optimizer->param_groups()[0].options().set_lr(0.01);
        steps_on(job, *whole, forward_of(*whole, net, layout), schedule, 5);
        const State end = saved(*whole);

        const Net again = make_net(2);
        const OptimizerPtr fresh = make(*again.module);
        const auto resumed = make_trained(job, again, *fresh, layout);
        restore(*resumed, half);
        fresh->param_groups()[0].options().set_lr(0.01);
        steps_on(job, *resumed, forward_of(*resumed, again, layout), schedule, 5);
        EXPECT_SAME(saved(*resumed), end, 0);
      });
    }
}

// module.parameters() lists a tied parameter once for each of its names, and torch updates it as many times.
TEST(TrainedState, ContinuesBitForBitWithTiedParameters) {
  struct Tied : torch::nn::Module {
    Tied() {
      first = register_module("first", torch::nn::Linear(6, 6));
      last = register_module("last", torch::nn::Linear(6, 4));
      tied = register_parameter("tied", first->weight);
    }
    torch::nn::Linear first{nullptr}, last{nullptr};
    at::Tensor tied;
  };
  const auto make_net = [](uint64_t seed) {
    auto module = std::make_shared<Tied>();
    fill(*module, seed);
    return Net{module, [module](const at::Tensor& x) {
                 return module->last->forward(at::tanh(at::mm(at::tanh(module->first->forward(x)), module->tied)));
               }};
  };
  for (const Layout& layout : layouts())
    for (const auto& [name, make] : optimizers()) {
      if (layout.stage == 3) continue;
      SCOPED_TRACE(layout.name + ", " + name);
      test_jobs(2, [&, &make = make](Job& job) {
        const Net net = make_net(1), again = make_net(2);
        ASSERT_EQ(net.module->parameters().size(), 5u);
        ASSERT_TRUE(net.module->named_parameters()["tied"].is_same(net.module->named_parameters()["first.weight"]));
        const OptimizerPtr optimizer = make(*net.module), fresh = make(*again.module);
        const auto whole = make_trained(job, net, *optimizer, layout);
        steps_on(job, *whole, net.forward, {}, 0, 4);
        const State half = saved(*whole);
        steps_on(job, *whole, net.forward, {}, 4);
        const auto resumed = make_trained(job, again, *fresh, layout);
        restore(*resumed, half);
        steps_on(job, *resumed, again.forward, {}, 4);
        EXPECT_SAME(saved(*resumed), saved(*whole), 0);
      });
    }
}

// Checkpoints of a fused Adam have no separate counts for each parameter.
TEST(TrainedState, LoadsAFusedOptimizersStateIntoTorch) {
  const State end = [] {
    State state;
    test_jobs(1, [&](Job& job) {
      const Net net = sequential_net();
      torch::optim::Adam adam(net.module->parameters(), 1e-2);
      Replicas replicas(job, *net.module, adam);
      steps_on(job, replicas, net.forward, {});
      state = parameters_of(*net.module);
    });
    return state;
  }();
  test_jobs(1, [&](Job& job) {
    const Net net = sequential_net();
    Replicas fused(job, *net.module, FusedOptimizer("adam", 1e-2));
    steps_on(job, fused, net.forward, {}, 0, 4);
    const State half = saved(fused);
    const Net again = sequential_net(2);
    torch::optim::Adam adam(again.module->parameters(), 1e-2);
    Replicas replicas(job, *again.module, adam);
    at::NoGradGuard no_grad;
    strategy_of(replicas).visit_state([&](const StateEntry& entry) {
      if (const auto found = half.find(entry.key()); found != half.end()) at::Tensor(entry.tensor).copy_(found->second);
    });
    strategy_of(replicas).state_restored();
    at::AutoGradMode with_graph(true);
    steps_on(job, replicas, again.forward, {}, 4);
    EXPECT_SAME(parameters_of(*again.module), end, 1e-12);
  });
}

// The learning rates of the groups are part of the state, for schedulers that compute the next one from the current.
TEST(TrainedState, ContainsTheLearningRates) {
  test_jobs(1, [&](Job& job) {
    const MakeOptimizer make = optimizers().at("adamw in groups");
    const Net net = sequential_net(), again = sequential_net();
    const OptimizerPtr one = make(*net.module), other = make(*again.module);
    Replicas replicas(job, *net.module, *one), resumed(job, *again.module, *other);
    one->param_groups()[1].options().set_lr(0.125);
    restore(resumed, saved(replicas));
    EXPECT_EQ(other->param_groups()[0].options().get_lr(), 3e-3);
    EXPECT_EQ(other->param_groups()[1].options().get_lr(), 0.125);
  });
}

// A program may keep a second module and its optimizer in archives of torch, and load them into its Replicas.
TEST(TrainedState, IsTakenOverFromArchivesThatTheProgramLoads) {
  const auto text_of = [](const Net& net, torch::optim::Optimizer& optimizer) {
    torch::serialize::OutputArchive all, state;
    net.module->save(all);
    optimizer.save(state);
    all.write("optimizer", state);
    std::ostringstream text;
    all.save_to(text);
    return text.str();
  };
  const auto load = [](const std::string& text, const Net& net, torch::optim::Optimizer& optimizer) {
    std::istringstream stream(text);
    torch::serialize::InputArchive all, state;
    all.load_from(stream);
    net.module->load(all);
    all.read("optimizer", state);
    optimizer.load(state);
  };
  for (const auto& [name, make] : optimizers()) {
    SCOPED_TRACE(name);
    test_jobs(2, [&, &make = make](Job& job) {
      const Net net = sequential_net(), fresh = sequential_net(), used = sequential_net();
      const OptimizerPtr one = make(*net.module), second = make(*fresh.module), third = make(*used.module);
      Replicas replicas(job, *net.module, *one), loaded(job, *fresh.module, *second),
          replaced(job, *used.module, *third);
      steps_on(job, replicas, net.forward, {}, 0, 4);
      const std::string text = text_of(net, *one);
      steps_on(job, replicas, net.forward, {}, 4, 8);
      load(text, fresh, *second);
      steps_on(job, loaded, fresh.forward, {}, 4, 8);
      EXPECT_SAME(parameters_of(*fresh.module), parameters_of(*net.module), 1e-12);
      // Replaces a state that other steps have made. A save directly afterwards stores the loaded state.
      steps_on(job, replaced, used.forward, {}, 0, 3);
      load(text, used, *third);
      replaced.impl().adopt_loaded();  // as a save does
      steps_on(job, replaced, used.forward, {}, 4, 8);
      EXPECT_SAME(parameters_of(*used.module), parameters_of(*net.module), 1e-12);
    });
  }
}

// While an Evaluation lives, ranks with local updates have their mean.
TEST(TrainedState, EvaluatesTheMeanUnderLocalTraining) {
  test_jobs(2, [&](Job& job) {
    const Net net = sequential_net();
    torch::optim::SGD sgd(net.module->parameters(), 0.1);
    ReplicaOptions options;
    options.sync.what = "parameters";
    options.sync.every = 100;
    Replicas replicas(job, *net.module, sgd, options);
    steps_on(job, replicas, net.forward, {{8, 8, 8}});
    const auto spread = [&] {
      at::Tensor weight = net.module->parameters().front().detach().clone(), sum = weight.clone();
      job.world()->all_reduce(sum, ReduceOp::sum, {"sum", {}})->wait();
      return (sum / 2 - weight).abs().max().item<double>();
    };
    const State own = parameters_of(*net.module);
    EXPECT_GT(spread(), 1e-4);
    {
      const Evaluation evaluation = replicas.evaluation();
      EXPECT_FALSE(net.module->is_training());
      EXPECT_LE(spread(), 1e-15);
    }
    EXPECT_TRUE(net.module->is_training());
    EXPECT_SAME(parameters_of(*net.module), own, 0);
    steps_on(job, replicas, net.forward, {{8}});
  });
}

}  // namespace
}  // namespace convoy::testing
