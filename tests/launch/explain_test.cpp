// Output of `convoy explain`, from model descriptions made by hand.
#include "launch/cli/commands.h"

#include <gmock/gmock.h>

#include <map>

#include "core/base/error.h"
#include "launch/explain/candidate.h"
#include "launch/explain/explain.h"
#include "launch/machine/placement.h"
#include "strategies/plans/catalogue.h"
#include "tests/launch/saved_topologies.h"

namespace convoy {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Two blocks of 1 MiB each in fp32, with counted parameters and without measured activations.
ModelDescription counted_model() {
  ModelDescription model;
  for (const char* name : {"first", "second"}) {
    BlockDescription block;
    block.name = name;
    block.parameters = mib / 4;
    block.products = block.parameters;
    model.blocks.push_back(block);
  }
  return model;
}

// Default options and the values that the formulas read.
RunConfig config_of(const StrategyEntry& strategy, const Json& changes) {
  Json section = {{"name", strategy.name}};
  for (const Option& option : strategy.options) {
    section[option.name] = option.fallback.json();
    for (const Option& inner : option.options)
      if (option.type == OptionType::section) section[option.name][inner.name] = inner.fallback.json();
  }
  section.update(changes);
  RunConfig config;
  config.strategy = {strategy.name, Options(section)};
  config.optimizer = {"adam", Options(Json{{"name", "adam"}})};
  config.train.batch.rows = 64;
  return config;
}

JobPlan job_of(const std::string& strategy, const Mesh& mesh, const Json& changes = Json::object()) {
  JobPlan job;
  job.name = "made";
  job.mesh = mesh;
  job.backend = "gloo";
  job.config = config_of(strategy_entry(strategy), changes);
  for (int rank = 0; rank < mesh.size(); ++rank) {
    RankPlan plan;
    plan.rank = plan.process = rank;
    plan.devices.emplace_back();
    job.ranks.push_back(plan);
    job.processes.push_back({0, {rank}});
  }
  return job;
}

std::vector<RankCosts> costs(const JobPlan& job, const ModelDescription& model = counted_model()) {
  return rank_costs_of(strategy_entry(job.config.strategy.name), job, model);
}

TEST(Costs, FromParametersAreExact) {
  const RankCosts rank = costs(job_of("ddp", Mesh({{"data", 2}}))).front();
  EXPECT_TRUE(rank.sent.exact());
  EXPECT_EQ(rank.sent.value, 2 * mib);
  EXPECT_EQ(bytes_text(rank.sent_on.at("data")), "2 MiB");
  EXPECT_EQ(bytes_text(rank.moments), "4 MiB");
  EXPECT_EQ(bytes_text(rank.activations), "not measured");
  EXPECT_EQ(memory_text(memory_of(rank)), "≥ 8 MiB");
}

TEST(Costs, OfAMeasuredModelAreComplete) {
  ModelDescription model = counted_model();
  for (BlockDescription& block : model.blocks) block.row_output_bytes = block.row_saved_bytes = 1024;
  const RankCosts rank = costs(job_of("ddp", Mesh({{"data", 2}})), model).front();
  EXPECT_EQ(bytes_text(rank.activations), "64 KiB");  // 32 rows of 2 KiB
  EXPECT_TRUE(memory_of(rank).complete);
}

TEST(Costs, OneRankSendsNothing) {
  const RankCosts rank = costs(job_of("single", Mesh({{"data", 1}}))).front();
  EXPECT_EQ(bytes_text(rank.sent), "0");
  EXPECT_TRUE(rank.sent_on.empty());
}

TEST(Costs, SentActivationsAreNotMeasured) {
  const RankCosts rank = costs(job_of("pipeline", Mesh({{"pipeline", 2}}))).front();
  EXPECT_EQ(bytes_text(rank.sent), "not measured");
  EXPECT_TRUE(rank.messages.exact());
  EXPECT_EQ(bytes_text(rank.parameters), "1 MiB");
}

TEST(Costs, UnknownShardsAreAtMostTheWhole) {
  const RankCosts rank = costs(job_of("tensor_parallel", Mesh({{"tensor", 2}}))).front();
  EXPECT_EQ(bytes_text(rank.parameters), "≤ 2 MiB");
  ModelDescription model = counted_model();
  for (BlockDescription& block : model.blocks) block.cut_parameters = block.parameters;
  EXPECT_EQ(bytes_text(costs(job_of("tensor_parallel", Mesh({{"tensor", 2}})), model).front().parameters), "1 MiB");
}

TEST(Costs, AMeasuredZeroIsKnown) {
  ModelDescription model = counted_model();  // nothing is sharded
  for (BlockDescription& block : model.blocks) block.row_output_bytes = block.row_saved_bytes = 1024;
  const JobPlan job = job_of("tensor_parallel", Mesh({{"tensor", 2}}));
  EXPECT_EQ(bytes_text(costs(job, model).front().sent), "not measured");
  model.measured = true;
  model = Json(model).get<ModelDescription>();
  const RankCosts rank = costs(job, model).front();
  EXPECT_EQ(bytes_text(rank.sent_on.at("tensor")), "0");
  EXPECT_EQ(bytes_text(rank.parameters), "2 MiB");
  EXPECT_EQ(bytes_text(rank.activations), "128 KiB");
  EXPECT_TRUE(memory_of(rank).complete);
}

TEST(Costs, BytesByAxis) {
  ModelDescription model = counted_model();
  for (BlockDescription& block : model.blocks) {
    block.cut_parameters = block.parameters;
    block.row_cut_input_bytes = block.row_cut_output_bytes = block.row_output_bytes = block.row_saved_bytes = 64;
    block.row_cut_saved_bytes = 32;
    block.cut_exchanges = 2;
  }
  const Json mesh = {{"mesh", {{"data", 2}, {"pipeline", 1}, {"tensor", 2}}}};
  for (const char* how : {"ddp", "fsdp"}) {
    Json changes = mesh;
    changes["mesh"]["data"] = {{"degree", 2}, {"how", how}};
    const RankCosts rank = costs(job_of("hybrid", Mesh({{"data", 2}, {"tensor", 2}}), changes), model).front();
    EXPECT_GT(rank.sent_on.at("data").value, 0);
    EXPECT_GT(rank.sent_on.at("tensor").value, 0);
    EXPECT_DOUBLE_EQ(rank.sent_on.at("data").value + rank.sent_on.at("tensor").value, rank.sent.value) << how;
    EXPECT_DOUBLE_EQ(rank.messages_on.at("data").value + rank.messages_on.at("tensor").value, rank.messages.value);
  }
}

TEST(Costs, ATensorGroupShardsProductsInHalfPrecision) {
  ModelDescription model = counted_model();
  for (BlockDescription& block : model.blocks) {
    block.tensors = block.product_tensors = 1;
    block.product_parameters = block.cut_parameters = block.cut_product_parameters = block.parameters;
  }
  model = Json(model).get<ModelDescription>();
  const Json mesh = {{"mesh", {{"data", {{"degree", 2}, {"how", "fsdp"}}}, {"pipeline", 1}, {"tensor", 2}}}};
  JobPlan job = job_of("hybrid", Mesh({{"data", 2}, {"tensor", 2}}), mesh);
  for (const char* precision : {"fp32", "bf16"}) {
    job.config.precision = precision;
    EXPECT_EQ(bytes_text(costs(job, model).front().moments), "1 MiB")
        << precision;  // two moments of 2 MiB over four ranks
  }
}

// ---- work for predictions of times ----

RankCost cost_of(const JobPlan& job, const ModelDescription& model = counted_model(), size_t rank = 0) {
  return strategy_entry(job.config.strategy.name).cost(job, model).at(rank);
}

TEST(Work, AReplicaHasAShareOfTheRowsAndTheWholeUpdate) {
  const RankCost cost = cost_of(job_of("ddp", Mesh({{"data", 2}}), {{"micro_batches", 4}, {"sync", {{"every", 8}}}}));
  EXPECT_EQ(cost.work.rows, 8);  // 64 over two ranks and four micro-batches
  EXPECT_EQ(cost.work.span, 4);
  EXPECT_EQ(cost.work.busy, 4);
  EXPECT_DOUBLE_EQ(cost.work.updates, 1.0 / 8);
  EXPECT_EQ(cost.work.updated, 1);
  ASSERT_EQ(cost.axes.size(), 1u);
  EXPECT_EQ(cost.axes[0].kind, Exchange::all_reduce);
  EXPECT_DOUBLE_EQ(cost.axes[0].overlapped, 0.5);  // the first of two buckets
  EXPECT_EQ(cost_of(job_of("ddp", Mesh({{"data", 2}}), {{"overlap", false}})).axes[0].overlapped, 0);
}

TEST(Work, TheRunChoosesOverlapUnlessItIsConfiguredOrReplicasTrainLocally) {
  const auto chooses = [](const Json& options) {
    const std::vector<AxisCost> axes = cost_of(job_of("ddp", Mesh({{"data", 2}}), options)).axes;
    return std::any_of(axes.begin(), axes.end(), [](const AxisCost& axis) { return axis.run_chooses_overlap; });
  };
  EXPECT_TRUE(chooses({{"micro_batches", 1}}));
  EXPECT_FALSE(chooses({{"overlap", true}}));
  EXPECT_FALSE(chooses({{"overlap", false}}));
  EXPECT_FALSE(chooses({{"sync", {{"what", "parameters"}, {"every", 8}}}}));
}

TEST(Work, FsdpGathersScattersAndUpdatesShards) {
  const RankCost cost = cost_of(job_of("fsdp", Mesh({{"data", 2}})));
  EXPECT_DOUBLE_EQ(cost.work.updated, 0.5);
  std::map<Exchange, AxisCost> by_kind;
  double bytes = 0, messages = 0;
  for (const AxisCost& axis : cost.axes) {
    by_kind[axis.kind] = axis;
    bytes += axis.bytes;
    messages += axis.messages;
  }
  EXPECT_DOUBLE_EQ(bytes, cost.bytes_sent_per_step);
  EXPECT_DOUBLE_EQ(messages, cost.messages_per_step);
  EXPECT_EQ(by_kind[Exchange::gather].messages, 3);  // forward both blocks, backward the first again
  EXPECT_EQ(by_kind[Exchange::scatter].messages, 2);
  for (const char* shard : {"optimizer", "gradients"}) {
    const RankCost other = cost_of(job_of("fsdp", Mesh({{"data", 2}}), {{"shard", shard}}));
    bytes = 0;
    for (const AxisCost& axis : other.axes) bytes += axis.bytes;
    EXPECT_DOUBLE_EQ(bytes, other.bytes_sent_per_step) << shard;
  }
}

TEST(Work, StagesWaitForEachOther) {
  ModelDescription model = counted_model();
  const JobPlan job = job_of("pipeline", Mesh({{"pipeline", 2}}));
  RankCost cost = cost_of(job, model);
  EXPECT_EQ(cost.work.rows, 16);
  EXPECT_DOUBLE_EQ(cost.work.busy, 2);    // four halves
  EXPECT_DOUBLE_EQ(cost.work.span, 2.5);  // (m + p − 1) halves
  EXPECT_DOUBLE_EQ(cost.work.updated, 0.5);
  // The slower stage sets the pace.
  model.blocks[0].time = 0.75;
  model.blocks[1].time = 0.25;
  cost = cost_of(job, model, 1);
  EXPECT_DOUBLE_EQ(cost.work.busy, 1);
  EXPECT_DOUBLE_EQ(cost.work.span, 3);  // the first stage is never idle
  double sent = 0;
  for (const AxisCost& axis : cost.axes) sent += axis.bytes;
  EXPECT_DOUBLE_EQ(sent, cost.bytes_sent_per_step);
}

TEST(Work, ATensorGroupDividesShardedLayers) {
  ModelDescription model = counted_model();
  model.blocks[0].cut_parameters = model.blocks[0].parameters;
  const RankCost cost = cost_of(job_of("tensor_parallel", Mesh({{"tensor", 2}})), model);
  EXPECT_DOUBLE_EQ(cost.work.busy, 0.75);  // one of two blocks is sharded
  EXPECT_TRUE(cost.work.cut);
  EXPECT_DOUBLE_EQ(cost.work.updated, 0.75);
}

TEST(Work, AHybridCombinesAllAxes) {
  ModelDescription model = counted_model();
  for (BlockDescription& block : model.blocks) {
    block.cut_parameters = block.parameters;
    block.row_cut_input_bytes = block.row_cut_output_bytes = block.row_output_bytes = block.row_saved_bytes = 64;
    block.cut_exchanges = 2;
  }
  const Json mesh = {{"mesh", {{"data", {{"degree", 2}, {"how", "fsdp"}}}, {"pipeline", 2}, {"tensor", 2}}},
                     {"micro_batches", 4}};
  const RankCost cost = cost_of(job_of("hybrid", Mesh({{"data", 2}, {"pipeline", 2}, {"tensor", 2}}), mesh), model);
  EXPECT_EQ(cost.work.rows, 8);
  EXPECT_DOUBLE_EQ(cost.work.busy, 4 * 0.25);
  EXPECT_DOUBLE_EQ(cost.work.span, 5 * 0.25);
  EXPECT_DOUBLE_EQ(cost.work.updated, 0.125);
  double sent = 0;
  for (const AxisCost& axis : cost.axes) sent += axis.bytes;
  EXPECT_DOUBLE_EQ(sent, cost.bytes_sent_per_step);
}

Candidate candidate_of(const std::string& strategy, const Mesh& mesh) {
  Candidate candidate;
  candidate.strategy = candidate.title = strategy;
  candidate.run.config.train.batch.rows = 64;
  candidate.placed.job = job_of(strategy, mesh);
  const Topology machine = machine_named("dgx");
  candidate.placed.table = place(candidate.placed.job, machine, {}).table;
  candidate.costs = costs(candidate.placed.job);
  candidate.schedule = "as ever\n" + std::string(400, 'F') + "\n  rows:";
  for (int word = 0; word < 40; ++word) candidate.schedule += " word×" + std::to_string(word);
  candidate.schedule += "\n";
  return candidate;
}

TEST(Explain, PrintsPlacementBytesMemoryAndSchedule) {
  const std::string text =
      explained(candidate_of("ddp", Mesh({{"data", 4}})), machine_named("dgx"), "the machine in dgx.xml");
  EXPECT_THAT(text,
              AllOf(HasSubstr("made: ddp on 4 ranks in 4 processes, backend gloo\nmesh: data 4\n"),
                    HasSubstr("dgx: 2 sockets, 2 NUMA nodes, 32 cores with 64 hardware threads, 2 TiB, 8 GPUs\n"),
                    ::testing::ContainsRegex("\n0-3 +3 MiB +2\n"), HasSubstr("not measured"), HasSubstr("≥ 8 MiB")));
  // Long lines continue in the next one; no word is lost.
  EXPECT_THAT(text, AllOf(HasSubstr("\n" + std::string(400, 'F') + "\n  rows: word×0 word×1 "),
                          ::testing::ContainsRegex("word×1[0-9]\n      word×1[0-9] "), HasSubstr(" word×39\n")));
  EXPECT_THAT(text, Not(HasSubstr("does not fit")));
}

TEST(Explain, ReportsWhatDoesNotFit) {
  Topology small = machine_named("dgx");
  small.hosts[0].memory = 10 * mib;
  EXPECT_THAT(explained(candidate_of("ddp", Mesh({{"data", 4}})), small, "x"),
              HasSubstr("does not fit: the ranks of dgx need 32 MiB and it has 10 MiB"));
  const std::vector<Candidate> both{candidate_of("single", Mesh({{"data", 1}})),
                                    candidate_of("ddp", Mesh({{"data", 4}}))};
  const std::string text = compared(both, small);
  EXPECT_THAT(text, ::testing::ContainsRegex("\nfits +not measured +no\n"));
  EXPECT_THAT(text, HasSubstr("\nddp does not fit: the ranks of dgx need 32 MiB and it has 10 MiB\n"));
  EXPECT_THAT(text, Not(HasSubstr("single does not fit")));
  EXPECT_THAT(compared(both, machine_named("dgx")), Not(HasSubstr("\nfits ")));
}

TEST(Explain, ComparesInColumns) {
  Candidate refused;
  refused.strategy = refused.title = "hybrid";
  refused.refused = "strategy.mesh: multiplies to 1";
  const std::string text =
      compared({candidate_of("single", Mesh({{"data", 1}})), candidate_of("fsdp", Mesh({{"data", 4}})), refused},
               machine_named("dgx"));
  EXPECT_THAT(text, AllOf(HasSubstr("single"), HasSubstr("fsdp"), HasSubstr("hybrid is refused: strategy.mesh: mul")));
  EXPECT_THAT(text, ::testing::ContainsRegex("\nmoments +4 MiB +1 MiB +refused\n"));
  EXPECT_THAT(text, ::testing::ContainsRegex("\nsent a step +0 "));
}

TEST(Explain, HasNoEmptySection) {
  Candidate candidate = candidate_of("ddp", Mesh({{"data", 4}}));
  EXPECT_THAT(explained(candidate, machine_named("dgx"), "x"), Not(HasSubstr("\n\n\n")));
  candidate.placed.table.clear();
  EXPECT_THAT(explained(candidate, machine_named("dgx"), "x"), Not(HasSubstr("\n\n\n")));
}

TEST(Explain, PrintsPredictedTimes) {
  Candidate single = candidate_of("single", Mesh({{"data", 1}})), ddp = candidate_of("ddp", Mesh({{"data", 4}}));
  single.prediction.emplace();
  single.prediction->seconds = single.prediction->compute = 9e-3;
  single.prediction->error = 0.9e-3;
  ddp.prediction.emplace();
  ddp.prediction->reason = "its link is unknown";
  const std::string text = compared({single, ddp}, machine_named("dgx"));
  EXPECT_THAT(text, ::testing::ContainsRegex("\npredicted step +9 ms +—\n"));
  EXPECT_THAT(text, ::testing::ContainsRegex("\nits error +± 10 % +—\n"));
  EXPECT_THAT(text, ::testing::ContainsRegex("\nrows a second +7111 "));
  EXPECT_THAT(text, HasSubstr("ddp: no time is predicted: its link is unknown"));
  EXPECT_THAT(compared({candidate_of("ddp", Mesh({{"data", 4}}))}, machine_named("dgx")),
              Not(HasSubstr("predicted step")));
  EXPECT_THAT(explained(single, machine_named("dgx"), "x"), HasSubstr("\npredicted step: 9 ms ± 10 %"));
  single.prediction->error = 180e-3;
  EXPECT_THAT(compared({single}, machine_named("dgx")), ::testing::ContainsRegex("\nits error +above 100 %\n"));
  EXPECT_THAT(explained(single, machine_named("dgx"), "x"),
              HasSubstr("\npredicted step: 9 ms, error above 100 %, too rough to rely on: forward"));
}

TEST(Explain, NamesTheProbableChoiceOfOverlapOnce) {
  Candidate ddp = candidate_of("ddp", Mesh({{"data", 4}}));
  ddp.prediction.emplace();
  ddp.prediction->seconds = 9e-3;
  const ExchangeTime busy{"data", Exchange::scatter, 1e6, 2, 4e-3, 4e-3, true};
  ExchangeTime idle = busy;
  idle.exposed = 1e-3;
  const auto text = [&](const std::vector<ExchangeTime>& exchanges) {
    ddp.prediction->exchanges = exchanges;
    return explained(ddp, machine_named("dgx"), "x");
  };
  EXPECT_THAT(text({busy, busy}), HasSubstr("\n  overlap: auto probably chooses off, because it would hide nothing\n"));
  EXPECT_THAT(text({idle, busy}), HasSubstr("\n  overlap: auto probably chooses on, which hides 3 ms\n"));
  EXPECT_THAT(text({idle, busy}), Not(HasSubstr("chooses off")));
  ExchangeTime configured = idle;
  configured.run_chooses_overlap = false;
  EXPECT_THAT(text({configured}), Not(HasSubstr("overlap: auto")));
}

TEST(Explain, HostsAreCopiesOfOneMachine) {
  ExplainArguments arguments;
  arguments.hosts = {"a", "b"};
  const Topology topology = hosts_to_explain(arguments, machine_named("grace").hosts[0]);
  ASSERT_EQ(topology.hosts.size(), 2u);
  EXPECT_EQ(topology.hosts[1].name, "b");
  EXPECT_EQ(topology.hosts[1].gpus.size(), 2u);
  arguments.hosts = {"a", "a"};
  EXPECT_THROW(hosts_to_explain(arguments, {}), Error);
}

}  // namespace
}  // namespace convoy
