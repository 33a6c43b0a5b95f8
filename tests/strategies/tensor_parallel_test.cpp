// tensor_parallel and hybrid besides equal results: placement, refusals, bytes sent, failures, and checkpoints that any
// layout reads.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <limits>
#include <mutex>

#include "core/base/error.h"
#include "core/checkpoint/checkpoint.h"
#include "core/model.h"
#include "strategies/common/memory/block_activations.h"
#include "strategies/plans/catalogue.h"
#include "strategies/registry.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/torch/model_subjects.h"
#include "tests/support/torch/subjects.h"
#include "tests/support/torch/whole_state.h"

namespace convoy::testing {
namespace {

Layout tensor(int ranks, const std::string& more = "") { return {"tensor_parallel", more, ranks}; }
Layout hybrid(int data, int degree, const std::string& more = "") {
  return {"hybrid", convoy::str(", mesh: {data: ", data, ", tensor: ", degree, "}", more), data * degree};
}

JobPlan planned(const Layout& layout) {
  Topology topology;
  topology.hosts.resize(1);
  PlanRequest request;
  request.ranks = layout.ranks;
  return strategy_entry(layout.strategy).plan(test_config(layout, {}), topology, request).jobs.at(0);
}

TEST(TensorParallel, PlacesRanksThatSendMostNextToEachOther) {
  const JobPlan job = planned(hybrid(2, 3));
  EXPECT_EQ(job.mesh.group(0, "tensor"), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(job.mesh.group(0, "data"), (std::vector<int>{0, 3}));
  const JobPlan turned = planned(hybrid(2, 3, ", order: [tensor, pipeline, data]"));
  EXPECT_EQ(turned.mesh.group(0, "data"), (std::vector<int>{0, 1}));
  EXPECT_EQ(planned(tensor(4)).mesh.degree("tensor"), 4);
  EXPECT_EQ(planned({"hybrid", ", mesh: {data: {degree: 3, how: ddp}}", 3}).mesh.degree("data"), 3);
}

TEST(TensorParallel, RefusesInvalidMeshesAtTheKey) {
  const auto error_of = [](const std::string& options, int ranks) -> std::string {
    try {
      planned({"hybrid", options, ranks});
    } catch (const ConfigError& error) {
      return convoy::str(error.key(), ": ", error.what());
    }
    return "no error";
  };
  const std::string product = error_of(", mesh: {data: 2, tensor: 2}", 3);
  EXPECT_EQ(product.rfind("strategy.mesh: ", 0), 0u) << product;
  EXPECT_NE(product.find("data 2 × pipeline 1 × tensor 2 = 4 ranks, but there are 3"), std::string::npos) << product;
  for (const auto& [options, words] : std::vector<std::pair<std::string, std::string>>{
           {", mesh: {tensor: 0}", "strategy.mesh.tensor"},
           {", mesh: {data: two}", "strategy.mesh.data"},
           {", mesh: {data: 0}", "strategy.mesh.data"},
           {", mesh: {data: {degree: 2, how: dp}}", "ddp or fsdp"},
           {", mesh: {data: {degrees: 2}}", "unknown key degrees"},
           {", mesh: {rows: 2}", "strategy.mesh.rows"},
           {", mesh: {data: 2}, order: [data, tensor]", "strategy.order"},
           {", mesh: {data: 2}, order: [data, data, pipeline, tensor]", "strategy.order"}}) {
    const std::string error = error_of(options, 2);
    EXPECT_NE(error.find(words), std::string::npos) << options << "\n" << error;
  }
}

TEST(TensorParallel, RefusesIndivisibleHeadsBeforeTheStart) {
  RunConfig config = test_config(tensor(3), {});
  config.model.options = Options(Json{{"name", "net"}, {"heads", 8}}, {}, "model");
  Topology topology;
  topology.hosts.resize(1);
  PlanRequest request;
  request.ranks = 3;
  try {
    strategy_entry("tensor_parallel").plan(config, topology, request);
    ADD_FAILURE() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.key(), "model.heads");
    EXPECT_NE(std::string(error.what()).find("is 8, which 3 ranks"), std::string::npos) << error.what();
  }
  request.ranks = 4;
  EXPECT_NO_THROW(strategy_entry("tensor_parallel").plan(config, topology, request));
}

TEST(TensorParallel, ReportsNothingToShardAndRefusesOddSizes) {
  const StrategyEntry& entry = strategy_entry("tensor_parallel");
  JobPlan job;
  job.mesh = Mesh({{"tensor", 2}});
  job.config.model = {"made", Options(Json{{"name", "made"}, {"width", 9}, {"hidden", {4, 6}}})};
  job.config.strategy.options = Options(Json{{"sequence_parallel", true}});
  ModelDescription model;
  model.blocks.push_back({"first", 100});
  std::vector<std::string> notes = entry.check(job, model);
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_NE(notes[0].find("strategy.name: the model made has nothing that 2 ranks could shard"), std::string::npos);
  EXPECT_NE(notes[1].find("strategy.sequence_parallel: has no effect"), std::string::npos);
  model.blocks[0].cut_parameters = 50;
  model.blocks[0].cuts = {{"first.up", 8, 1, true}};
  EXPECT_EQ(entry.check(job, model).size(), 1u);  // no region
  model.blocks[0].cuts.push_back({"first.down", 8, 1, false});
  EXPECT_TRUE(entry.check(job, model).empty());

  const auto key = [&](int64_t size) -> std::string {
    model.blocks[0].cuts = {{"first.up", size, 1, true}};
    try {
      entry.check(job, model);
    } catch (const ConfigError& error) {
      return error.key();
    }
    return "";
  };
  EXPECT_EQ(key(8), "");
  EXPECT_EQ(key(9), "model.width");
  EXPECT_EQ(key(7), "model");
  job.mesh = Mesh({{"tensor", 4}});
  EXPECT_EQ(key(6), "model.hidden.1");
  job.mesh = Mesh({{"tensor", 1}});
  EXPECT_TRUE(entry.check(job, {}).empty());
}

// An infinite weight in one rank's shard makes an inf that only this rank sees first.
TEST(TensorParallel, AnInfinityInOneShardStopsTheUpdateOnAll) {
  const Subject subject = classifier_subject();
  for (const Layout& layout : {tensor(3), hybrid(2, 2)}) {
    EXPECT_EQ(run(layout, subject,
                  [&](const Context& context, Strategy& strategy) {
                    const bool here = context.rank == context.size - 1;
                    const auto first_weight = [&](double value) {
                      double before = 0;
                      strategy.visit_state([&](const StateEntry& entry) {
                        if (!here || entry.key() != "parameter/hidden.0.linear.weight") return;
                        before = entry.tensor[0][0].item<double>();
                        entry.tensor[0][0].fill_(value);
                      });
                      return before;
                    };
                    const auto key_of = [](const StateEntry& entry) {
                      return convoy::str(entry.key(), at::IntArrayRef(entry.piece.offset));
                    };
                    std::map<std::string, at::Tensor> before;
                    strategy.visit_state(
                        [&](const StateEntry& entry) { before.emplace(key_of(entry), entry.tensor.clone()); });
                    const double value = first_weight(std::numeric_limits<double>::infinity());
                    EXPECT_FALSE(strategy.step({share(subject, strategy.sampling()), 0, true}).finite.item<bool>());
                    first_weight(value);
                    strategy.visit_state([&](const StateEntry& entry) {
                      EXPECT_TRUE(entry.tensor.equal(before.at(key_of(entry)))) << entry.key();
                    });
                    EXPECT_TRUE(strategy.step({share(subject, strategy.sampling()), 1, true}).finite.item<bool>());
                  }),
              "no error");
  }
}

TEST(TensorParallel, ANanInTheLossOfOneRankStopsTheUpdateOnAll) {
  const Subject subject = classifier_subject();
  EXPECT_EQ(run(tensor(2), subject,
                [&](const Context& context, Strategy& strategy) {
                  Batch batch = share(subject, strategy.sampling());
                  at::Tensor weight = at::ones({batch.rows}, at::kDouble);
                  if (context.rank == 1) weight[3] = std::numeric_limits<double>::quiet_NaN();
                  batch.tensors.emplace_back("weight", weight);
                  EXPECT_FALSE(strategy.step({batch, 0, true}).finite.item<bool>());
                }),
            "no error");
}

TEST(TensorParallel, AnExceptionInOneShardEndsAll) {
  const Subject subject = classifier_subject();
  for (const Layout& layout : {tensor(3), hybrid(2, 2)}) {
    const std::string error = run(layout, subject, [&](const Context& context, Strategy& strategy) {
      Batch batch = share(subject, strategy.sampling());
      if (context.rank == 1) {
        for (auto& entry : batch.tensors)
          if (entry.first == "features") entry.second = entry.second.narrow(1, 0, 4);
      }
      strategy.step({batch, 7, true});
    });
    EXPECT_EQ(error.rfind("training: block 0 (hidden.0), forward, step 7: ", 0), 0u) << error;
  }
}

TEST(TensorParallel, ExactlyOneRankOwnsEachPiece) {
  for (const Layout& layout : {tensor(3), hybrid(2, 2)}) {
    std::mutex mutex;
    std::map<std::string, int> owners;
    std::map<std::string, int64_t> elements, whole;
    EXPECT_EQ(run(layout, tied_subject(),
                  [&](const Context&, Strategy& strategy) {
                    std::lock_guard<std::mutex> lock(mutex);
                    strategy.visit_state([&](const StateEntry& entry) {
                      owners[convoy::str(entry.key(), " from ", at::IntArrayRef(entry.piece.offset))] += entry.owner;
                      if (entry.owner) elements[entry.key()] += entry.tensor.numel();
                      whole[entry.key()] = Piece::whole(entry.piece.global_shape).elements();
                    });
                  }),
              "no error");
    for (const auto& [key, count] : owners) EXPECT_EQ(count, 1) << key;
    EXPECT_EQ(elements, whole);
  }
}

TEST(TensorParallel, EveryLayoutReadsEveryCheckpoint) {
  const Subject subject = gpt_of({12, 24, 13});
  const Layout layouts[] = {Layout{}, tensor(2), tensor(3), hybrid(2, 2)};
  for (const Layout& from : layouts) {
    const TemporaryFolder folder;
    WholeState saved;
    EXPECT_EQ(run(from, subject,
                  [&](const Context& context, Strategy& strategy) {
                    for (int64_t step = 0; step < 2; ++step)
                      strategy.step({share(subject, strategy.sampling()), step, true});
                    Checkpoints(context, folder.path(), 0).save(strategy, {2, Json::object()});
                    strategy.visit_state([&](const StateEntry& entry) { saved.add(entry); });
                  }),
              "no error");
    for (const Layout& to : layouts) {
      WholeState loaded;
      EXPECT_EQ(run(to, subject,
                    [&](const Context& context, Strategy& strategy) {
                      Checkpoints checkpoints(context, folder.path(), 0);
                      const auto info = checkpoints.newest();
                      ASSERT_TRUE(info.has_value());
                      checkpoints.load(strategy, *info);
                      strategy.state_restored();
                      strategy.visit_state([&](const StateEntry& entry) { loaded.add(entry); });
                    }),
                "no error");
      EXPECT_TRUE(bitwise_equal(loaded.tensors(), saved.tensors())) << to_string(from) << " → " << to_string(to);
    }
  }
}

// Describes the model gpt with T = 6, dim 24, MLP of 48, vocabulary 12 and two blocks, from formulas of its layers.
ModelDescription gpt_description() {
  constexpr int64_t e = 8, d = 24, v = 12, t = 6, row = t * d * e;
  ModelDescription description;
  description.element_bytes = e;
  BlockDescription embedding;
  embedding.name = "embedding";
  embedding.parameters = v * d + t * d;
  embedding.row_output_bytes = row;
  embedding.cut_parameters = v * d;
  embedding.row_cut_output_bytes = row;
  embedding.cut_exchanges = 1;
  description.blocks.push_back(embedding);
  for (const char* name : {"blocks.0", "blocks.1"}) {
    BlockDescription block;
    block.name = name;
    block.parameters = 4 * d + (3 * d * d + 3 * d) + (d * d + d) + (2 * d * d + 2 * d) + (2 * d * d + d);
    block.cut_parameters = (3 * d * d + 3 * d) + d * d + (2 * d * d + 2 * d) + 2 * d * d;
    block.row_cut_input_bytes = 2 * row;
    block.row_cut_output_bytes = 2 * row;
    block.cut_exchanges = 4;
    description.blocks.push_back(block);
  }
  BlockDescription output;
  output.name = "output";
  output.parameters = 2 * d;
  output.row_cut_input_bytes = row;
  output.cut_exchanges = 1;
  description.blocks.push_back(output);
  return description;
}

TEST(TensorParallel, BytesSentAndLocalBytesMatchTheCost) {
  const Subject subject = gpt_of({12, 24, 12});
  for (const Layout& layout : {tensor(2), tensor(2, ", sequence_parallel: true"), hybrid(2, 2)}) {
    JobPlan job = planned(layout);
    const RankCost cost = strategy_entry(layout.strategy).cost(job, gpt_description()).front();
    Training training;
    training.steps = 9;  // the fifth and tenth batch are smaller
    const Trajectory result = train(layout, subject, training);
    const double data = job.mesh.degree("data"), rows = 16 / data, ranks = job.mesh.degree("tensor");
    double held = 0;
    EXPECT_EQ(run(layout, subject,
                  [&](const Context& context, Strategy& strategy) {
                    if (context.rank != 0) return;
                    strategy.visit_state([&](const StateEntry& entry) {
                      if (entry.kind == StateKind::parameter) held += static_cast<double>(entry.tensor.nbytes());
                    });
                  }),
              "no error");
    EXPECT_DOUBLE_EQ(held, cost.parameter_bytes) << to_string(layout);
    // Additional bytes: the loss over sharded classes (3 numbers a position), the numbers of the norm, gradients of
    // five norms (sequence shards), and along data the padding of 32 parameters to 64 bytes and the header.
    const double share = (ranks - 1) / ranks;
    const double loss = 2 * share * rows * 6 * 3 * 8, norm = 2 * share * 2 * 8;
    const double norms = 2 * share * 5 * 2 * 24 * 8, padding = 2 * (data - 1) / data * 64 * 33;
    const double sent = static_cast<double>(result.bytes_sent);
    EXPECT_GE(sent, cost.bytes_sent_per_step + loss + norm) << to_string(layout);
    EXPECT_LE(sent, cost.bytes_sent_per_step + loss + norm + norms + padding + 64) << to_string(layout);
  }
}

// Sequences [rows, 6, 8], a block with sharded layers, and the result of `finish` for a last block or none.
class Sequences : public Model {
 public:
  using Finish = std::function<TensorList(const at::Tensor& value, const at::Tensor& extra)>;
  Sequences(Finish finish, bool head) : finish_(std::move(finish)), head_(head) {}
  int64_t blocks() const override { return head_ ? 3 : 2; }
  std::string block_name(int64_t index) const override { return convoy::str("blocks.", index); }
  BlockPtr block(int64_t index, Layers& layers) const override {
    struct Step : Block {
      TensorList forward(const TensorList& inputs) override { return run(inputs); }
      std::function<TensorList(const TensorList&)> run;
    };
    auto block = std::make_shared<Step>();
    const auto linear = [&](const char* name, int64_t in, int64_t out, LinearOptions::Cut cut) {
      LinearOptions options;
      options.cut = cut;
      return block->register_module(name, layers.linear(name, in, out, options));
    };
    using Cut = LinearOptions::Cut;
    if (index == 0) {
      const Layer wide = linear("wide", 1, 8, Cut::none);
      // Besides the sequences, a tensor passes that looks like a shard of them, but is none.
      block->run = [wide](const TensorList& in) -> TensorList {
        return {wide->forward(in[0].unsqueeze(-1)), in[0].narrow(1, 0, 3)};
      };
    } else if (index == 1) {
      const Layer up = linear("up", 8, 8, Cut::column), down = linear("down", 8, 8, Cut::row);
      block->run = [=, finish = finish_](const TensorList& in) {
        return finish(down->forward(up->forward(in[0]).tanh()), in[1]);
      };
    } else {
      const Layer out = linear("out", 6, 5, Cut::none);
      block->run = [out](const TensorList& in) -> TensorList {
        return {out->forward(in[0].dim() == 3 ? in[0].mean(-1) : in[0])};
      };
    }
    return block;
  }
  TensorList inputs(const Batch& batch) const override { return {batch.at("features")}; }
  Examples examples(const TensorList& outputs, const Batch& batch) const override {
    return {outputs[0], batch.at("target"), {}};
  }
  std::string default_loss() const override { return "cross_entropy"; }
  std::vector<Metric> metrics(const TensorList&, const Batch&, Layers&) const override { return {}; }

