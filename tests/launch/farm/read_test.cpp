// Reads and checks files of several runs.
#include "launch/farm/config/farm.h"

#include <gmock/gmock.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "core/config/reader.h"

namespace convoy {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char common[] = R"(name: several
device: cpu
model: {name: mlp, hidden: [16]}
data: {name: synthetic, rows: 100}
optimizer: {name: adam, lr: 1.0e-3}
train: {epochs: 1, batch: {global: 10}}
strategy:
  name: independent
)";

class FarmFile : public ::testing::Test {
 protected:
  FarmFile() {
    char pattern[] = "/tmp/convoy-farm-XXXXXX";
    folder_ = mkdtemp(pattern);
  }
  ~FarmFile() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name) << text;
    return folder_ + "/" + name;
  }
  FarmRun with_mistakes(const std::string& strategy, const std::vector<std::string>& overrides = {}) const {
    RunArguments arguments;
    arguments.config = write("farm.yaml", common + strategy);
    arguments.overrides = overrides;
    auto run = read_farm(read_yaml_file(arguments.config, arguments.overrides), arguments, {}, {});
    EXPECT_TRUE(run.has_value());
    return *run;
  }
  FarmRun read(const std::string& strategy, const std::vector<std::string>& overrides = {}) const {
    const FarmRun run = with_mistakes(strategy, overrides);
    refuse_all(run.mistakes);
    return run;
  }
  std::string mistakes(const std::string& strategy, const Host* host = nullptr,
                       const std::vector<std::string>& overrides = {}) const {
    try {
      FarmRun run = with_mistakes(strategy, overrides);
      if (host != nullptr)
        for (const ConfigError& mistake : check_requests(run.farm, cluster_of(*host), ""))
          run.mistakes.push_back(mistake);
      refuse_all(run.mistakes);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Failure::config);
      return error.what();
    }
    return "no error";
  }
  static Host two_cores() {
    Host host;
    host.name = "here";
    host.cores = {{0, 0, 0, {0}}, {1, 0, 0, {1}}};
    host.memory = int64_t{8} << 30;
    return host;
  }

  std::string folder_;
};

std::vector<std::string> names(const Farm& farm) {
  std::vector<std::string> all;
  for (const Pipeline& pipeline : farm.pipelines) all.push_back(pipeline.name);
  return all;
}

TEST_F(FarmFile, IgnoresAFileOfOneRun) {
  RunArguments arguments;
  arguments.config = write("one.yaml", std::string(common) + "  x: 1\n");
  std::ofstream(arguments.config) << "name: one\nstrategy: single\n";
  EXPECT_FALSE(read_farm(read_yaml_file(arguments.config, arguments.overrides), arguments, {}, {}));
}

TEST_F(FarmFile, MergesPipelinesWithCommonKeys) {
  const FarmRun run = read(R"(  retries: 2
  pipelines:
    - {name: a}
    - {name: b, retries: 0, priority: 3, config: {optimizer: {lr: 0.5}, seed: 7}}
    - {name: c, config: {optimizer: {name: sgd, lr: 0.1}, strategy: ddp, launch: {ranks: 2}}}
)");
  EXPECT_THAT(names(run.farm), ElementsAre("a", "b", "c"));
  const auto& [a, b, c] = std::tie(run.farm.pipelines[0], run.farm.pipelines[1], run.farm.pipelines[2]);
  EXPECT_EQ(a.config["name"], "a");
  EXPECT_EQ(a.config["strategy"]["name"], "single");
  EXPECT_EQ(a.options.retries, 2);
  EXPECT_EQ(b.options.retries, 0);
  EXPECT_EQ(b.options.priority, 3);
  EXPECT_EQ(b.config["optimizer"]["name"], "adam");
  EXPECT_EQ(b.config["optimizer"]["lr"], 0.5);
  EXPECT_EQ(b.config["seed"], 7);
  EXPECT_EQ(c.config["optimizer"]["name"], "sgd");
  EXPECT_FALSE(c.config["optimizer"].contains("betas")) << "nothing of adam is left";
  EXPECT_EQ(c.config["strategy"]["name"], "ddp");
  EXPECT_EQ(request_of(c, cluster_of(two_cores()), 0).cores, 2);
}

