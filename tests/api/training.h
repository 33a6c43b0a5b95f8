// A plain program of LibTorch, and the same program with ranks, for tests of Replicas and Shards.
#pragma once
#include <ATen/ops/cross_entropy_loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "api/trained_impl.h"
#include "core/tensors/compare.h"
#include "tests/support/torch/jobs.h"
#include "tests/support/torch/random_tensors.h"
#include "tests/support/torch/state_view.h"

namespace convoy::testing {

constexpr double fp64_tolerance = 1e-12;

using State = std::map<std::string, at::Tensor>;
using OptimizerPtr = std::unique_ptr<torch::optim::Optimizer>;
using MakeOptimizer = std::function<OptimizerPtr(torch::nn::Module&)>;
using ModulePtr = std::shared_ptr<torch::nn::Module>;

// A module with a forward, for any class.
struct Net {
  ModulePtr module;
  std::function<at::Tensor(const at::Tensor&)> forward;
};

inline void fill(torch::nn::Module& module, uint64_t seed) {
  at::NoGradGuard no_grad;
  module.to(at::kDouble);
  for (auto& entry : module.named_parameters())
    entry.value().copy_(normal(entry.value().sizes(), entry.key(), seed) * 0.5);
}

// A layer that is used twice, one that no forward uses, a frozen one, and a parameter of the module itself.
struct OddModule : torch::nn::Module {
  OddModule() {
    scale = register_parameter("scale", at::ones({8}));
    first = register_module("first", torch::nn::Linear(6, 8));
    twice = register_module("twice", torch::nn::Linear(8, 8));
    unused = register_module("unused", torch::nn::Linear(3, 3));
    frozen = register_module("frozen", torch::nn::Linear(8, 8));
    last = register_module("last", torch::nn::Linear(8, 4));
    for (at::Tensor& parameter : frozen->parameters()) parameter.requires_grad_(false);
  }
  at::Tensor forward(const at::Tensor& input) {
    at::Tensor x = at::tanh(first->forward(input)) * scale;
    x = at::tanh(twice->forward(x));
    x = at::tanh(twice->forward(x)) + frozen->forward(x);
    return last->forward(x);
  }
  at::Tensor scale;
  torch::nn::Linear first{nullptr}, twice{nullptr}, unused{nullptr}, frozen{nullptr}, last{nullptr};
};

inline Net odd_net(uint64_t seed = 1) {
  auto module = std::make_shared<OddModule>();
  fill(*module, seed);
  return {module, [module](const at::Tensor& input) { return module->forward(input); }};
}

inline torch::nn::Sequential layers() {
  return torch::nn::Sequential(torch::nn::Linear(6, 8), torch::nn::Tanh(), torch::nn::Linear(8, 7), torch::nn::Tanh(),
                               torch::nn::Linear(7, 4));
}

inline Net sequential_net(uint64_t seed = 1) {
  torch::nn::Sequential module = layers();
  fill(*module, seed);
  return {module.ptr(), [module](const at::Tensor& input) mutable { return module->forward(input); }};
}

// Rows of each global batch; a batch of two rows leaves some of three ranks without any.
struct Schedule {
  std::vector<int64_t> batches{16, 5, 2, 1, 16, 7, 16, 3};
  int64_t accumulate = 1;  // backwards for each update
  double clip_norm = 0;
};

struct Rows {
  at::Tensor input, target;
  int64_t count() const { return input.size(0); }
  Rows slice(int64_t begin, int64_t end) const { return {input.slice(0, begin, end), target.slice(0, begin, end)}; }
};
inline Rows batch_of(int64_t rows, size_t number) {
  return {normal({rows, 6}, "input", number), integers({rows}, "target", 4, number)};
}
inline at::Tensor loss_sum(const at::Tensor& output, const Rows& rows) {
  return at::cross_entropy_loss(output, rows.target, {}, at::Reduction::Sum);
}
inline Rows part_of(const Rows& rows, int64_t index, int64_t count) {
  const auto [begin, end] = share_of(rows.count(), index, count);
  return rows.slice(begin, end);
}

inline State parameters_of(torch::nn::Module& module) {
  State state;
  for (const auto& entry : module.named_parameters())
    state.emplace("parameter/" + entry.key(), entry.value().detach().clone());
  return state;
}

// One process without convoy.
inline State plain_program(const Net& net, const MakeOptimizer& make, const Schedule& schedule,
                           const std::function<void(torch::optim::Optimizer&, size_t)>& after = nullptr) {
  const OptimizerPtr optimizer = make(*net.module);
  for (size_t number = 0; number < schedule.batches.size(); ++number) {
    const Rows rows = batch_of(schedule.batches[number], number);
    optimizer->zero_grad();
    for (int64_t part = 0; part < schedule.accumulate; ++part) {
      const Rows mine = part_of(rows, part, schedule.accumulate);
      (loss_sum(net.forward(mine.input), mine) / double(rows.count())).backward();
    }
    if (schedule.clip_norm > 0) torch::nn::utils::clip_grad_norm_(net.module->parameters(), schedule.clip_norm);
    optimizer->step();
    if (after) after(*optimizer, number);
  }
  return parameters_of(*net.module);
}

// One step of a rank on its share.
inline StepReport step_on(Trained& trained, const std::function<at::Tensor(const at::Tensor&)>& forward,
                          const Rows& rows, int64_t rank, int64_t ranks, int64_t accumulate) {
  for (int64_t part = 0;; ++part) {
    const Rows mine = part_of(part_of(rows, part, accumulate), rank, ranks);
    const bool last = part + 1 == accumulate;
    if (mine.count() == 0) {
      if (last) return trained.step();
      trained.accumulate();
      continue;
    }
    const at::Tensor loss = loss_sum(forward(mine.input), mine);
    if (last) return trained.step(loss, mine.count());
    trained.accumulate(loss, mine.count());
  }
}

inline void steps_on(Job& job, Trained& trained, const std::function<at::Tensor(const at::Tensor&)>& forward,
                     const Schedule& schedule, size_t first = 0, size_t end = 1000) {
  for (size_t number = first; number < std::min(end, schedule.batches.size()); ++number)
    step_on(trained, forward, batch_of(schedule.batches[number], number), job.rank(), job.size(), schedule.accumulate);
}

// Returns the largest relative difference, and its position.
inline std::pair<double, std::string> worst_difference(const State& a, const State& b) {
  const std::vector<TensorDifference> all = compare(view_of(a), view_of(b));
  for (const TensorDifference& one : all) CONVOY_CHECK(one.fault.empty(), one.name, " ", one.fault);
  const TensorDifference* const worst = worst_of(all);
  CONVOY_CHECK(worst != nullptr, "there is nothing to compare");
  return {worst->relative, worst->kind + "/" + worst->name};
}

#define EXPECT_SAME(one, other, tolerance)                                    \
  do {                                                                        \
    const auto difference_ = ::convoy::testing::worst_difference(one, other); \
    EXPECT_LE(difference_.first, tolerance) << difference_.second;            \
  } while (false)

// --- Optimizers ---

inline std::vector<torch::optim::OptimizerParamGroup> two_groups(
    torch::nn::Module& module, std::unique_ptr<torch::optim::OptimizerOptions> biases) {
  std::vector<at::Tensor> weights, others;
  for (const auto& entry : module.named_parameters())
    (entry.key().find("bias") == std::string::npos ? weights : others).push_back(entry.value());
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(weights);
  groups.emplace_back(others, std::move(biases));
  return groups;
}

inline std::map<std::string, MakeOptimizer> optimizers() {
  using namespace torch::optim;
  std::map<std::string, MakeOptimizer> all;
  all["sgd"] = [](auto& net) { return std::make_unique<SGD>(net.parameters(), SGDOptions(0.1)); };
  all["sgd with momentum"] = [](auto& net) {
    return std::make_unique<SGD>(net.parameters(), SGDOptions(0.05).momentum(0.9).dampening(0.1).weight_decay(0.01));
  };
  all["adam"] = [](auto& net) {
    return std::make_unique<Adam>(net.parameters(), AdamOptions(3e-3).eps(1e-5).amsgrad(true));
  };
  all["adamw in groups"] = [](auto& net) {
    return std::make_unique<AdamW>(
        two_groups(net, std::make_unique<AdamWOptions>(AdamWOptions(1e-2).eps(1e-5).weight_decay(0))),
        AdamWOptions(3e-3).eps(1e-5).weight_decay(0.1));
  };
  all["adagrad"] = [](auto& net) {
    return std::make_unique<Adagrad>(net.parameters(), AdagradOptions(0.05).eps(1e-5).lr_decay(0.1));
  };
  all["rmsprop"] = [](auto& net) {
    return std::make_unique<RMSprop>(net.parameters(), RMSpropOptions(3e-3).eps(1e-4).momentum(0.5).centered(true));
  };
  return all;
}

}  // namespace convoy::testing
