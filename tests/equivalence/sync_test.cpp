// Ranks that average parameters or make outer steps, compared with summed gradients of every update and with simulated
// references: one `single` per replica, averaged by the test.
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include "strategies/plans/options/step_options.h"
#include "tests/equivalence/expectations.h"
#include "tests/support/torch/model_subjects.h"
#include "tests/support/torch/subjects.h"

namespace convoy::testing {
namespace {

using State = std::map<std::string, at::Tensor>;

Layout ddp(int ranks, const std::string& sync, const std::string& more = "") {
  return {"ddp", ", first_bucket_mb: 0.0002, bucket_cap_mb: 0.0006, sync: {" + sync + "}" + more, ranks};
}

Training sgd(int64_t rows = 16) {
  Training training;
  training.optimizer = "{name: sgd, lr: 0.1}";
  training.global_rows = rows;
  return training;
}

// State that is equal on all ranks, without the outer step.
State in_common(const State& state) {
  State common;
  for (const auto& [key, tensor] : state)
    if (key.find("@replica") == std::string::npos && key.rfind("moment/outer_", 0) != 0) common.emplace(key, tensor);
  return common;
}

void expect_close(const Trajectory& one, const Trajectory& other, double within = tolerance) {
  const Difference worst = difference(in_common(one.final), in_common(other.final));
  EXPECT_LE(worst.worst, within) << worst.key;
  EXPECT_NEAR(one.evaluated, other.evaluated, within * 10);
  EXPECT_GT(difference(in_common(other.final), in_common(other.initial)).worst, 3e-3);
}

// For a linear update the mean of the updates is the update of the mean, for any distribution of rows.
TEST(Sync, AveragingAfterEachSgdStepEqualsGradients) {
  for (auto* make : {mlp_subject, pairs_subject, tied_subject, gpt_subject})
    for (int ranks : {1, 2, 3, 4})
      for (int64_t rows : {16, 3}) {
        const Subject subject = make();
        SCOPED_TRACE(subject.name + " on " + std::to_string(ranks) + ", " + std::to_string(rows) + " rows");
        const Trajectory apart = train(ddp(ranks, "what: parameters"), subject, sgd(rows));
        const Trajectory summed = train(ddp(ranks, ""), subject, sgd(rows));
        expect_close(apart, summed);
        for (size_t i = 0; i < summed.losses.size(); ++i) EXPECT_NEAR(apart.losses[i], summed.losses[i], 1e-11);
      }
}

TEST(Sync, CombinesParameterAndGradientGroups) {
  for (const char* pattern : {"bias", "weight", "twice"})
    for (int ranks : {2, 3}) {
      const std::string groups = std::string("groups: [{match: ") + pattern + ", what: parameters}]";
      for (int64_t rows : {16, 2}) {
        SCOPED_TRACE(std::string(pattern) + " on " + std::to_string(ranks));
        expect_close(train(ddp(ranks, groups), tied_subject(), sgd(rows)),
                     train(ddp(ranks, ""), tied_subject(), sgd(rows)));
        expect_close(train(ddp(ranks, "every: 2, " + groups), tied_subject(), sgd(rows)),
                     train(ddp(ranks, "every: 2"), tied_subject(), sgd(rows)));
      }
    }
}

// If a replica has several ranks, each of its parts synchronises with the same part of the others.
TEST(Sync, SupportsReplicasOfSeveralRanks) {
  for (const char* mesh : {"{data: 2, pipeline: 2}, micro_batches: 2", "{data: 2, tensor: 2}"})
    for (const char* sync : {"what: parameters", "groups: [{match: weight, what: parameters}]"}) {
      SCOPED_TRACE(std::string(mesh) + ", " + sync);
      const auto hybrid = [&](const std::string& text) {
        return Layout{"hybrid", std::string(", mesh: ") + mesh + ", sync: {" + text + "}", 4};
      };
      expect_close(train(hybrid(sync), gpt_subject(), sgd()), train(hybrid(""), gpt_subject(), sgd()));
    }
}

TEST(Sync, AnOuterStepToTheMeanIsTheMean) {
  for (int ranks : {2, 3})
    for (const char* moments : {"local", "averaged"}) {
      const std::string more = std::string(", every: 3, moments: ") + moments;
      const Trajectory outer =
          train(ddp(ranks, "what: diloco, outer: {lr: 1, momentum: 0}" + more), tied_subject(), adamw(true));
      const Trajectory mean = train(ddp(ranks, "what: parameters" + more), tied_subject(), adamw(true));
      expect_close(outer, mean);
    }
}

TEST(Sync, EqualsDdpBeforeItsFirstStep) {
  const Trajectory later = train(ddp(3, "what: parameters, every: 4, start_after: 1000"), tied_subject(), adamw(true));
  const Trajectory never = train(ddp(3, ""), tied_subject(), adamw(true));
  EXPECT_TRUE(bitwise_equal(in_common(later.final), never.final));
  EXPECT_EQ(later.norms, never.norms);
}

// ---- the simulated reference -----------------------------------------------------------------------------------

struct Simulated {
  int ranks = 2;
  int64_t every = 3, start_after = 0;
  bool averaged = false;  // moments too
  bool outer = false;
  double rate = 0.7, momentum = 0.9;
  bool nesterov = true;
};

State shown(Strategy& strategy) {
  State state;
  strategy.visit_state([&](const StateEntry& entry) {
    if (entry.kind == StateKind::parameter || entry.kind == StateKind::moment) state.emplace(entry.key(), entry.tensor);
  });
  return state;
}

// Several independent strategies of one rank, each with its share of every batch.
class Replicas {
 public:
  Replicas(const Context& context, const Subject& subject, const Simulated& how, const RunConfig& config)
      : subject_(subject), how_(how), weights_(static_cast<size_t>(how.ranks), 0) {
    for (int rank = 0; rank < how.ranks; ++rank) {
      replicas_.push_back(make_strategy(config));
      replicas_.back()->setup(context, subject.model(), subject.loss);
    }
    for (const auto& [key, tensor] : shown(*replicas_.front())) {
      before_[key] = tensor.clone();
      velocity_[key] = at::zeros_like(tensor);
    }
  }