TEST_F(FarmFile, ReadsAPipelineFileRelativeToTheFarm) {
  write("other.yaml",
        "name: other\nmodel: {name: mlp, hidden: [4]}\ndata: {name: synthetic}\n"
        "optimizer: {name: sgd, lr: 0.1}\ntrain: {batch: {global: 8}}\nstrategy: single\n");
  const FarmRun run = read("  pipelines: [{config: other.yaml}, {name: second, config: other.yaml, set: {seed: 3}}]\n");
  EXPECT_THAT(names(run.farm), ElementsAre("other", "second"));
  EXPECT_EQ(run.farm.pipelines[0].config["train"]["batch"]["global"], 8) << "nothing of the common part";
  EXPECT_EQ(run.farm.pipelines[1].config["seed"], 3);
  EXPECT_EQ(run.farm.pipelines[1].config["name"], "second");
}

TEST_F(FarmFile, AGridHasEveryCombination) {
  const FarmRun run = read("  grid: {optimizer.lr: [1.0e-3, 0.1], seed: [1, 2, 3]}\n");
  EXPECT_THAT(names(run.farm), ElementsAre("lr-1.0e-3_seed-1", "lr-1.0e-3_seed-2", "lr-1.0e-3_seed-3", "lr-0.1_seed-1",
                                           "lr-0.1_seed-2", "lr-0.1_seed-3"));
  EXPECT_EQ(run.farm.pipelines[4].config["optimizer"]["lr"], 0.1);
  EXPECT_EQ(run.farm.pipelines[4].config["seed"], 2);
}

TEST_F(FarmFile, AGridOfProgramsTakesNoKeysOfModels) {
  const FarmRun run = read("  grid: {program: [[/bin/true], [/bin/false, x]]}\n");
  ASSERT_EQ(run.farm.pipelines.size(), 2U);
  EXPECT_EQ(run.farm.pipelines[1].config["program"], Json({"/bin/false", "x"}));
  EXPECT_FALSE(run.farm.pipelines[1].config.contains("model"));
}

TEST_F(FarmFile, GridNamesContainValuesAndAreUnique) {
  EXPECT_THAT(names(read("  names: 'h{model.hidden}'\n  grid: {model.hidden: [[64, 32], [16]]}\n").farm),
              ElementsAre("h64-32", "h16"));
  EXPECT_THAT(names(read("  grid: {model: [{name: mlp, hidden: [4]}, {name: mlp, hidden: [8]}]}\n").farm),
              ElementsAre("model-mlp", "model-mlp-2"));
  std::string wide = "[1";
  for (int i = 2; i < 60; ++i) wide += str(", ", i);
  const auto bounded = names(read("  grid: {model.hidden: [" + wide + "], " + wide + ", 99]]}\n").farm);
  EXPECT_EQ(bounded.size(), 2u);
  EXPECT_NE(bounded[0], bounded[1]);
  for (const std::string& name : bounded) EXPECT_LE(name.size(), 120u);
}

TEST_F(FarmFile, ADottedKeyOfTheGridBySet) {
  const FarmRun run = read("  grid: {optimizer.lr: [1.0e-3], seed: [1]}\n",
                           {"strategy.grid.optimizer.lr=[0.1, 0.2]", "strategy.grid.optimizer.weight_decay=[0.5]"});
  EXPECT_THAT(names(run.farm), ElementsAre("lr-0.1_seed-1_weight_decay-0.5", "lr-0.2_seed-1_weight_decay-0.5"));
  EXPECT_EQ(run.farm.pipelines[1].config["optimizer"]["lr"], 0.2);
  EXPECT_EQ(run.farm.pipelines[1].grid["optimizer.lr"], 0.2);
  EXPECT_EQ(run.resolved["strategy"]["grid"],
            Json({{"optimizer.lr", {0.1, 0.2}}, {"seed", {1}}, {"optimizer.weight_decay", {0.5}}}));
  EXPECT_THAT(mistakes("  grid: {optimizer.lr: [0.1], optimizer: {lr: [0.2]}}\n"), HasSubstr("is given twice"));
}

