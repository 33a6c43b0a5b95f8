// Ranks with local updates, besides equal results: resuming, evaluations without effect on training, bytes sent, and
// faults.
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <mutex>

#include "core/base/error.h"
#include "strategies/plans/catalogue.h"
#include "strategies/registry.h"
#include "tests/support/torch/model_subjects.h"
#include "tests/support/torch/subjects.h"

namespace convoy::testing {
namespace {

using State = std::map<std::string, at::Tensor>;

Layout ddp_with(int ranks, const std::string& sync) {
  return {"ddp", ", first_bucket_mb: 0.0002, bucket_cap_mb: 0.0006, sync: {" + sync + "}", ranks};
}

const std::vector<std::string> policies = {
    "what: parameters, every: 4",
    "what: parameters, every: 4, moments: averaged",
    "what: diloco, every: 4",
    "what: diloco, every: 3, start_after: 2",
    "groups: [{match: weight, what: parameters, every: 4, start_after: 1}]",
    "what: diloco, every: 4, groups: [{match: bias, what: gradients}, {match: 'blocks.0', what: parameters, every: 3}]",
    "compress: bf16",
    "compress: fp16, groups: [{match: bias, what: diloco, every: 4}]",
};

void step(const Subject& subject, Strategy& strategy, int64_t number) {
  strategy.step({share(subject, strategy.sampling()), number, true});
}

// Returns the states of all ranks after `steps`; `each` is called before every step. `from`: states of the ranks after
// `first` steps, from which to continue; null: starts at step 0.
std::vector<State> states_after(const Layout& layout, const Subject& subject, int64_t steps,
                                const std::function<void(Strategy&)>& each, const std::vector<State>* from = nullptr,
                                int64_t first = 0) {
  std::vector<State> states(static_cast<size_t>(layout.ranks));
  EXPECT_EQ(
      run(layout, subject,
          [&](const Context& context, Strategy& strategy) {
            const auto rank = static_cast<size_t>(context.rank);
            if (from != nullptr) {
              strategy.visit_state([&](const StateEntry& entry) { entry.tensor.copy_((*from)[rank].at(entry.key())); });
              strategy.state_restored();
            }
            for (int64_t number = first; number < steps; ++number) {
              each(strategy);
              step(subject, strategy, number);
            }
            strategy.flush();
            states[rank] = state_of(strategy);
          }),
      "no error");
  return states;
}

void expect_same(const std::vector<State>& one, const std::vector<State>& other) {
  for (size_t rank = 0; rank < one.size(); ++rank)
    EXPECT_TRUE(bitwise_equal(one[rank], other[rank])) << "rank " << rank;
}

// Resumes at every step of a period, between synchronisations and on them.
TEST(SyncState, ResumesBitForBit) {
  for (auto* make : {tied_subject, norms_subject}) {
    const Subject subject = make();
    for (const std::string& policy : policies) {
      const Layout layout = ddp_with(3, policy);
      const auto nothing = [](Strategy&) {};
      const std::vector<State> undisturbed = states_after(layout, subject, 9, nothing);
      for (int64_t interrupted : {1, 3, 4, 6}) {
        SCOPED_TRACE(subject.name + ": " + policy + ", after " + std::to_string(interrupted));
        const std::vector<State> saved = states_after(layout, subject, interrupted, nothing);
        expect_same(states_after(layout, subject, 9, nothing, &saved, interrupted), undisturbed);
      }
    }
  }
}

// The state at the save is flushed, because missed updates are applied up to there.
TEST(SyncState, ResumesSparseEmbeddingsBitForBit) {
  const Subject subject = ranking_subject(true);
  for (const std::string policy :
       {"what: parameters, every: 4", "what: parameters, every: 3, moments: averaged, start_after: 2",
        "groups: [{match: item, what: parameters, every: 4}]"}) {
    const Layout layout = ddp_with(3, policy);
    for (int64_t interrupted : {1, 3, 4, 6}) {
      SCOPED_TRACE(policy + ", after " + std::to_string(interrupted));
      const auto nothing = [](Strategy&) {};
      int64_t begun[3] = {0, 0, 0};
      std::mutex mutex;
      const auto flushed = [&](Strategy& strategy) {
        int64_t number = 0;
        {
          std::lock_guard<std::mutex> lock(mutex);
          number = begun[strategy.sampling().index]++;
        }
        if (number == interrupted) strategy.flush();
      };
      const std::vector<State> undisturbed = states_after(layout, subject, 9, flushed);
      const std::vector<State> saved = states_after(layout, subject, interrupted, nothing);
      expect_same(states_after(layout, subject, 9, nothing, &saved, interrupted), undisturbed);
      EXPECT_TRUE(std::any_of(saved[1].begin(), saved[1].end(), [](const auto& entry) {
        return entry.first.find("item.weight.touched@replica1") != std::string::npos;
      }));
    }
  }
}

// All ranks evaluate the same rows, and continue with their local values.
TEST(SyncState, AveragesRowsForEvaluationsOnly) {
  const Subject subject = ranking_subject(true);
  std::vector<State> shown(2);
  EXPECT_EQ(run(ddp_with(2, "what: parameters, every: 4"), subject,
                [&](const Context& context, Strategy& strategy) {
                  const auto rank = static_cast<size_t>(context.rank);
                  for (int64_t number = 0; number < 6; ++number) step(subject, strategy, number);
                  strategy.flush();
                  shown[rank] = state_of(strategy);
                }),
            "no error");
  bool differ = false;
  for (const auto& [key, tensor] : shown[0]) {
    const size_t at = key.find("@replica0");
    if (at == std::string::npos)
      EXPECT_TRUE(tensor.equal(shown[1].at(key))) << key;
    else if (key.rfind("parameter/", 0) == 0)
      differ = differ || !tensor.equal(shown[1].at(key.substr(0, at) + "@replica1"));
  }
  EXPECT_TRUE(differ);
}

TEST(SyncState, EvaluationsChangeNothing) {
  const Subject subject = norms_subject();
  for (const std::string& policy : policies) {
    SCOPED_TRACE(policy);
    const auto evaluate = [&](Strategy& strategy) {
      strategy.flush();
      strategy.evaluate(share(subject, strategy.sampling()));
      strategy.flush();
    };
    expect_same(states_after(ddp_with(2, policy), subject, 7, evaluate),
                states_after(ddp_with(2, policy), subject, 7, [](Strategy&) {}));
  }
}

// All ranks evaluate the same model, and own exactly one copy of the common state.
TEST(SyncState, VisitsTheAverageAndLocalValues) {
  const Subject subject = norms_subject();
  for (const std::string& policy : policies) {
    SCOPED_TRACE(policy);
    std::mutex mutex;
    std::map<std::string, int> owners;
    std::vector<State> states(3);
    EXPECT_EQ(run(ddp_with(3, policy), subject,
                  [&](const Context& context, Strategy& strategy) {
                    for (int64_t number = 0; number < 3; ++number) step(subject, strategy, number);
                    strategy.flush();
                    std::lock_guard<std::mutex> lock(mutex);
                    strategy.visit_state([&](const StateEntry& entry) { owners[entry.key()] += entry.owner; });
                    states[static_cast<size_t>(context.rank)] = state_of(strategy);
                  }),
              "no error");
    for (const auto& [key, count] : owners) EXPECT_EQ(count, 1) << key;
    for (const auto& [key, tensor] : states[0])
      if (key.rfind("parameter/", 0) == 0 && key.find('@') == std::string::npos) {
        EXPECT_TRUE(tensor.equal(states[1].at(key)) && tensor.equal(states[2].at(key))) << key;
      }
  }
}

TEST(SyncState, ReplicasDifferBetweenSynchronisations) {
  const Subject subject = tied_subject();
  const std::vector<State> states =
      states_after(ddp_with(2, "what: parameters, every: 4"), subject, 3, [](Strategy&) {});
  bool differ = false;
  for (const auto& [key, tensor] : states[0]) {
    const size_t at = key.find("@replica0");
    if (at == std::string::npos || key.rfind("parameter/", 0) != 0) continue;
    differ = differ || !tensor.equal(states[1].at(key.substr(0, at) + "@replica1"));
  }
  EXPECT_TRUE(differ);
}

TEST(SyncState, SendsNothingBetweenSynchronisations) {
  const Subject subject = tied_subject();
  EXPECT_EQ(run(ddp_with(2, "what: diloco, every: 3, start_after: 2"), subject,
                [&](const Context& context, Strategy& strategy) {
                  std::vector<bool> sent;
                  for (int64_t number = 0; number < 8; ++number) {
                    const int64_t before = context.world->bytes_sent();
                    step(subject, strategy, number);
                    sent.push_back(context.world->bytes_sent() > before);
                  }
                  EXPECT_EQ(sent, (std::vector<bool>{true, true, false, false, true, false, false, true}));
                }),
            "no error");
}

double bytes_of_last_step(const Layout& layout, const Subject& subject, int64_t steps) {
  double bytes = 0;
  EXPECT_EQ(run(layout, subject,
                [&](const Context& context, Strategy& strategy) {
                  int64_t first = 0;
                  for (int64_t number = 0; number <= steps; ++number) {
                    if (number == 1) first = context.world->bytes_sent();  // step 0 also exchanges the order
                    step(subject, strategy, number);
                  }
                  if (context.rank == 0)
                    bytes = static_cast<double>(context.world->bytes_sent() - first) / static_cast<double>(steps);
                }),
            "no error");
  return bytes;
}

// Compares the bytes of whole periods. cost() does not count padding and the few bytes of weights.
TEST(SyncState, BytesSentMatchTheCost) {
  const Subject subject = mlp_subject();
  for (const std::string policy :
       {"what: parameters, every: 4", "what: parameters, every: 4, moments: averaged", "what: diloco, every: 2",
        "compress: bf16", "compress: fp16", "groups: [{match: weight, what: parameters, every: 4}]",
        "what: parameters, every: 4, groups: [{match: bias, what: gradients}]"}) {
    SCOPED_TRACE(policy);
    const Layout layout = ddp_with(4, policy);
    const JobPlan job = planned(layout, test_config(layout, {}));
    const ModelDescription description = describe_model(*subject.model(), "fp64");
    const double predicted = strategy_entry("ddp").cost(job, description).front().bytes_sent_per_step;
    const double counted = bytes_of_last_step(layout, subject, 8);
    EXPECT_GE(counted, predicted);
    EXPECT_LE(counted, predicted + 1.5 * (3 * 64 * 7 + 64));
  }
}

TEST(SyncState, CompressedGradientsTakeHalfOfFp32) {
  ModelDescription description;
  description.blocks = {{"all", 1000000, 0, 0, 0, 0}};
  const auto sent = [&](const char* sync) {
    const JobPlan job = planned(ddp_with(2, sync), test_config(ddp_with(2, sync), {}));
    return strategy_entry("ddp").cost(job, description).front().bytes_sent_per_step;
  };
  EXPECT_EQ(sent("compress: bf16") * 2, sent(""));
}

TEST(SyncState, NamesTheRankOfANonFiniteLoss) {
  const Subject subject = mlp_subject();
  const std::string error =
      run(ddp_with(3, "what: parameters, every: 4"), subject, [&](const Context& context, Strategy& strategy) {
        step(subject, strategy, 0);
        Batch batch = share(subject, strategy.sampling());
        if (context.rank == 1)
          for (auto& entry : batch.tensors)
            if (entry.first == "features") entry.second = entry.second * std::numeric_limits<double>::quiet_NaN();
        strategy.step({batch, 1, true});
        for (int64_t number = 2; number < 6; ++number) step(subject, strategy, number);
      });
  EXPECT_EQ(error.rfind("training: the loss of rank 1 is not finite at step 1", 0), 0u) << error;
}

}  // namespace
}  // namespace convoy::testing