 private:
  Finish finish_;
  bool head_;
};

std::string error_of_sequences(const std::string& options, const Sequences::Finish& finish, bool head) {
  Subject subject = mlp_subject();
  subject.model = [=] { return std::make_shared<Sequences>(finish, head); };
  return run(tensor(2, options), subject, [&](const Context&, Strategy& strategy) {
    strategy.step({share(subject, strategy.sampling()), 0, true});
  });
}

// [rows, T] of a block with shards of T would look like a whole tensor to the next block.
TEST(TensorParallel, NamesABlockThatReshapesASequenceShard) {
  const auto flat = [](const at::Tensor& value, const at::Tensor&) -> TensorList { return {value.mean(-1)}; };
  const std::string shares = ", sequence_parallel: true";
  for (const bool head : {true, false}) {
    const std::string error = error_of_sequences(shares, flat, head);
    EXPECT_EQ(error.rfind("config: ", 0), 0u) << error;
    EXPECT_NE(error.find("strategy.sequence_parallel: block blocks.1 returns [75, 3] for sequences of 6 positions"),
              std::string::npos)
        << error;
  }
  EXPECT_EQ(error_of_sequences("", flat, true), "no error");
  const auto pooled = [](const at::Tensor& value, const at::Tensor&) -> TensorList { return {value.mean(1)}; };
  const auto transposed = [](const at::Tensor& value, const at::Tensor&) -> TensorList {
    return {value.transpose(1, 2)};
  };
  for (const Sequences::Finish& finish : {Sequences::Finish(pooled), Sequences::Finish(transposed)})
    EXPECT_NE(
        error_of_sequences(shares, finish, false).find("strategy.sequence_parallel: block blocks.1 returns [75, "),
        std::string::npos);
  const auto handed_on = [](const at::Tensor& value, const at::Tensor& extra) -> TensorList { return {value, extra}; };
  EXPECT_EQ(error_of_sequences(shares, handed_on, true), "no error");
}

// A plan with measured blocks is refused for the same reason.
TEST(TensorParallel, RefusesAMeasuredModelWithFlatSequences) {
  const auto refusal = [](const Sequences::Finish& finish, bool sequence_parallel) -> std::string {
    const Subject subject = mlp_subject();
    const auto model = std::make_shared<Sequences>(finish, true);
    ModelDescription description = describe_model(*model, "fp64");
    at::set_num_threads(1);
    measure_activations(test_config({"single", "", 1}, {}), model, subject.loss, subject.data.slice(0, 4), description);
    JobPlan job;
    job.mesh = Mesh({{"tensor", 2}});
    job.config.strategy.options = Options(Json{{"sequence_parallel", sequence_parallel}});
    try {
      strategy_entry("tensor_parallel").check(job, Json(description).get<ModelDescription>());
    } catch (const ConfigError& error) {
      return error.key() + ": " + error.what();
    }
    return "none";
  };
  const auto flat = [](const at::Tensor& value, const at::Tensor&) -> TensorList { return {value.mean(-1)}; };
  const std::string reason = refusal(flat, true);
  EXPECT_EQ(reason.rfind("strategy.sequence_parallel: ", 0), 0u) << reason;
  EXPECT_NE(reason.find("block blocks.1 returns [rows, 3] for sequences of 6 positions, with a local shard of 3"),
            std::string::npos)
      << reason;
  EXPECT_EQ(refusal(flat, false), "none");
  const auto pooled = [](const at::Tensor& value, const at::Tensor&) -> TensorList {
    return {value.mean(1).narrow(1, 0, 6)};
  };
  EXPECT_NE(refusal(pooled, true).find("block blocks.1 returns [rows, "), std::string::npos) << refusal(pooled, true);
  const auto handed_on = [](const at::Tensor& value, const at::Tensor& extra) -> TensorList { return {value, extra}; };
  EXPECT_EQ(refusal(handed_on, true), "none");
}

}  // namespace
}  // namespace convoy::testing