  void step(int64_t number, int64_t begin, int64_t end) {
    for (int rank = 0; rank < how_.ranks; ++rank) {
      const auto [first, last] = share_of(end - begin, rank, how_.ranks);
      if (first == last) continue;  // no rows: nothing is learnt, and nothing counts
      Batch batch = subject_.data.slice(begin + first, begin + last);
      batch.first_row = first;
      batch.global_rows = batch.nominal_rows = end - begin;
      const StepResult result = replicas_[static_cast<size_t>(rank)]->step({batch, number, true});
      weights_[static_cast<size_t>(rank)] += result.metrics.front().weight.item<double>();
    }
    if ((number + 1) % how_.every == 0) agree();
  }

  // Mean of the replicas' current values.
  State mean() {
    std::vector<State> states;
    for (const auto& replica : replicas_) states.push_back(shown(*replica));
    double all = 0;
    for (double weight : weights_) all += weight;
    State mean;
    for (const auto& [key, tensor] : states.front()) {
      mean[key] = at::zeros_like(tensor);
      for (size_t rank = 0; rank < states.size(); ++rank)
        mean[key] += states[rank].at(key) * (all > 0 ? weights_[rank] / all : 1.0 / how_.ranks);
    }
    return mean;
  }

 private:
  void agree() {
    State mean = this->mean();
    if (how_.outer) outer_step(mean);
    for (const auto& replica : replicas_)
      for (auto& [key, tensor] : shown(*replica))
        if (how_.averaged || key.rfind("parameter/", 0) == 0) tensor.copy_(mean.at(key));
    weights_.assign(weights_.size(), 0);
  }

  // As in torch::optim::SGD, with the distance from the start to the mean as gradient.
  void outer_step(State& mean) {
    for (auto& [key, tensor] : mean) {
      if (key.rfind("parameter/", 0) != 0) continue;
      const at::Tensor gradient = before_[key] - tensor;
      velocity_[key] = velocity_[key] * how_.momentum + gradient;
      before_[key] -= how_.rate * (how_.nesterov ? gradient + how_.momentum * velocity_[key] : velocity_[key]);
      tensor = before_[key].clone();
    }
  }