TEST_F(FarmFile, AnExtendedGridHasOnlyNewPoints) {
  const FarmRun run = read("  grid: {optimizer.lr: [1.0e-3], seed: [1]}\n", {"strategy.grid.optimizer.lr=[0.1]"});
  write("config.yaml", to_yaml(run.resolved));
  const auto added = [&](const std::string& values) {
    Farm farm;
    farm.pipelines = extended(folder_, {values}).pipelines;
    return names(farm);
  };
  EXPECT_THAT(added("strategy.grid.seed=[2]"), ElementsAre("lr-0.1_seed-2"));
  EXPECT_THAT(added("strategy.grid.optimizer.lr=[0.1, 0.2]"), ElementsAre("lr-0.2_seed-1"));
  write("config.yaml", std::string(common) + "  grid: {optimizer.lr: [0.1], optimizer: {lr: [0.2]}, seed: [1]}\n");
  EXPECT_THROW(extended(folder_, {"strategy.grid.seed=[2]"}), ConfigError);
}

TEST_F(FarmFile, AMistakeInTheSearchIsTheOnlyOneOfAHalvingFarm) {
  const std::string halving = "  metric: accuracy\n  halving: {eta: 3, first: 1 epoch}\n";
  for (const char* over : {"{random: 0, over: {optimizer.lr: [0.1]}}", "{random: 4, over: {}}"}) {
    const std::string found = mistakes(halving + "  search: " + over + "\n");
    EXPECT_THAT(found, AllOf(HasSubstr("strategy.search"), Not(HasSubstr("no run trains longer")))) << over;
  }
}

TEST_F(FarmFile, HalvingNeedsEvaluations) {
  const std::string halving = "  metric: accuracy\n  halving: {eta: 2, first: 5 steps}\n";
  const FarmRun none = read(halving + "  grid: {optimizer.lr: [0.1, 0.2]}\n", {"train.evaluate_every=never"});
  const FarmRun some = read(halving + "  grid: {train.evaluate_every: [1 epoch, never]}\n");
  for (const FarmRun* run : {&none, &some}) {
    const auto mistake = metric_mistake(run->farm, {}, "");
    ASSERT_TRUE(mistake);
    EXPECT_THAT(mistake->what(), HasSubstr("train.evaluate_every: never; write 1 epoch"));
  }
}

TEST_F(FarmFile, NamesKeepTheSignOfAnExponent) {
  const FarmRun run = read("  names: 'lr{optimizer.lr}'\n  grid: {optimizer.lr: [1.0e+1, 1.0e-1]}\n");
  EXPECT_EQ(run.farm.pipelines.at(0).name, "lr1.0e1");
  EXPECT_EQ(run.farm.pipelines.at(1).name, "lr1.0e-1");
}

TEST_F(FarmFile, AGridOfComponentsWithNamesByPattern) {
  const FarmRun run = read(
      "  names: 'n{index}-{optimizer}'\n"
      "  grid: {optimizer: [{name: sgd, lr: 0.1}, {name: adam, lr: 0.2}]}\n");
  EXPECT_THAT(names(run.farm), ElementsAre("n0-sgd", "n1-adam"));
  EXPECT_THAT(mistakes("  names: '{optimizer.lt}'\n  grid: {optimizer.lr: [0.1]}\n"),
              HasSubstr("did you mean {optimizer.lr}?"));
}

TEST_F(FarmFile, AGridHasItsLimit) {
  std::string values;
  for (int i = 0; i < 101; ++i) values += (i > 0 ? ", " : "") + std::to_string(i);
  EXPECT_THAT(mistakes("  grid: {seed: [" + values + "], train.epochs: [" + values.substr(3) + "]}\n"),
              HasSubstr("more than 10000"));
  EXPECT_THAT(mistakes("  grid: {seed: []}\n"), HasSubstr("strategy.grid.seed: is an empty list"));
  EXPECT_THAT(mistakes("  grid: {sede: [1]}\n"), HasSubstr("sede: unknown key; did you mean seed?"));
  std::string text = std::string(common) + "  grid: {optimizer.lr: [0.1, 0.2]}\n";
  text.replace(text.find("optimizer"), std::string("optimizer").size(), "optimzer");
  RunArguments arguments;
  arguments.config = write("misspelt.yaml", text);
  EXPECT_EQ(read_farm(read_yaml_file(arguments.config, {}), arguments, {}, {})->mistakes.size(), 1u);
}

