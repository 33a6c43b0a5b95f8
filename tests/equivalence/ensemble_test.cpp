// ensemble against single: a member trained with others equals a single model with its seed, rows and rates.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/rand_like.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <limits>
#include <mutex>

#include "core/metrics/accumulator.h"
#include "core/model.h"
#include "core/tensors/random.h"
#include "tests/equivalence/expectations.h"
#include "tests/support/torch/feature_model.h"

namespace convoy::testing {
namespace {

constexpr int64_t members = 3;
constexpr uint64_t seeds[members] = {11, 5, 23};
constexpr const char* rates[members] = {"3.0e-3", "1.0e-3", "5.0e-3"};
constexpr const char* decays[members] = {"0.1", "0", "0.2"};
constexpr int64_t rows = 16, steps = 10;

using State = std::map<std::string, at::Tensor>;

// The final state of one member, or of a single model, and its metrics in each step.
struct Member {
  State initial, final, gradients;
  std::vector<double> losses, norms;
  double evaluated = 0;
};

// A member's rows of a step: each member has a different order.
Batch own_batch(const Subject& subject, int64_t member, int64_t step) {
  const int64_t strides[members] = {1, 2, 7};
  const at::Tensor index = (at::arange(rows) + step * rows).mul(strides[member]).add(member).remainder(75);
  Batch batch;
  for (const auto& [name, tensor] : subject.data.tensors)
    batch.tensors.emplace_back(name, tensor.index_select(0, index));
  batch.rows = batch.global_rows = batch.nominal_rows = rows;
  return batch;
}

Batch batch_of(const Subject& subject, const std::vector<MemberSample>& samples, int64_t step) {
  std::vector<Batch> each;
  for (const MemberSample& sample : samples) each.push_back(own_batch(subject, sample.member, step));
  Batch batch = each.front();
  for (size_t i = 0; i < batch.tensors.size(); ++i) {
    std::vector<at::Tensor> tensors;
    for (const Batch& one : each) tensors.push_back(one.tensors[i].second);
    batch.tensors[i].second = at::stack(tensors);
  }
  return batch;
}

std::string optimizer(const std::string& rate, const std::string& decay) {
  return "{name: adamw, lr: " + rate + ", eps: 1.0e-5, weight_decay: " + decay +
         ", clip_norm: 0.3, groups: [{match: bias, weight_decay: 0}], schedule: {name: cosine}}";
}

// `trained`: how a rank's members were trained, from its summary.
Context prepared(const Context& given, std::string* trained = nullptr) {
  Context context = given;
  if (trained != nullptr)
    context.add_to_summary = [trained](const Json& report) {
      *trained = report.at("ensemble").at("trained").get<std::string>();
    };
  context.steps_per_epoch = 5;
  context.total_steps = steps;
  return context;
}

// State entries by member, under the names of a single model; without the copies of early stopping.
void keep(Strategy& strategy, std::map<int, State>& states, bool gradients = false) {
  const auto add = [&](const StateEntry& shown) {
    if (shown.member >= 0 && shown.name.rfind("early_stop_", 0) == 0) return;
    StateEntry entry = shown;
    entry.member = -1;
    EXPECT_TRUE(states[shown.member].emplace(entry.key(), entry.tensor.clone()).second) << entry.key();
  };
  gradients ? strategy.visit_gradients(add) : strategy.visit_state(add);
}

Member alone(const Subject& subject, int64_t member, int64_t steps_done = steps) {
  Training training;
  training.optimizer = optimizer(rates[member], decays[member]);
  RunConfig config = test_config({}, training);
  config.seed = seeds[member];
  Member result;
  with_ranks({}, config, [&](const Context& given) {
    const Context context = prepared(given);
    auto strategy = make_strategy(config);
    strategy->setup(context, subject.model(), subject.loss);
    result.initial = state_of(*strategy);
    for (int64_t step = 0; step < steps_done; ++step) {
      const StepResult out = strategy->step({own_batch(subject, member, step), step, false});
      result.losses.push_back((out.metrics[0].sum / out.metrics[0].weight).item<double>());
      result.norms.push_back(out.gradient_norm.item<double>());
    }
    const Metric loss = strategy->evaluate(share(subject, strategy->sampling())).front();
    result.evaluated = (loss.sum / loss.weight).item<double>();
    std::map<int, State> final, gradients;
    keep(*strategy, final);
    keep(*strategy, gradients, true);
    result.final = final[-1];
    result.gradients = gradients[-1];
  });
  return result;
}

// A member that trained for `last` steps and then got the weights that it had after `best` steps; its moments stay.
Member stopped_early(const Subject& subject, int64_t member, int64_t best, int64_t last) {
  Member result = alone(subject, member, last);
  const Member earlier = alone(subject, member, best);
  for (const auto& [key, tensor] : earlier.final)
    if (key.rfind("parameter/", 0) == 0 || key.rfind("buffer/", 0) == 0) result.final[key] = tensor;
  result.evaluated = earlier.evaluated;
  return result;
}

RunConfig ensemble_config(const std::string& more) {
  Training training;
  training.optimizer = optimizer("9.0e-3", "0.3");
  return test_config(
      {"ensemble", ", members: 3, seed: [11, 5, 23], lr: [3.0e-3, 1.0e-3, 5.0e-3], weight_decay: [0.1, 0, 0.2]" + more,
       1},
      training);
}

// All members; `between` may do something after a step.
std::map<int, Member> together(const Subject& subject, int ranks, const std::string& more,
                               const std::function<void(Strategy&, int64_t)>& between = nullptr,
                               const char* trained = nullptr) {
  const RunConfig config = ensemble_config(more);
  std::map<int, Member> result;
  std::mutex mutex;
  with_ranks({"ensemble", more, ranks}, config, [&](const Context& given) {
    std::string message;
    const Context context = prepared(given, &message);
    auto strategy = make_strategy(config);
    strategy->setup(context, subject.model(), subject.loss);
    std::map<int, State> initial, final, gradients;
    std::map<int, Member> mine;
    keep(*strategy, initial);
    for (int64_t step = 0; step < steps; ++step) {
      const Sampling sampling = strategy->sampling();
      EXPECT_EQ(sampling.members, int64_t(sampling.samples.size()));
      Batch batch;
      if (!sampling.samples.empty()) batch = batch_of(subject, sampling.samples, step);
      const StepResult out = strategy->step({batch, step, false});
      for (size_t row = 0; row < sampling.samples.size(); ++row) {
        const int64_t number = sampling.samples[row].member;
        Member& member = mine[static_cast<int>(number)];
        member.losses.push_back((out.metrics[0].sum[number] / out.metrics[0].weight[number]).item<double>());
        member.norms.push_back(out.gradient_norm[static_cast<int64_t>(row)].item<double>());
      }
      if (between) between(*strategy, step);
    }
    if (trained != nullptr) {
      EXPECT_EQ(message, trained);
    }
    Batch all = subject.data;
    all.global_rows = all.nominal_rows = all.rows;
    const Metric loss = strategy->evaluate(all).front();
    keep(*strategy, final);
    keep(*strategy, gradients, true);
    std::lock_guard<std::mutex> lock(mutex);
    for (auto& [number, member] : mine) {
      member.initial = initial[number];
      member.final = final[number];
      member.gradients = gradients[number];
      member.evaluated = (loss.sum[number] / loss.weight[number]).item<double>();
      EXPECT_TRUE(result.emplace(number, member).second) << "member " << number << " is on two ranks";
    }
  });
  return result;
}

void expect_same(const Member& stacked, const Member& single, const std::string& what, bool gradients = true) {
  EXPECT_TRUE(bitwise_equal(stacked.initial, single.initial)) << what;
  const Difference worst = difference(stacked.final, single.final);
  EXPECT_LE(worst.worst, tolerance) << what << ": " << worst.key;
  if (gradients) {
    const Difference gradient = difference(stacked.gradients, single.gradients);
    EXPECT_LE(gradient.worst, tolerance) << what << ": " << gradient.key;
  }
  ASSERT_EQ(stacked.losses.size(), single.losses.size()) << what;
  for (size_t i = 0; i < single.losses.size(); ++i) {
    EXPECT_NEAR(stacked.losses[i], single.losses[i], tolerance * 10) << what << ", step " << i;
    EXPECT_NEAR(stacked.norms[i] / single.norms[i], 1, tolerance * 10) << what << ", step " << i;
  }
  EXPECT_NEAR(stacked.evaluated, single.evaluated, tolerance * 10) << what;
  EXPECT_GT(difference(single.final, single.initial).worst, 1e-3) << what << " did not move";
}

struct EnsembleCell {
  Subject (*subject)();
  const char* name;
  int ranks;
  const char* more;
  const char* trained = "as one stack";
};

class EnsembleTest : public ::testing::TestWithParam<EnsembleCell> {};

TEST_P(EnsembleTest, EveryMemberEqualsSingle) {
  const EnsembleCell cell = GetParam();
  const Subject subject = cell.subject();
  const std::map<int, Member> all = together(subject, cell.ranks, cell.more, nullptr, cell.trained);
  ASSERT_EQ(all.size(), size_t(members));
  for (int64_t member = 0; member < members; ++member)
    expect_same(all.at(static_cast<int>(member)), alone(subject, member), convoy::str("member ", member));
}

INSTANTIATE_TEST_SUITE_P(
    Table, EnsembleTest,
    ::testing::Values(EnsembleCell{classifier_subject, "mlp", 1, ", how: stacked"},
                      EnsembleCell{classifier_subject, "mlp_2_threads", 2, ", how: threads"},
                      EnsembleCell{classifier_subject, "mlp_3_processes", 3, ", how: processes"},
                      EnsembleCell{classifier_subject, "mlp_auto", 1, ", how: auto"},
                      EnsembleCell{ncf_subject, "ncf", 1, ", how: stacked"},
                      EnsembleCell{ranking_subject, "ranking_2_threads", 2, ", how: threads"},
                      EnsembleCell{convnet_subject, "convnet", 1, ", how: stacked"},
                      EnsembleCell{convnet_subject, "convnet_grouped", 1, ", how: stacked, convolutions: grouped"},
                      EnsembleCell{convnet_subject, "convnet_auto", 1, ", how: auto", "side by side"},
                      EnsembleCell{convnet_subject, "convnet_auto_each", 1, ", how: auto, convolutions: each"},
                      EnsembleCell{gpt_subject, "gpt", 1, ", how: stacked"},
                      EnsembleCell{gpt_subject, "gpt_2_threads", 2, ", how: threads"},
                      EnsembleCell{llama_subject, "llama", 1, ", how: stacked"},
                      EnsembleCell{tied_subject, "own_modules", 1, ", how: stacked", "side by side"},
                      EnsembleCell{norms_subject, "losses_without_members", 1, ", how: stacked", "side by side"}),
    [](const auto& info) { return std::string(info.param.name); });

// Members that run one by one are evaluated on one batch: a block that changes its input in place must not change the
// others'.
TEST(Ensemble, AnInPlaceBlockAffectsNoOtherMember) {
  struct InPlace : Block {
    InPlace() : layer(register_module("linear", torch::nn::Linear(6, 5))) { to(at::kDouble); }
    TensorList forward(const TensorList& inputs) override {
      at::Tensor features = inputs[0];
      return {layer->forward(features.sub_(0.5))};
    }
    torch::nn::Linear layer;
  };
  struct InPlaceModel : FeatureModel {
    int64_t blocks() const override { return 1; }
    std::string block_name(int64_t) const override { return "only"; }
    BlockPtr block(int64_t, Layers&) const override { return std::make_shared<InPlace>(); }
  };
  const auto fresh = [] {  // a single model's evaluation changes the data
    Subject subject = mlp_subject();
    subject.model = [] { return std::make_shared<InPlaceModel>(); };
    return subject;
  };
  const auto all = together(fresh(), 1, ", how: stacked", nullptr, "side by side");
  for (int64_t member = 0; member < members; ++member)
    expect_same(all.at(static_cast<int>(member)), alone(fresh(), member), convoy::str("member ", member));
}

// A finished member takes back its best weights; the others train as if it had never existed.
TEST(Ensemble, FinishedMembersLeaveTheStack) {
  for (const char* how : {", how: stacked", ", how: threads", ", how: auto"}) {
    for (Subject (*make)() : {classifier_subject, convnet_subject, tied_subject}) {
      const Subject subject = make();
      const int ranks = std::string(how) == ", how: threads" ? 2 : 1;
      const auto stop = [](Strategy& strategy, int64_t step) {
        if (step > 4) return;
        // Member 1 is best at the first step and never again, the others get better all the time.
        MetricValue loss;
        loss.lower_is_better = true;
        for (int64_t member = 0; member < members; ++member)
          loss.members.push_back(member == 1 ? 1.0 + double(step) : -double(step));
        EXPECT_FALSE(strategy.evaluated({{"loss", loss}}));
        EXPECT_EQ(strategy.sampling().job_members, step < 3 ? 3 : 2);
      };
      const auto all = together(subject, ranks, std::string(how) + ", early_stop: {patience: 3}", stop);
      ASSERT_EQ(all.size(), size_t(members));
      for (int64_t member = 0; member < members; ++member)
        expect_same(all.at(static_cast<int>(member)),
                    member == 1 ? stopped_early(subject, member, 1, 4) : alone(subject, member),
                    convoy::str(subject.name, how, ", member ", member), member != 1);
    }
  }
}

TEST(Ensemble, AllMembersMayFinish) {
  const Subject subject = classifier_subject();
  const auto stop = [](Strategy& strategy, int64_t step) {
    MetricValue loss;
    loss.members = {double(step), double(step), double(step)};
    loss.lower_is_better = true;
    EXPECT_EQ(strategy.evaluated({{"loss", loss}}), step >= 2);
  };
  const auto all = together(subject, 2, ", how: threads, early_stop: {patience: 2}", stop);
  for (int64_t member = 0; member < members; ++member)
    expect_same(all.at(static_cast<int>(member)), stopped_early(subject, member, 1, 3), convoy::str("member ", member),
                false);
}

// The same metrics for any distribution of the members: their mean, their vote, and each member's.
TEST(Ensemble, VotesDoNotDependOnRanks) {
  for (Subject (*make)() : {classifier_subject, gpt_subject, ncf_subject}) {
    const Subject subject = make();
    std::map<std::string, double> first;
    for (int ranks : {1, 2, 3}) {
      const RunConfig config = ensemble_config(", how: threads");
      std::map<std::string, double> values;
      with_ranks({"ensemble", "", ranks}, config, [&](const Context& given) {
        const Context context = prepared(given);
        auto strategy = make_strategy(config);
        strategy->setup(context, subject.model(), subject.loss);
        for (int64_t step = 0; step < 3; ++step)
          strategy->step({batch_of(subject, strategy->sampling().samples, step), step, false});
        Batch all = subject.data;
        all.global_rows = all.nominal_rows = all.rows;
        MetricAccumulator metrics;
        metrics.add(strategy->evaluate(all));
        const auto reduced = metrics.reduce(*context.world);
        if (context.rank != 0) return;
        for (const auto& [name, value] : reduced) {
          values[name] = value.value;
          EXPECT_EQ(value.members.size(), name.rfind("mean_", 0) == 0 || name.rfind("vote_", 0) == 0 ? 0u : 3u) << name;
        }
      });
      EXPECT_EQ(values.count("mean_loss"), 1u);
      // Cross-entropy of the mean of probabilities is at most the mean of the cross-entropies.
      if (subject.name != "ncf") {
        EXPECT_LT(values["mean_loss"], values["loss"]);
        EXPECT_EQ(values.count("vote_accuracy"), 1u);
      }
      if (first.empty()) first = values;
      ASSERT_EQ(values.size(), first.size());
      for (const auto& [name, value] : first) EXPECT_NEAR(values[name], value, 1e-12) << subject.name << " " << name;
    }
  }
}

// Its block draws from LibTorch's generator, in evaluation too.
class NoisyModel : public FeatureModel {
 public:
  explicit NoisyModel(double noise) : noise_(noise) {}
  int64_t blocks() const override { return 1; }
  BlockPtr block(int64_t, Layers& layers) const override {
    struct Noisy : Block {
      Noisy(Layers& layers, double noise)
          : linear(register_module("linear", layers.linear("linear", 6, 5))), noise(noise) {}
      TensorList forward(const TensorList& inputs) override {
        const at::Tensor values = linear->forward(inputs[0]);
        return {values + noise * at::rand_like(values)};
      }
      Layer linear;
      double noise;
    };
    return std::make_shared<Noisy>(layers, noise_);
  }

