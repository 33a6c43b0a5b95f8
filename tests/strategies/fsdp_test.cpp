// fsdp besides equal results: bytes sent and memory follow the formulas, other layouts read its state, and refusals.
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "core/base/error.h"
#include "core/checkpoint/checkpoint.h"
#include "core/model.h"
#include "strategies/common/step/mesh_strategy.h"
#include "strategies/plans/catalogue.h"
#include "strategies/shards/sharded_data.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/torch/model_subjects.h"
#include "tests/support/torch/subjects.h"
#include "tests/support/torch/whole_state.h"

namespace convoy::testing {
namespace {

Layout fsdp(int ranks, const std::string& shard, const std::string& more = "") {
  return {"fsdp", ", shard: " + shard + more, ranks};
}

StepInput input(const Subject& subject, const Sampling& sampling, int64_t step) {
  const auto [begin, end] = share_of(subject.data.rows, sampling.index, sampling.count);
  StepInput input{subject.data.slice(begin, end), step, true};
  input.batch.nominal_rows = input.batch.global_rows = subject.data.rows;
  return input;
}

using Body = std::function<void(const Context&, Strategy&)>;
// Four blocks whose parameters fill their shards exactly on two and four ranks.
constexpr int64_t block_width = 32;
class EvenBlock : public Block {
 public:
  explicit EvenBlock(Layers& layers) {
    linear_ = register_module("linear", layers.linear("linear", block_width, block_width));
    wide_ = register_module("wide", layers.linear("wide", block_width, 3 * block_width));
    narrow_ = register_module("narrow", layers.linear("narrow", 3 * block_width, block_width));
  }
  TensorList forward(const TensorList& in) override {
    return {linear_->forward(narrow_->forward(wide_->forward(in[0]).tanh()).tanh())};
  }