TEST_F(FarmFile, ReportsAllMistakesWithTheirFiles) {
  write("bad.yaml",
        "name: bad\nmodel: {name: mlp, hiden: [4]}\ndata: {name: synthetic}\n"
        "optimizer: {name: sgd, lr: 0.1}\ntrain: {batch: {global: 8}}\nstrategy: single\n");
  const std::string reported = mistakes(R"(  pipelines:
    - {name: a, config: {optimizer: {lr: fast}, sede: 2}}
    - {name: b, priority: high}
    - {name: a}
    - {name: c, config: bad.yaml}
    - {name: d, config: nowhere.yaml}
)");
  EXPECT_THAT(reported, HasSubstr("farm.yaml:10:42: optimizer.lr: is 'fast'"));
  EXPECT_THAT(reported, HasSubstr("farm.yaml:10:49: sede: unknown key; did you mean seed?"));
  EXPECT_THAT(reported, HasSubstr("farm.yaml:11:27: strategy.pipelines.1.priority: is 'high'"));
  EXPECT_THAT(reported, HasSubstr("farm.yaml:12:14: name: is 'a', the name of two pipelines; the first is on line 10"));
  EXPECT_THAT(reported, HasSubstr("bad.yaml:2:20: model.hiden: unknown key; did you mean hidden?"));
  EXPECT_THAT(reported, HasSubstr("farm.yaml:14:25: strategy.pipelines.4.config: "));
  EXPECT_THAT(reported, HasSubstr("6 mistakes"));
}

TEST_F(FarmFile, AMisspeltKeyIsOneMistake) {
  const std::string lines =
      "name: bad\nmodel: {name: mlp}\ndata: {name: synthetic}\noptimzer: {name: sgd, lr: 0.1}\n"
      "train: {bacth: {global: 8}, epochs: 1}\nstrategy: single\n";
  write("bad.yaml", lines);
  const std::string message = mistakes("  pipelines:\n    - {name: c, config: bad.yaml}\n    - {name: d, sede: 1}\n");
  EXPECT_THAT(message, HasSubstr("bad.yaml:4:1: optimzer: unknown key; did you mean optimizer?"));
  EXPECT_THAT(message, HasSubstr("bad.yaml:5:9: train.bacth: unknown key; did you mean batch?"));
  EXPECT_THAT(message, ::testing::Not(HasSubstr("is missing and required"))) << message;
}

TEST_F(FarmFile, NeedsEitherPipelinesOrAGrid) {
  EXPECT_THAT(mistakes("  retries: 1\n"), HasSubstr("strategy.pipelines: is missing"));
  EXPECT_THAT(mistakes("  pipelines: []\n"), HasSubstr("strategy.pipelines: is an empty list"));
  EXPECT_THAT(mistakes("  grid: {}\n"), HasSubstr("strategy.grid: has no keys"));
  EXPECT_THAT(mistakes("  pipelines: [{name: a}]\n  grid: {seed: [1]}\n"), HasSubstr("give one of the two"));
  EXPECT_THAT(mistakes("  pipelines: [{name: a, config: {strategy: {name: independent}}}]\n"),
              HasSubstr("several runs itself"));
  EXPECT_THAT(mistakes("  cores: [0]\n  pipelines: [{name: a}, {name: b}]\n"), HasSubstr("same cores to all"));
}

TEST_F(FarmFile, RefusesCoresGivenTwiceAndSharesAboveOne) {
  const Host host = two_cores();
  const std::string twice = "  pipelines: [{name: a, cores: [0]}, {name: b, cores: [0, 1]}]\n";
  EXPECT_THAT(mistakes(twice, &host), HasSubstr("b.cores: gives core 0 also to a"));
  EXPECT_EQ(mistakes("  share: 0.5\n  pipelines: [{name: a, cores: [0]}, {name: b, cores: [0]}]\n", &host), "no error");
  EXPECT_THAT(mistakes("  share: 0.6\n  pipelines: [{name: a, cores: [0]}, {name: b, cores: [0]}]\n", &host),
              HasSubstr("sums to 1.2 on core 0"));
  EXPECT_THAT(mistakes("  pipelines: [{name: a, cores: [7]}]\n", &host), HasSubstr("a.cores: names core 7"));
  EXPECT_THAT(mistakes("  pipelines: [{name: a, cores: 3}]\n", &host), HasSubstr("there are 2 cores"));
}