 private:
  double noise_;
};

// A resumed run keeps its execution mode and draws the same numbers. Only with strong noise do a stack and single
// members differ by more than rounding.
TEST(Ensemble, AResumedRunUsesTheStoredExecutionMode) {
  const std::string execution_mode = "counter/execution_mode";
  for (const bool stacks : {true, false}) {
    Subject subject = classifier_subject();
    subject.model = [stacks] { return std::make_shared<NoisyModel>(stacks ? 1e-6 : 1); };
    const std::string before = stacks ? "as one stack" : "side by side",
                      other = stacks ? "side by side" : "as one stack";
    const int64_t choice = stacks ? members : -members;
    const RunConfig config = ensemble_config(", how: auto");
    with_ranks({"ensemble", "", 1}, config, [&](const Context& given) {
      std::string message;
      const Context context = prepared(given, &message);
      const auto begin = [&] {
        auto strategy = make_strategy(config);
        strategy->setup(context, subject.model(), subject.loss);
        return strategy;
      };
      const auto train = [&](Strategy& strategy, int64_t step) {
        strategy.step({batch_of(subject, strategy.sampling().samples, step), step, false});
      };
      at::manual_seed(7);
      auto first = begin();
      train(*first, 0);
      EXPECT_EQ(message, before);
      State stored;
      first->visit_state([&](const StateEntry& entry) { stored[entry.key()] = entry.tensor.detach().clone(); });
      EXPECT_TRUE(stored.at(execution_mode).eq(choice).all().item<bool>()) << before;
      const at::Tensor generator = generator_state(at::kCPU);
      train(*first, 1);
      const auto state_at_end = [](Strategy& strategy) {
        State state = state_of(strategy);
        state.erase("counter/early_stop_best");  // NaN: nothing was evaluated
        return state;
      };
      const State final = state_at_end(*first);
      // The stored value; those of an earlier version, of another number of members, and of the other mode.
      for (const int64_t mode : {choice, int64_t(0), choice - 1, -choice}) {
        auto resumed = begin();
        set_generator_state(at::kCPU, generator);
        stored.at(execution_mode).fill_(mode);
        {
          at::NoGradGuard no_grad;
          resumed->visit_state([&](const StateEntry& entry) { entry.tensor.detach().copy_(stored.at(entry.key())); });
        }
        message.clear();
        resumed->state_restored();
        EXPECT_EQ(message, mode == choice ? before : mode == -choice ? other : "") << mode;
        train(*resumed, 1);
        EXPECT_EQ(message, mode == -choice ? other : before) << mode;
        EXPECT_TRUE(mode == -choice || bitwise_equal(state_at_end(*resumed), final)) << before << ", stored " << mode;
      }
    });
  }
}

TEST(Ensemble, RanksStoreTheExecutionModesOfTheirMembers) {
  std::mutex mutex;
  std::map<int64_t, int64_t> choices;  // by the first member of the rank
  EXPECT_EQ(run({"ensemble", ", members: 3, how: threads", 2}, classifier_subject(),
                [&](const Context&, Strategy& strategy) {
                  strategy.step({batch_of(classifier_subject(), strategy.sampling().samples, 0), 0, false});
                  strategy.visit_state([&](const StateEntry& entry) {
                    if (entry.name != "execution_mode") return;
                    const std::lock_guard<std::mutex> lock(mutex);
                    EXPECT_EQ(entry.piece.global_shape, std::vector<int64_t>{members});
                    EXPECT_EQ(entry.piece.length, std::vector<int64_t>{entry.tensor.numel()});
                    choices[entry.piece.offset.at(0)] = entry.tensor[0].item<int64_t>();
                  });
                }),
            "no error");
  EXPECT_EQ(choices, (std::map<int64_t, int64_t>{{0, 2}, {2, 1}}));
}

TEST(Ensemble, NamesAMemberThatIsNotFinite) {
  const Subject subject = classifier_subject();
  const std::string message =
      run({"ensemble", ", members: 3, how: stacked", 1}, subject, [&](const Context&, Strategy& strategy) {
        Batch batch = batch_of(subject, strategy.sampling().samples, 0);
        at::Tensor features = batch.tensors.front().second.clone();
        features.select(0, 2).fill_(std::numeric_limits<double>::quiet_NaN());
        batch.tensors.front().second = features;
        strategy.step({batch, 0, false});
      });
  EXPECT_NE(message.find("the loss of member 2"), std::string::npos) << message;
}

}  // namespace
}  // namespace convoy::testing