  const Subject& subject_;
  Simulated how_;
  std::vector<std::unique_ptr<Strategy>> replicas_;
  std::vector<double> weights_;
  State before_, velocity_;
};

State simulate(const Subject& subject, const Training& training, const Simulated& how) {
  State mean;
  const RunConfig config = test_config({}, training, subject.section);
  with_ranks({}, config, [&](const Context& given) {
    Context context = given;
    const int64_t rows = subject.data.rows;
    const int64_t per_epoch = (rows + training.global_rows - 1) / training.global_rows;
    context.steps_per_epoch = per_epoch;
    context.total_steps = training.steps;
    Replicas replicas(context, subject, how, config);
    for (int64_t step = 0; step < training.steps; ++step) {
      const int64_t begin = step % per_epoch * training.global_rows;
      replicas.step(step, begin, std::min(begin + training.global_rows, rows));
    }
    mean = replicas.mean();
  });
  return mean;
}

std::string text_of(const Simulated& how) {
  std::string text = std::string("what: ") + (how.outer ? "diloco" : "parameters") +
                     ", every: " + std::to_string(how.every) + ", moments: " + (how.averaged ? "averaged" : "local");
  if (how.outer)
    text += ", outer: {lr: " + std::to_string(how.rate) + ", momentum: " + std::to_string(how.momentum) +
            ", nesterov: " + (how.nesterov ? "true}" : "false}");
  return text;
}

// Ten updates end after a synchronisation (every 3), or with one (every 1 and 5).
TEST(Sync, EqualsAveragedSingleRuns) {
  std::vector<Simulated> cells;
  for (int ranks : {2, 3})
    for (int64_t every : {1, 3, 5})
      for (bool averaged : {false, true})
        for (bool outer : {false, true}) cells.push_back({ranks, every, 0, averaged, outer});
  cells.push_back({2, 3, 0, false, true, 0.5, 0.8, false});
  for (const Simulated& how : cells)
    for (int64_t rows : {16, 5}) {
      SCOPED_TRACE(text_of(how) + " on " + std::to_string(how.ranks) + ", " + std::to_string(rows) + " rows");
      Training training = adamw(true);
      training.global_rows = rows;
      const Subject subject = pairs_subject();
      const Trajectory result = train(ddp(how.ranks, text_of(how)), subject, training);
      State state = in_common(result.final);
      for (auto entry = state.begin(); entry != state.end();)
        entry = entry->first.rfind("parameter/", 0) == 0 || entry->first.rfind("moment/", 0) == 0 ? std::next(entry)
                                                                                                  : state.erase(entry);
      const Difference worst = difference(state, simulate(subject, training, how));
      EXPECT_LE(worst.worst, tolerance) << worst.key;
    }
}

// Four ranks; one or two of them have no row in any batch.
TEST(Sync, RanksWithoutRowsHaveNoWeight) {
  for (const bool outer : {false, true}) {
    Simulated how{4, 2, 0, true, outer};
    Training training = adamw(false);
    training.global_rows = 3;
    const Trajectory result = train(ddp(4, text_of(how)), pairs_subject(), training);
    const State reference = simulate(pairs_subject(), training, how);
    double worst = 0;
    for (const auto& [key, tensor] : reference)
      if (key.rfind("parameter/", 0) == 0)
        worst = std::max(worst, (result.final.at(key) - tensor).abs().max().item<double>());
    EXPECT_LE(worst, tolerance);
  }
}

// ---- sparse embeddings ----

// For some optimizers a row without gradient does not move, or moves equally on all ranks. Then the averages of touched
// rows equal the averages of all rows.
TEST(Sync, SparseEmbeddingsAreAveragedLikeDenseOnes) {
  struct ExecutionMode {
    std::string optimizer, sync;
  };
  const std::string plain = "{name: sgd, lr: 0.3}", adagrad = "{name: adagrad, lr: 0.05, eps: 1.0e-5}";
  const std::string adam = "{name: adamw, lr: 3.0e-3, eps: 1.0e-5, weight_decay: 0.1}";
  const std::vector<ExecutionMode> modes = {
      {plain, "what: parameters"},
      {plain, "what: parameters, every: 3, start_after: 2"},
      {plain, "groups: [{match: user, what: parameters, every: 4}]"},
      {plain, "every: 2, groups: [{match: item, what: parameters, every: 2, moments: averaged}]"},
      {adagrad, "what: parameters, every: 3"},
      {adagrad, "what: parameters, every: 4, moments: averaged"},
      {adam, "what: parameters, moments: averaged"},
  };
  for (const ExecutionMode& mode : modes)
    for (int ranks : {1, 2, 3})
      for (int64_t rows : {16, 4, 2}) {
        if (mode.optimizer == adam && rows < ranks) continue;  // a rank without rows makes no update, so rows differ
        SCOPED_TRACE(mode.optimizer + ", " + mode.sync + " on " + std::to_string(ranks) + ", " + std::to_string(rows) +
                     " rows");
        Training training = sgd(rows);
        training.optimizer = mode.optimizer;
        expect_close(train(ddp(ranks, mode.sync), ranking_subject(true), training),
                     train(ddp(ranks, mode.sync), ranking_subject(false), training));
      }
}

// With momentum, untouched rows continue to move on each rank separately, so the result differs from dense embeddings.
// The difference stays below a fifth of the change in training.
TEST(Sync, SparseEmbeddingsWithMomentumStayNearDenseOnes) {
  Training training = adamw(false);
  training.global_rows = 4;
  training.steps = 30;
  const std::string sync = "what: parameters, every: 4";
  const Trajectory rows = train(ddp(2, sync), ranking_subject(true), training);
  const Trajectory dense = train(ddp(2, sync), ranking_subject(false), training);
  const double moved = difference(in_common(dense.final), in_common(dense.initial)).worst;
  EXPECT_LE(difference(in_common(rows.final), in_common(dense.final)).worst, 0.2 * moved);
}

// ---- compression -----------------------------------------------------------------------------------------------

TEST(Sync, CompressedGradientsStayWithinTheStatedError) {
  for (const char* numbers : {"fp16", "bf16"})
    for (int ranks : {1, 2, 3, 4})
      for (auto* make : {mlp_subject, tied_subject, pairs_subject}) {
        const Subject subject = make();
        SCOPED_TRACE(subject.name + " on " + std::to_string(ranks) + " as " + numbers);
        const std::string sync = std::string("compress: ") + numbers;
        const double stated = narrow_tolerance(numbers);
        const Trajectory narrow = train(ddp(ranks, sync), subject, adamw(true));
        const Trajectory wide = train(ddp(ranks, ""), subject, adamw(true));
        const Difference worst = difference(in_common(narrow.final), wide.final);
        EXPECT_LE(worst.worst, stated) << worst.key;
        if (ranks > 1) {
          EXPECT_GT(worst.worst, 1e-9);  // something was rounded
        }
        const Difference gradient = difference(narrow.gradients, wide.gradients);
        EXPECT_LE(gradient.worst, stated) << gradient.key;
      }
}

// Rows' gradients are rounded like others, and a row's rounding error waits for its next touch.
void expect_within_stated_error(const char* numbers, int ranks, const Subject& subject, const std::string& more) {
  SCOPED_TRACE(std::string(numbers) + " on " + std::to_string(ranks) + more);
  const std::string sync = std::string("compress: ") + numbers + more;
  const double stated = narrow_tolerance(numbers);
  const Trajectory narrow = train(ddp(ranks, sync), subject, adamw(false));
  const Trajectory wide = train(ddp(ranks, more.empty() ? "" : more.substr(2)), subject, adamw(false));
  const Difference worst = difference(in_common(narrow.final), wide.final);
  EXPECT_LE(worst.worst, stated) << worst.key;
  EXPECT_GT(worst.worst, 1e-9) << "nothing was rounded";
  const Difference gradient = difference(narrow.gradients, wide.gradients);
  EXPECT_LE(gradient.worst, stated) << gradient.key;
}

TEST(Sync, CompressedRowsStayWithinTheStatedError) {
  Subject sharded = ranking_subject(true);
  sharded.section = "{name: ncf, rows: sharded}";
  for (const char* numbers : {"fp16", "bf16"}) {
    for (int ranks : {2, 3}) {
      expect_within_stated_error(numbers, ranks, ranking_subject(true), "");
      expect_within_stated_error(numbers, ranks, sharded, "");
    }
    expect_within_stated_error(numbers, 2, sharded, ", every: 2");
  }
}

TEST(Sync, CompressionWithAccumulationAndEmptyRanks) {
  Training training = adamw(false);
  training.global_rows = 3;
  const Trajectory narrow = train(ddp(4, "every: 2, compress: bf16"), pairs_subject(), training);
  const Trajectory wide = train(ddp(4, "every: 2"), pairs_subject(), training);
  EXPECT_LE(difference(in_common(narrow.final), wide.final).worst, narrow_tolerance("bf16"));
}

}  // namespace
}  // namespace convoy::testing