TEST_F(FarmFile, ChecksMemoryLimitsOfPipelinesThatRunTogether) {
  const Host host = two_cores();
  const std::string pipelines = "  pipelines: [{name: a, memory: 5 GiB}, {name: b, memory: 5 GiB}, {name: c}]\n";
  EXPECT_THAT(mistakes(pipelines, &host), HasSubstr("b.memory: sums to 10 GiB"));
  // The two pipelines with one core each need more than the wide one with the largest limit.
  EXPECT_THAT(
      mistakes(
          "  pipelines: [{name: a, memory: 6 GiB, cores: 2}, {name: b, memory: 5 GiB}, {name: c, memory: 5 GiB}]\n",
          &host),
      HasSubstr("sums to 10 GiB"));
  EXPECT_EQ(mistakes("  max_parallel: 1\n" + pipelines, &host), "no error");
}

TEST_F(FarmFile, ReportsMissingMemoryAndCoresTogether) {
  const Host host = two_cores();
  const std::string reported = mistakes("  pipelines: [{name: a, cores: 7, memory: 900 GiB}]\n", &host);
  EXPECT_THAT(reported, HasSubstr("a.cores: needs 7 cores"));
  EXPECT_THAT(reported, HasSubstr("a.memory: is 900 GiB, but this job may use 8 GiB of here"));
}

TEST_F(FarmFile, ChecksGpuMemoryLimits) {
  Host host = two_cores();
  host.gpus = {{0, "", "", 0, int64_t{16} << 30}, {1, "", "", 0, int64_t{16} << 30}};
  EXPECT_THAT(mistakes("  gpu_memory: 17 GiB\n  gpus: 1\n  pipelines: [{name: a}]\n", &host),
              HasSubstr("a.gpu_memory: is 17 GiB for each of its GPUs, but the largest GPU here has 16 GiB"));
  EXPECT_THAT(
      mistakes("  gpu_memory: 9 GiB\n  share: 0.5\n  pipelines: [{name: a, gpus: [0]}, {name: b, gpus: [0]}]\n", &host),
      HasSubstr("b.gpu_memory: sums to 18 GiB on GPU 0"));
  EXPECT_THAT(mistakes("  pipelines: [{name: a, gpus: 0, gpu_memory: 1 GiB}]\n", &host),
              HasSubstr("strategy.pipelines.0.gpu_memory: limits each of its GPUs, but gpus is 0"));
  // GPUs without names: half of a GPU each, and together more memory than one has.
  const FarmRun run =
      read("  gpu_memory: 9 GiB\n  share: 0.5\n  gpus: 1\n  pipelines: [{name: a}, {name: b}, {name: c}]\n");
  const Cluster cluster = cluster_of(host);
  Queue queue(cluster.inventory, 0);
  for (int job = 0; job < 3; ++job)
    queue.add(job, request_of(run.farm.pipelines[static_cast<size_t>(job)], cluster, 0));
  const auto first = queue.next(0), second = queue.next(0);
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->gpus, second->gpus);
  EXPECT_FALSE(queue.next(0)) << "it waits for memory";
  queue.ended(first->job);
  EXPECT_TRUE(queue.next(0));
}

TEST_F(FarmFile, ChecksMemoryPerHost) {
  Host one = two_cores(), other = two_cores();
  other.name = "there";
  const Cluster cluster = cluster_of(std::vector<Host>{one, other});
  FarmRun run = read("  memory: 5 GiB\n  share: 0.5\n  pipelines: [{name: a}, {name: b}, {name: c}]\n");
  EXPECT_TRUE(check_requests(run.farm, cluster, "").empty());
  Queue queue(cluster.inventory, 0);
  for (int job = 0; job < 3; ++job)
    queue.add(job, request_of(run.farm.pipelines[static_cast<size_t>(job)], cluster, 0));
  const auto first = queue.next(0), second = queue.next(0);
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->host, second->host);
  EXPECT_FALSE(queue.next(0));
  run.farm.pipelines[0].options.memory = int64_t{9} << 30;
  const auto mistakes = check_requests(run.farm, cluster, "");
  ASSERT_EQ(mistakes.size(), 1u);
  EXPECT_THAT(mistakes[0].what(), HasSubstr("a.memory: is 9 GiB, but this job may use 8 GiB"));
}