 private:
  Layer linear_, wide_, narrow_;
};
constexpr int64_t block_elements =
    block_width * block_width + block_width + 2 * 3 * block_width * block_width + 4 * block_width;

class EvenModel : public Model {
 public:
  int64_t blocks() const override { return 4; }
  std::string block_name(int64_t index) const override { return convoy::str("blocks.", index); }
  BlockPtr block(int64_t, Layers& layers) const override { return std::make_shared<EvenBlock>(layers); }
  TensorList inputs(const Batch& batch) const override { return {batch.at("features")}; }
  Examples examples(const TensorList& outputs, const Batch& batch) const override {
    return {outputs[0], batch.at("target"), {}};
  }
  std::string default_loss() const override { return "cross_entropy"; }
  std::vector<Metric> metrics(const TensorList&, const Batch&, Layers&) const override { return {}; }
};

Subject even_subject() {
  Subject subject = mlp_subject();
  subject.model = [] { return std::make_shared<EvenModel>(); };
  for (auto& entry : subject.data.tensors)
    if (entry.first == "features") entry.second = entry.second.repeat({1, 6}).narrow(1, 0, block_width).contiguous();
  return subject;
}

RankCost cost_of(const Layout& layout) {
  const JobPlan job = planned(layout, test_config(layout, {}));
  ModelDescription description;
  description.element_bytes = 8;
  for (int64_t block = 0; block < 4; ++block)
    description.blocks.push_back({convoy::str("blocks.", block), block_elements});
  return strategy_entry("fsdp").cost(job, description).front();
}

std::vector<Layout> table() {
  std::vector<Layout> all;
  for (int ranks : {2, 4})
    for (const char* shard : {"optimizer", "gradients", "parameters"})
      for (const char* more : {"", ", micro_batches: 3", ", reshard_after_forward: false", ", overlap: false"})
        if (std::string(more).find("reshard") == std::string::npos || std::string(shard) == "parameters")
          all.push_back(fsdp(ranks, shard, more));
  return all;
}

TEST(Fsdp, BytesSentMatchTheFormula) {
  const Subject subject = even_subject();
  for (const Layout& layout : table()) {
    const Trajectory result = train(layout, subject, {});
    // Additional bytes: the loss and its weight, and the norm with its two flags.
    const double small = 2.0 * (layout.ranks - 1) / layout.ranks * (16 + 24);
    EXPECT_EQ(static_cast<double>(result.bytes_sent), cost_of(layout).bytes_sent_per_step + small) << to_string(layout);
  }
}

// Mean over the steps of an update, with accumulation.
TEST(Fsdp, BytesSentWithAccumulation) {
  const Subject subject = even_subject();
  for (const char* shard : {"optimizer", "gradients", "parameters"}) {
    const Layout layout = fsdp(2, shard, ", sync: {every: 3}");
    EXPECT_EQ(run(layout, subject,
                  [&](const Context& context, Strategy& strategy) {
                    const int64_t before = context.world->bytes_sent();
                    for (int64_t step = 0; step < 6; ++step) {
                      StepInput in = input(subject, strategy.sampling(), step);
                      in.flush = false;
                      EXPECT_EQ(strategy.step(in).updated, step % 3 == 2);
                    }
                    const double small = 2 * (16.0 + 24);  // two updates
                    EXPECT_EQ(static_cast<double>(context.world->bytes_sent() - before),
                              6 * cost_of(layout).bytes_sent_per_step + small)
                        << shard;
                  }),
              "no error");
  }
}

// Tensors that always exist, plus the peak of borrowed ones.
TEST(Fsdp, LocalBytesMatchTheFormula) {
  const Subject subject = even_subject();
  for (const Layout& layout : table()) {
    const RunConfig config = test_config(layout, {});
    const RankCost cost = cost_of(layout);
    with_ranks(layout, config, [&](const Context& context) {
      const ShardedOptions options{sharded_step_options(config.strategy.options)};
      PartRequest request = part_request(context, options);
      request.deferred = options.shard == Shard::parameters;
      auto runner = make_whole_runner(context, subject.model(), subject.loss, request);
      ShardedData data(context, runner->parts(), options);
      for (int64_t step = 0; step < 3; ++step) {
        const StepInput in = input(subject, {context.rank, context.size}, step);
        data.begin(true, true);
        runner->train({in.batch}, step, 75,
                      {[&](const Loss& loss) { data.add_loss(loss); }, [&](int part) { data.last_backward(part); }});
        data.update(75, true);
      }
      data.flush();
      double moments = 0, parameters = 0;
      data.visit_state([&](const StateEntry& entry) {
        if (entry.kind == StateKind::moment) moments += static_cast<double>(entry.tensor.nbytes());
        if (entry.kind == StateKind::parameter) parameters += static_cast<double>(entry.tensor.nbytes());
      });
      EXPECT_EQ(moments, cost.moment_bytes) << to_string(layout);
      EXPECT_EQ(parameters, 4 * block_elements * 8.0 / layout.ranks) << to_string(layout);
      const double held = static_cast<double>(data.local_bytes()) + static_cast<double>(data.borrowed_bytes_peak());
      const double formula = cost.parameter_bytes + cost.gradient_bytes;
      EXPECT_LE(held, formula) << to_string(layout);
      // A shard to add may reuse memory that was returned just before.
      EXPECT_GE(held, formula - block_elements * 8.0 / layout.ranks) << to_string(layout);
    });
  }
}

// Another layout, with another number of ranks, reads the checkpoint.
TEST(Fsdp, ReadsCheckpointsOfOtherStrategies) {
  const Subject subject = gpt_subject();
  const std::vector<Layout> layouts{
      {"single", "", 1},     {"ddp", "", 2},        fsdp(3, "optimizer"), fsdp(2, "gradients", ", units: tensors"),
      fsdp(4, "parameters"), fsdp(2, "parameters"), fsdp(1, "parameters")};
  for (const Layout& writer : layouts) {
    TemporaryFolder folder;
    WholeState written;
    EXPECT_EQ(run(writer, subject,
                  [&](const Context& context, Strategy& strategy) {
                    for (int64_t step = 0; step < 2; ++step) strategy.step(input(subject, strategy.sampling(), step));
                    Checkpoints(context, folder.path(), 0).save(strategy, {2, Json::object()});
                    strategy.visit_state([&](const StateEntry& entry) { written.add(entry); });
                  }),
              "no error");
    for (const Layout& reader : layouts) {
      WholeState read;
      EXPECT_EQ(run(reader, subject,
                    [&](const Context& context, Strategy& strategy) {
                      Checkpoints checkpoints(context, folder.path(), 0);
                      const auto newest = checkpoints.newest();
                      ASSERT_TRUE(newest.has_value());
                      checkpoints.load(strategy, *newest);
                      strategy.state_restored();
                      strategy.visit_state([&](const StateEntry& entry) { read.add(entry); });
                      EXPECT_TRUE(strategy.step(input(subject, strategy.sampling(), 2)).finite.item<bool>());
                    }),
                "no error");
      EXPECT_TRUE(bitwise_equal(written.tensors(), read.tensors())) << to_string(writer) << " → " << to_string(reader);
    }
  }
}

TEST(Fsdp, ResumesBitForBit) {
  const Subject subject = tied_subject();
  for (const char* shard : {"optimizer", "gradients", "parameters"}) {
    const Layout layout = fsdp(3, shard);
    std::mutex mutex;
    std::map<int, std::map<std::string, at::Tensor>> saved, whole, resumed;
    const auto keep = [&](std::map<int, std::map<std::string, at::Tensor>>& into, int rank, Strategy& strategy) {
      const std::lock_guard<std::mutex> lock(mutex);
      strategy.visit_state([&](const StateEntry& entry) { into[rank].emplace(entry.key(), entry.tensor.clone()); });
    };
    EXPECT_EQ(run(layout, subject,
                  [&](const Context& context, Strategy& strategy) {
                    for (int64_t step = 0; step < 6; ++step) {
                      if (step == 3) keep(saved, context.rank, strategy);
                      strategy.step(input(subject, strategy.sampling(), step));
                    }
                    keep(whole, context.rank, strategy);
                  }),
              "no error");
    EXPECT_EQ(run(layout, subject,
                  [&](const Context& context, Strategy& strategy) {
                    strategy.visit_state(
                        [&](const StateEntry& entry) { entry.tensor.copy_(saved.at(context.rank).at(entry.key())); });
                    strategy.state_restored();
                    for (int64_t step = 3; step < 6; ++step) strategy.step(input(subject, strategy.sampling(), step));
                    keep(resumed, context.rank, strategy);
                  }),
              "no error");
    for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(bitwise_equal(whole[rank], resumed[rank])) << shard << rank;
  }
}

TEST(Fsdp, NanOnOneRankStopsTheUpdateOnAll) {
  const Subject subject = foreign_subject();
  for (const char* shard : {"optimizer", "gradients", "parameters"})
    EXPECT_EQ(run(fsdp(3, shard), subject,
                  [&](const Context& context, Strategy& strategy) {
                    std::vector<at::Tensor> before, after;
                    const auto all = [&](std::vector<at::Tensor>& into) {
                      strategy.visit_state([&](const StateEntry& entry) { into.push_back(entry.tensor.clone()); });
                    };
                    all(before);
                    StepInput in = input(subject, strategy.sampling(), 0);
                    if (context.rank == 1)
                      for (auto& entry : in.batch.tensors)
                        if (entry.first == "features")
                          entry.second = entry.second * std::numeric_limits<double>::infinity();
                    EXPECT_FALSE(strategy.step(in).finite.item<bool>());
                    all(after);
                    ASSERT_EQ(before.size(), after.size());
                    for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(before[i].equal(after[i]));
                    EXPECT_TRUE(strategy.step(input(subject, strategy.sampling(), 1)).finite.item<bool>());
                  }),
              "no error");
}

// An exception of one rank between two collectives ends the others, and is reported as the cause.
TEST(Fsdp, NamesBlockAndStepOfAModelsError) {
  const Subject subject = mlp_subject();
  const std::string error = run(fsdp(2, "parameters"), subject, [&](const Context& context, Strategy& strategy) {
    StepInput in = input(subject, strategy.sampling(), 17);
    if (context.rank == 0)
      for (auto& entry : in.batch.tensors)
        if (entry.first == "features") entry.second = entry.second.narrow(1, 0, 4);  // two columns short
    strategy.step(in);
  });
  EXPECT_EQ(error.rfind("training: block 0 (blocks.0), forward, step 17: ", 0), 0u) << error;
}

TEST(Fsdp, NamesUnknownBlocksToRecompute) {
  const std::string error =
      run(fsdp(2, "parameters", ", recompute: [blocks.0, block.1]"), mlp_subject(), [](const Context&, Strategy&) {});
  EXPECT_NE(error.find("strategy.recompute: the model has no block 'block.1'"), std::string::npos) << error;
  EXPECT_NE(error.find("did you mean blocks.1?"), std::string::npos) << error;
}

TEST(Fsdp, ExactlyOneRankOwnsEachElement) {
  const Subject subject = gpt_subject();
  std::mutex mutex;
  std::map<std::string, int64_t> owned, whole;
  EXPECT_EQ(run(fsdp(3, "parameters"), subject,
                [&](const Context&, Strategy& strategy) {
                  const std::lock_guard<std::mutex> lock(mutex);
                  strategy.visit_state([&](const StateEntry& entry) {
                    whole[entry.key()] = Piece::whole(entry.piece.global_shape).elements();
                    if (entry.owner) owned[entry.key()] += entry.piece.elements();
                  });
                }),
            "no error");
  EXPECT_GT(owned.size(), 30u);
  EXPECT_EQ(owned, whole);
}

TEST(Fsdp, Bf16GathersInHalfPrecisionAndKeepsFloatParameters) {
  const Subject subject = gpt_subject();
  Training training;
  training.precision = "bf16";
  training.optimizer = "{name: sgd, lr: 0.1}";
  const Trajectory sharded = train(fsdp(2, "parameters"), subject, training);
  const Trajectory replicated = train({"ddp", "", 2}, subject, training);
  training.precision = "fp32";
  const Trajectory wide = train(fsdp(2, "parameters"), subject, training);
  EXPECT_EQ(sharded.final.at("parameter/blocks.0.qkv.weight").scalar_type(), at::kFloat);
  // Autocast converts the same values; only sums over ranks may have a different order.
  EXPECT_LT(difference(sharded.final, replicated.final).worst, 1e-5);
  EXPECT_GT(difference(sharded.final, wide.final).worst, 1e-5);
  EXPECT_LT(sharded.bytes_sent, wide.bytes_sent * 0.8);
}

}  // namespace
}  // namespace convoy::testing
