// Optimizers compared with torch::optim, their three paths with each other, members, and refusals.
#include "core/optim/optimizer.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/logspace.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <limits>

#include "core/base/error.h"
#include "core/optim/catalogue/catalogue.h"
#include "core/optim/dense.h"
#include "tests/core/optim/optimizers.h"

namespace convoy {
namespace {

// Gradients of very different sizes, as in a model; in a different order at each step.
at::Tensor gradient_of(int64_t n, int64_t step, at::ScalarType dtype) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
  const at::Tensor base = at::randn({997}, generator, at::kDouble) * at::logspace(-4, 1, 997, 10, at::kDouble);
  return base.repeat({n / 997 + 1}).slice(0, 0, n).roll(37 * step).to(dtype);
}

struct Case {
  const char* name;
  Component optimizer;
  double weight_decay;
  std::function<std::unique_ptr<torch::optim::Optimizer>(at::Tensor)> peer;
};

// The L2 term is small. With a gradient of its size the sum could be only a rounding error, from which Adam makes a
// full step: fp32 then differs from fp64 by 2e-3, in torch too.
std::vector<Case> cases() {
  using torch::optim::AdamOptions, torch::optim::AdamWOptions, torch::optim::SGDOptions;
  const auto adam_peer = [](double decay) {
    return [=](at::Tensor p) {
      return std::make_unique<torch::optim::Adam>(std::vector<at::Tensor>{p}, AdamOptions(0.01).weight_decay(decay));
    };
  };
  const auto sgd_peer = [](double momentum, bool nesterov, double decay) {
    return [=](at::Tensor p) {
      return std::make_unique<torch::optim::SGD>(
          std::vector<at::Tensor>{p}, SGDOptions(0.01).momentum(momentum).nesterov(nesterov).weight_decay(decay));
    };
  };
  return {{"adam", adam("adam"), 0, adam_peer(0)},
          {"adam_l2", adam("adam"), 0.001, adam_peer(0.001)},
          {"adamw", adam("adamw"), 0.1,
           [](at::Tensor p) {
             return std::make_unique<torch::optim::AdamW>(std::vector<at::Tensor>{p},
                                                          AdamWOptions(0.01).weight_decay(0.1));
           }},
          {"sgd", sgd(0, false), 0.1, sgd_peer(0, false, 0.1)},
          {"momentum", sgd(0.9, false), 0.1, sgd_peer(0.9, false, 0.1)},
          {"nesterov", sgd(0.9, true), 0.1, sgd_peer(0.9, true, 0.1)}};
}

// Relative to the value if that is above 1.
double worst(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
  return ((x - y).abs() / y.abs().clamp_min(1)).max().item<double>();
}

TEST(Optimizers, MatchTorchAfterAHundredSteps) {
  constexpr int64_t n = 10001;  // no multiple of a vector
  for (auto [dtype, tolerance] : {std::pair{at::kFloat, 1e-6}, std::pair{at::kDouble, 1e-12}}) {
    for (const Case& one : cases()) {
      at::Tensor values = at::linspace(-1, 1, n, dtype);
      at::Tensor peer_values = values.clone().requires_grad_();
      const auto peer = one.peer(peer_values);
      const auto optimizer = make_optimizer(one.optimizer);
      const int slot = optimizer->add_slot(values, {1, 1, one.weight_decay});
      for (int64_t step = 1; step <= 100; ++step) {
        const at::Tensor gradient = gradient_of(n, step, dtype);
        peer_values.mutable_grad() = gradient.clone();
        peer->step();
        optimizer->update(slot, {gradient, {}, {}}, scalars(0.01, step));
      }
      EXPECT_LE(worst(values, peer_values.detach()), tolerance) << one.name << " " << dtype;
      EXPECT_GT(worst(values, at::linspace(-1, 1, n, dtype)), 1e-3) << one.name << " did not move";
    }
  }
}

TEST(Optimizers, LoopsAndTensorOperationsAgree) {
  // The path of CUDA, members and half precision, compared with the path of the CPU.
  struct Expose : DenseOptimizer {
    using DenseOptimizer::tensors;
  };
  for (const Case& one : cases()) {
    constexpr int64_t members = 3, n = 1000;
    at::Tensor values = at::linspace(-1, 1, members * n, at::kDouble).reshape({members, n});
    at::Tensor other = values.clone();
    const auto loops = make_optimizer(one.optimizer), rows = make_optimizer(one.optimizer);
    const int slot = loops->add_slot(values, {members, 0.5, one.weight_decay});
    const std::vector<double> decays{one.weight_decay, 0, one.weight_decay / 2};
    loops->set_weight_decays(slot, decays);
    std::vector<at::Tensor> moments;
    for (const auto& named : rows->moments(rows->add_slot(other, {members, 0.5, one.weight_decay}))) {
      moments.push_back(named.second);
    }
    for (int64_t step = 1; step <= 5; ++step) {
      const at::Tensor gradient = gradient_of(members * n, step, at::kDouble).reshape({members, n});
      UpdateScalars given{at::tensor({0.1, 0.2, 0.3}, at::kDouble), at::full({members}, step, at::kLong),
                          at::tensor({1.0, 0.5, 2.0}, at::kDouble), at::full({members}, true, at::kBool)};
      loops->update(slot, {gradient, {}, {}}, given);
      const auto column = [](const at::Tensor& t) { return t.to(at::kDouble).reshape({-1, 1}); };
      (static_cast<DenseOptimizer*>(rows.get())->*&Expose::tensors)(
          other, gradient, moments, {members, 0.5, one.weight_decay},
          {column(given.learning_rate) * 0.5, column(given.step), column(given.gradient_scale),
           column(at::tensor(decays, at::kDouble))});
    }
    EXPECT_LE(worst(values, other), 1e-13) << one.name;
    const auto shown = loops->moments(slot);
    ASSERT_EQ(shown.size(), moments.size());
    for (size_t i = 0; i < moments.size(); ++i) EXPECT_LE(worst(shown[i].second, moments[i]), 1e-13) << one.name;
  }
}

TEST(Optimizers, MembersEqualModelsTrainedAlone) {
  constexpr int64_t members = 3, n = 70000;
  for (const Case& one : cases()) {
    at::Tensor stacked = at::linspace(-1, 1, members * n, at::kFloat).reshape({members, n});
    const at::Tensor start = stacked.clone();
    const auto together = make_optimizer(one.optimizer);
    const int slot = together->add_slot(stacked, {members, 1, one.weight_decay});
    const at::Tensor rates = at::tensor({0.01, 0.02, 0.03}, at::kDouble);
    const std::vector<double> decays{one.weight_decay, 0, one.weight_decay / 2};
    together->set_weight_decays(slot, decays);
    const auto gradient = [&](int64_t step) {
      return gradient_of(members * n, step, at::kFloat).reshape({members, n});
    };
    for (int64_t step = 1; step <= 3; ++step) {
      // The second member skips the second step.
      together->update(slot, {gradient(step), {}, {}},
                       {rates, at::tensor({step, step > 1 ? step - 1 : step, step}, at::kLong),
                        at::ones({1}, at::kDouble), at::tensor({1, step == 2 ? 0 : 1, 1}).to(at::kBool)});
    }
    for (int64_t m = 0; m < members; ++m) {
      at::Tensor alone = start[m].clone();
      const auto own = make_optimizer(one.optimizer);
      const int index = own->add_slot(alone, {1, 1, decays[size_t(m)]});
      int64_t applied = 0;
      for (int64_t step = 1; step <= 3; ++step) {
        if (m == 1 && step == 2) continue;
        own->update(index, {gradient(step)[m].contiguous(), {}, {}}, scalars(rates[m].item<double>(), ++applied));
      }
      EXPECT_TRUE(alone.equal(stacked[m])) << one.name << " member " << m;
    }
  }
}

TEST(Optimizers, ScaleMultipliesGradients) {
  for (const Case& one : cases()) {
    at::Tensor a = at::linspace(-1, 1, 5000, at::kDouble), b = a.clone();
    const auto x = make_optimizer(one.optimizer), y = make_optimizer(one.optimizer);
    const int slot = x->add_slot(a, {1, 1, one.weight_decay});
    y->add_slot(b, {1, 1, one.weight_decay});
    x->update(slot, {gradient_of(5000, 1, at::kDouble) * 0.25, {}, {}}, scalars(0.1, 1));
    y->update(slot, {gradient_of(5000, 1, at::kDouble), {}, {}}, scalars(0.1, 1, 0.25));
    EXPECT_TRUE(a.equal(b)) << one.name;
  }
}

TEST(Optimizers, SkipAnUpdateOnRequest) {
  for (const Case& one : cases()) {
    at::Tensor values = at::linspace(-1, 1, 5000, at::kFloat);
    const auto optimizer = make_optimizer(one.optimizer);
    const int slot = optimizer->add_slot(values, {1, 1, one.weight_decay});
    optimizer->update(slot, {gradient_of(5000, 1, at::kFloat), {}, {}}, scalars(0.1, 1));
    const at::Tensor before = values.clone();
    std::vector<at::Tensor> moments_before;
    for (const auto& named : optimizer->moments(slot)) moments_before.push_back(named.second.clone());
    optimizer->update(slot, {at::full({5000}, NAN, at::kFloat), {}, {}}, scalars(0.1, 2, 1, false));
    EXPECT_TRUE(values.equal(before)) << one.name;
    for (size_t i = 0; i < moments_before.size(); ++i) {
      EXPECT_TRUE(optimizer->moments(slot)[i].second.equal(moments_before[i])) << one.name;
    }
  }
}

TEST(Optimizers, HalfPrecisionKeepsFloatMoments) {
  for (auto dtype : {at::kBFloat16, at::kHalf}) {
    for (const Case& one : cases()) {
      at::Tensor half = at::linspace(-1, 1, 3001, at::kFloat).to(dtype), full = half.to(at::kFloat);
      const auto narrow = make_optimizer(one.optimizer), wide = make_optimizer(one.optimizer);
      narrow->add_slot(half, {1, 1, one.weight_decay});
      wide->add_slot(full, {1, 1, one.weight_decay});
      const at::Tensor gradient = gradient_of(3001, 1, dtype);
      narrow->update(0, {gradient, {}, {}}, scalars(0.01, 1));
      wide->update(0, {gradient.to(at::kFloat), {}, {}}, scalars(0.01, 1));
      EXPECT_TRUE(half.equal(full.to(dtype))) << one.name << " " << dtype;
      for (const auto& named : narrow->moments(0)) EXPECT_EQ(named.second.scalar_type(), at::kFloat);
    }
  }
}

#if defined(__x86_64__)
// Without a gradient the first moment falls by a tenth in each update. Below the smallest normal number it would slow
// every later update.
TEST(Optimizers, MomentsWithoutGradientsDoNotBecomeDenormal) {
  const auto optimizer = make_optimizer(adam("adam"));
  at::Tensor values = at::ones({64}, at::kFloat);
  optimizer->add_slot(values, {});
  optimizer->update(0, {at::ones({64}, at::kFloat), {}, {}}, scalars(0.01, 1));
  const at::Tensor mean = optimizer->moments(0).at(0).second;
  EXPECT_GT(mean[0].item<float>(), 0);
  for (int64_t step = 2; step <= 900; ++step)
    optimizer->update(0, {at::zeros({64}, at::kFloat), {}, {}}, scalars(0.01, step));
  const float left = mean.abs().max().item<float>();
  EXPECT_LT(left, 1e-36F);
  EXPECT_TRUE(left == 0 || left >= std::numeric_limits<float>::min()) << left;
  const volatile float denormal = 1e-40F;
  EXPECT_GT(denormal * 2, 0) << "the caller's mode has changed";
}
#endif

TEST(Optimizers, DoNotDependOnTheNumberOfThreads) {
  const int threads = at::get_num_threads();
  for (const Case& one : cases()) {
    std::vector<at::Tensor> results;
    for (int count : {1, 3}) {
      at::set_num_threads(count);
      at::Tensor values = at::linspace(-1, 1, 200003, at::kFloat);
      const auto optimizer = make_optimizer(one.optimizer);
      optimizer->add_slot(values, {1, 1, one.weight_decay});
      for (int64_t step = 1; step <= 3; ++step) {
        optimizer->update(0, {gradient_of(200003, step, at::kFloat), {}, {}}, scalars(0.01, step));
      }
      results.push_back(values);
    }
    EXPECT_TRUE(results[0].equal(results[1])) << one.name;
  }
  at::set_num_threads(threads);
}

TEST(Optimizers, RefuseRowsAndBadOptions) {
  const auto optimizer = make_optimizer(adam("adam"));
  at::Tensor table = at::zeros({10, 2});
  optimizer->add_slot(table, {});
  try {
    optimizer->update(0, {{}, at::arange(3), at::ones({3, 2})}, scalars(0.1, 1));
    FAIL() << "rows were taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Failure::config);
    EXPECT_NE(std::string(error.what()).find("rows"), std::string::npos);
  }
  EXPECT_THROW(make_optimizer(sgd(0, true)), ConfigError);
  Json three = adam("adam").options.json();
  three["betas"] = {0.9, 0.99, 0.999};
  EXPECT_THROW(make_optimizer({"adam", Options(three)}), ConfigError);
  Json broken = adam("adam").options.json();
  broken["groups"] = {{{"match", "("}, {"lr", nullptr}, {"weight_decay", nullptr}}};
  EXPECT_THROW(make_optimizer({"adam", Options(broken)}), ConfigError);
}

TEST(ParameterGroups, FirstMatchCounts) {
  Json json = common();
  json["weight_decay"] = 0.1;
  json["groups"] = {{{"match", "\\.bias$"}, {"lr", nullptr}, {"weight_decay", 0.0}},
                    {{"match", "^embedding"}, {"lr", 0.02}, {"weight_decay", nullptr}}};
  const OptimizerOptions options = optimizer_options({"sgd", Options(json)});
  const auto bias = group_settings(options, "embedding.bias");
  EXPECT_EQ(bias.weight_decay, 0);
  EXPECT_EQ(bias.learning_rate_factor, 1);
  const auto embedding = group_settings(options, "embedding.weight");
  EXPECT_EQ(embedding.weight_decay, 0.1);
  EXPECT_EQ(embedding.learning_rate_factor, 2);
  const auto other = group_settings(options, "hidden.weight");
  EXPECT_EQ(other.weight_decay, 0.1);
  EXPECT_EQ(other.learning_rate_factor, 1);
}

}  // namespace
}  // namespace convoy