TEST_F(FarmFile, ReportsMistakesOfAnEnsembleWithAllOthers) {
  const std::string reported = mistakes(
      "  pipelines: [{name: a, config: {sede: 1, strategy: {name: ensemble, members: 3, samples: {folds: 4}, "
      "lr: [1, -2], early_stop: {patience: 1.5}}}}]\n");
  for (const char* mistake :
       {"sede: unknown key", "strategy.samples: has 4 folds for 3 members", "strategy.lr: has 2 values for 3 members",
        "strategy.early_stop.patience: holds 1.5", "4 mistakes"})
    EXPECT_THAT(reported, HasSubstr(mistake));
}

TEST_F(FarmFile, ChecksResumePathsBeforeTheStart) {
  const Host host = two_cores();
  EXPECT_THAT(mistakes("  pipelines: [{name: a}, {name: b, config: {train: {resume: nowhere}}}]\n", &host),
              HasSubstr("farm.yaml:9:61: train.resume: nowhere holds no checkpoint"));
}

TEST_F(FarmFile, ReportsPlansThatAStrategyRefuses) {
  const Host host = two_cores();
  EXPECT_THAT(mistakes("  pipelines: [{name: a, config: {launch: {ranks: 2}}}]\n", &host), HasSubstr("launch.ranks"));
}

TEST_F(FarmFile, WarnsOfUnusedKeys) {
  write("one.yaml", R"(name: one
model: {name: mlp, hidden: [4]}
data: {name: synthetic}
optimizer: {name: sgd, lr: 0.1}
train: {batch: {global: 8}}
strategy: single
)");
  const std::string pipelines = "  pipelines: [{name: a, config: one.yaml}]\n";
  EXPECT_THAT(mistakes(pipelines + "sede: 2\n"), HasSubstr("sede: unknown key; did you mean seed?"));
  const FarmRun run = read(pipelines + "seed: 2\n");
  EXPECT_THAT(run.warnings, ::testing::Contains(HasSubstr("seed: no pipeline uses it")));
  const FarmRun shared = read("  pipelines: [{name: a}]\nseed: 2\n");
  EXPECT_TRUE(shared.warnings.empty());
}

TEST_F(FarmFile, AnAddedPipelineReadsBackTheSame) {
  const std::string path = write("urgent.yaml", R"(name: urgent
priority: 10
preempt: true
cores: [0-1]
memory: 1 GiB
config:
  model: {name: mlp, hidden: [4]}
  data: {name: synthetic}
  optimizer: {name: sgd, lr: 0.1}
  train: {batch: {global: 8}, evaluate_every: 50 steps}
  strategy: single
)");
  const Pipeline pipeline = read_pipeline(path);
  const Pipeline again = read_pipeline(write("again.yaml", pipeline_yaml(pipeline)));
  EXPECT_EQ(again.name, "urgent");
  EXPECT_EQ(without_locations(again.config), without_locations(pipeline.config));
  EXPECT_EQ(to_json(again.options), to_json(pipeline.options));
  EXPECT_THAT(again.options.core_list, ElementsAre(0, 1));
  EXPECT_TRUE(again.options.preempt);
}

TEST_F(FarmFile, ReportsMistakesOfTheClusterWithAllOthers) {
  const Host host = two_cores();
  const std::string reported = mistakes(R"(  pipelines:
    - {name: a, cores: [0], memory: 999 GB, config: {trian: 2}}
    - {name: b, cores: [0, 4000], config: {data: {name: table, path: nowhere.csv}}}
    - {name: c, cores: 3, config: {seed: x}}
)",
                                        &host);
  EXPECT_THAT(reported, HasSubstr("farm.yaml:10:54: trian: unknown key; did you mean train?"));
  EXPECT_THAT(reported, HasSubstr("farm.yaml:10:7: a.memory: is 930 GiB"));
  EXPECT_THAT(reported, HasSubstr("farm.yaml:11:7: b.cores: names core 4000"));
  EXPECT_THAT(reported, HasSubstr("farm.yaml:11:7: b.cores: gives core 0 also to a"));
  EXPECT_THAT(reported, HasSubstr("nowhere.csv"));
  EXPECT_THAT(reported, HasSubstr("farm.yaml:12:42: seed: is 'x'"));
  EXPECT_THAT(reported, HasSubstr("farm.yaml:12:7: c.cores: needs 3"));
  EXPECT_THAT(reported, HasSubstr("7 mistakes"));
}

