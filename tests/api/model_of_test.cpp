// Unchanged torch modules under the strategies of a configuration, and the same modules as Replicas.
#include <convoy/model_of.h>
#include <convoy/replicas.h>

#include <gmock/gmock.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "tests/api/training.h"
#include "tests/support/torch/equivalence.h"
#include "tests/support/torch/subjects.h"

namespace convoy::testing {
namespace {

ModelPtr layered_model() {
  return model_of([] {
    return torch::nn::Sequential(torch::nn::Linear(6, 8), torch::nn::LayerNorm(std::vector<int64_t>{8}),
                                 torch::nn::Tanh(), torch::nn::Linear(8, 7), torch::nn::Tanh(),
                                 torch::nn::Linear(7, 5));
  });
}

Subject layered_subject() {
  Subject subject = mlp_subject();
  subject.name = "layered";
  // All ranks use one model: creating another would draw from the generator that seeds the blocks of another rank.
  subject.model = [model = layered_model()] { return model; };
  subject.data.tensors = {{"features", normal({subject_rows, 6}, "features", 3)},
                          {"target", integers({subject_rows}, "target", 5, 3)}};
  return subject;
}

TEST(ModelOf, TrainsModulesUnderEveryStrategy) {
  const Subject subject = layered_subject();
  const Trajectory whole = train({"single", "", 1}, subject, {});
  for (const Layout& layout :
       {Layout{"ddp", "", 3}, Layout{"fsdp", "", 2}, Layout{"fsdp", ", recompute: blocks", 2},
        Layout{"pipeline", ", micro_batches: 4", 3}, Layout{"model_parallel", ", devices: [cores:0, cores:1]", 1}}) {
    SCOPED_TRACE(to_string(layout));
    const Trajectory cut = train(layout, subject, {});
    EXPECT_TRUE(bitwise_equal(cut.initial, whole.initial));
    const Difference worst = difference(cut.final, whole.final);
    EXPECT_LE(worst.worst, 1e-12) << worst.key;
  }
  EXPECT_GT(difference(whole.final, whole.initial).worst, 3e-3);
  EXPECT_EQ(whole.final.count("parameter/5.weight"), 1u);
}

TEST(ModelOf, TakesRecipes) {
  int made = 0;
  const ModelPtr model = model_of({{"in",
                                    [&] {
                                      ++made;
                                      return torch::nn::AnyModule(torch::nn::Linear(6, 3));
                                    }},
                                   {"out",
                                    [&] {
                                      ++made;
                                      return torch::nn::AnyModule(torch::nn::Linear(3, 5));
                                    }}},
                                  {"features", "mse"});
  EXPECT_EQ(made, 0);
  EXPECT_EQ(model->blocks(), 2);
  EXPECT_EQ(model->block_name(1), "out");
  EXPECT_EQ(model->default_loss(), "mse");
  Subject subject = layered_subject();
  subject.model = [model] { return model; };
  const Trajectory trained = train({"single", "", 1}, subject, {});
  EXPECT_GE(made, 2);
  EXPECT_EQ(trained.final.count("parameter/out.bias"), 1u);
}

// Replicas and ddp with the same policy train the same.
TEST(ModelOf, TrainsLikeReplicas) {
  for (const char* sync : {"", "what: parameters, every: 3", "what: parameters, every: 2, moments: averaged",
                           "what: diloco, every: 4", "groups: [{match: bias, what: parameters, every: 2}]"}) {
    SCOPED_TRACE(sync);
    const Subject subject = layered_subject();
    Training training;
    training.optimizer = "{name: adamw, lr: 3.0e-3, eps: 1.0e-5, weight_decay: 0.1}";
    const Trajectory yaml = train({"ddp", std::string(", sync: {") + sync + "}", 2}, subject, training);
    ReplicaOptions options;
    const std::string text = sync;
    if (text.rfind("what: parameters", 0) == 0) options.sync.what = "parameters";
    if (text.rfind("what: diloco", 0) == 0) options.sync.what = "diloco";
    for (int every : {2, 3, 4})
      if (text.rfind("what", 0) == 0 && text.find("every: " + std::to_string(every)) != std::string::npos)
        options.sync.every = every;
    if (text.find("averaged") != std::string::npos) options.sync.moments = "averaged";
    if (text.rfind("groups", 0) == 0) {
      SyncGroupOptions group;
      group.match = "bias";
      group.what = "parameters";
      group.every = 2;
      options.sync.groups = {group};
    }
    test_jobs(2, [&](Job& job) {
      torch::nn::Sequential net(torch::nn::Linear(6, 8), torch::nn::LayerNorm(std::vector<int64_t>{8}),
                                torch::nn::Tanh(), torch::nn::Linear(8, 7), torch::nn::Tanh(), torch::nn::Linear(7, 5));
      net->to(at::kDouble);
      {
        at::NoGradGuard no_grad;
        for (auto& entry : net->named_parameters()) entry.value().copy_(yaml.initial.at("parameter/" + entry.key()));
      }
      torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(3e-3).eps(1e-5).weight_decay(0.1));
      Replicas replicas(job, *net, adamw, options);
      for (int64_t step = 0; step < training.steps; ++step) {
        const int64_t begin = step % 5 * training.global_rows;
        const Rows rows = Rows{subject.data.at("features"), subject.data.at("target")}.slice(
            begin, std::min(begin + training.global_rows, subject_rows));
        const Rows mine = part_of(rows, job.rank(), 2);
        replicas.step(loss_sum(net->forward(mine.input), mine), mine.count());
      }
      const Evaluation evaluation = replicas.evaluation();
      State expected;
      for (const auto& entry : parameters_of(*net)) expected.emplace(entry.first, yaml.final.at(entry.first));
      EXPECT_SAME(parameters_of(*net), expected, 1e-12);
    });
  }
}

TEST(ModelOf, NamesABlockWithSeveralInputs) {
  const ModelPtr model = layered_model();
  EXPECT_EQ(model->blocks(), 6);
  ModuleBlock block{torch::nn::AnyModule(torch::nn::Linear(2, 2))};
  try {
    block.forward({at::ones({1, 2}), at::ones({1, 2})});
    FAIL() << "no error";
  } catch (const c10::Error& error) {
    EXPECT_EQ(error.what_without_backtrace(),
              std::string("a torch module takes one tensor, and the block before it returns 2"));
  }
}

}  // namespace
}  // namespace convoy::testing