TEST_F(FarmFile, AllMistakesOfOnePipeline) {
  const std::string reported = mistakes(
      "  pipelines: [{name: a, config: {model: mpl, data: syntetic, optimizer: {name: adm}, train: {epochs: one, "
      "batch: {per_rank: 4}}, launch: {ranks: two, bind: list, address: here}}}, text, [list], {name: b, priority: x, "
      "nice: 40, cores: []}]\n");
  for (const char* mistake :
       {"model: unknown model 'mpl'; did you mean mlp?", "data: unknown data 'syntetic'; did you mean synthetic?",
        "optimizer.name: unknown optimizer 'adm'; did you mean adam?", "train.epochs: is 'one'",
        "train.batch: has both global and per_rank", "launch.ranks: is 'two'", "launch.bind: is list",
        "launch.address: is 'here'", "strategy.pipelines.1: must be", "strategy.pipelines.2: must be",
        "strategy.pipelines.3.priority: is 'x'", "strategy.pipelines.3.nice: is 40",
        "strategy.pipelines.3.cores: is '[]'", "13 mistakes"})
    EXPECT_THAT(reported, HasSubstr(mistake));
}

TEST_F(FarmFile, ChecksValuesOfAnInvalidGrid) {
  const std::string reported =
      mistakes("  names: ''\n  grid: {name: [a, b], seed: [], lr: 5, optimizer.lr: [0.1, fast]}\nprecison: fp32\n");
  EXPECT_THAT(reported, HasSubstr("strategy.grid.name: is the name of each point"));
  EXPECT_THAT(reported, HasSubstr("strategy.grid.seed: is an empty list"));
  EXPECT_THAT(reported, HasSubstr("strategy.grid.lr: must be a list"));
  EXPECT_THAT(reported, HasSubstr("strategy.names: is empty"));
  EXPECT_THAT(reported, HasSubstr("optimizer.lr: is 'fast'"));
  EXPECT_THAT(reported, HasSubstr("precison: unknown key; did you mean precision?"));
  EXPECT_THAT(reported, HasSubstr("6 mistakes"));
  EXPECT_THAT(mistakes("  names: 'x{seed}'\n  pipelines: [{name: a}]\n"),
              HasSubstr("strategy.names: applies to a grid or search only"));
}

TEST_F(FarmFile, RefusesIneffectiveOverrides) {
  write("one.yaml", R"(name: one
model: {name: mlp, hidden: [4]}
data: {name: synthetic}
optimizer: {name: sgd, lr: 0.1}
train: {batch: {global: 8}}
strategy: single
)");
  const std::string some = "  pipelines: [{name: a, config: {seed: 1}}, {name: b}]\n";
  EXPECT_EQ(mistakes(some, nullptr, {"seed=5", "train.epochs=2", "optimizer={name: sgd, lr: 0.1}"}), "no error");
  const std::string each =
      "  pipelines: [{name: a, priority: 1, config: {seed: 1, strategy: ddp}},"
      " {name: b, priority: 2, config: {seed: 2, strategy: ddp}}]\n";
  const std::string reported =
      mistakes(each, nullptr, {"seed=5", "strategy.priority=3", "strategy.each=ddp", "precision=fp64"});
  EXPECT_THAT(reported, HasSubstr("--set seed=5: seed: has no effect"));
  EXPECT_THAT(reported, HasSubstr("--set strategy.priority=3: strategy.priority: has no effect"));
  EXPECT_THAT(reported, HasSubstr("--set strategy.each=ddp: strategy.each: has no effect"));
  EXPECT_THAT(reported, HasSubstr("3 mistakes"));
  EXPECT_THAT(mistakes("  grid: {seed: [1, 2]}\n", nullptr, {"seed=5"}), HasSubstr("strategy.grid.seed"));
  EXPECT_THAT(mistakes("  pipelines: [{name: a, config: one.yaml}]\n", nullptr, {"train.epochs=5"}),
              HasSubstr("--set train.epochs=5: train.epochs: has no effect"));
}

TEST_F(FarmFile, OverridesReachPipelines) {
  const FarmRun run = read("  pipelines: [{name: a}, {name: b}]\n",
                           {"train.epochs=5", "strategy.max_parallel=1", "strategy.pipelines.1.priority=2"});
  EXPECT_EQ(run.farm.max_parallel, 1);
  EXPECT_EQ(run.farm.pipelines[0].config["train"]["epochs"], 5);
  EXPECT_EQ(run.farm.pipelines[1].options.priority, 2);
}

}  // namespace
}  // namespace convoy
