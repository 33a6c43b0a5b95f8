// Predictions from calibrations made by hand, compared with hand-computed times.
#include "launch/explain/prediction.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include "launch/explain/explain.h"

namespace convoy {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double ms = 1e-3;

StepTimings timings_of(int ranks, int threads, double fixed, double row, double update, double spread = 0) {
  StepTimings timings;
  timings.ranks = ranks;
  timings.threads = threads;
  timings.update = {update, 0};
  for (const double rows : {8.0, 32.0, 64.0})
    timings.passes.push_back({rows, {fixed + row * rows + update, spread}, 0});
  return timings;
}

// A pass takes 2 ms plus 1 ms a row, the update 4 ms; two ranks at once are as fast. An all-reduce with gloo takes 1 ms
// plus 1 ms per MB, and keeps the processor busy.
Calibration made(double busy = 1) {
  Calibration calibration;
  calibration.device = "cpu";
  calibration.cores = 2;
  calibration.steps = {timings_of(1, 1, 2 * ms, 1 * ms, 4 * ms), timings_of(2, 1, 2 * ms, 1 * ms, 4 * ms)};
  for (const Exchange kind : {Exchange::all_reduce, Exchange::gather, Exchange::scatter, Exchange::send})
    calibration.exchanges.push_back({"gloo", kind, busy, {{0, {1 * ms, 0}}, {1e6, {2 * ms, 0}}, {64e6, {65 * ms, 0}}}});
  return calibration;
}

Topology hosts(int count, int cores, int gpus = 0) {
  Topology topology;
  for (int host = 0; host < count; ++host) {
    Host one;
    one.name = str("host", host);
    for (int core = 0; core < cores; ++core) one.cores.push_back({core, 0, 0, {core}});
    one.gpus.resize(static_cast<size_t>(gpus));
    topology.hosts.push_back(one);
  }
  return topology;
}

JobPlan job(const Mesh& mesh, int ranks_a_host = 1000) {
  JobPlan made;
  made.mesh = mesh;
  made.backend = "gloo";
  for (int rank = 0; rank < mesh.size(); ++rank) {
    RankPlan plan;
    plan.rank = rank;
    plan.host = rank / ranks_a_host;
    plan.devices.emplace_back();
    made.ranks.push_back(plan);
  }
  return made;
}

RankCost cost(double rows, double passes = 1) {
  RankCost one;
  one.work.rows = rows;
  one.work.passes = one.work.span = one.work.busy = passes;
  return one;
}

TEST(Prediction, OneRankTakesTheMeasuredTime) {
  const StepPrediction step = predict(job(Mesh({{"data", 1}})), {cost(32)}, hosts(1, 2), made());
  EXPECT_NEAR(step.seconds, 38 * ms, 1e-9);
  EXPECT_NEAR(step.compute, 34 * ms, 1e-9);
  EXPECT_NEAR(step.update, 4 * ms, 1e-9);
  EXPECT_EQ(step.error, 0);
}

// With sparse embeddings a step updates the rows that its batch touches; ranks that gather rows update the rows of all.
TEST(Prediction, SparseUpdatesAreProportionalToTouchedRows) {
  Calibration calibration = made();
  for (StepTimings& one : calibration.steps) {
    one.update.seconds = 400 * ms;  // for all rows
    for (PassTiming& pass : one.passes) pass.updated = 0.01;
  }
  RankCost rank = cost(32);
  rank.work.updated = 0.02;
  const StepPrediction step = predict(job(Mesh({{"data", 2}})), {rank, rank}, hosts(1, 2), calibration);
  EXPECT_NEAR(step.compute, 34 * ms, 1e-9);
  EXPECT_NEAR(step.update, 8 * ms, 1e-9);
}

TEST(Prediction, RowCountsAreInterpolatedAndExtrapolated) {
  EXPECT_NEAR(pass_seconds(made(), 1, 1, 16).value, 18 * ms, 1e-9);
  EXPECT_NEAR(pass_seconds(made(), 1, 1, 128).value, 130 * ms, 1e-9);
  EXPECT_NEAR(pass_overhead(made(), 1, 1).value, 2 * ms, 1e-9);
  EXPECT_GT(pass_seconds(made(), 1, 1, 128).error, 0);
}

TEST(Prediction, LessFrequentUpdatesAndMoreMicroBatches) {
  RankCost one = cost(8, 4);
  one.work.updates = 1.0 / 8;
  const StepPrediction step = predict(job(Mesh({{"data", 1}})), {one}, hosts(1, 2), made());
  EXPECT_NEAR(step.compute, 40 * ms, 1e-9);
  EXPECT_NEAR(step.update, 0.5 * ms, 1e-9);
}

TEST(Prediction, ABusyCoreHidesNoAllReduce) {
  RankCost one = cost(32);
  one.axes = {{"data", 10e6, 10, Exchange::all_reduce, 0.9}};
  const StepPrediction step = predict(job(Mesh({{"data", 2}})), {one, one}, hosts(1, 2), made(1));
  EXPECT_NEAR(step.exchange, 20 * ms, 1e-9);
  EXPECT_NEAR(step.seconds, 58 * ms, 1e-9);
}

TEST(Prediction, IdleTimeOverlapsWithBackward) {
  RankCost one = cost(32);
  one.axes = {{"data", 10e6, 10, Exchange::all_reduce, 0.9}};
  const JobPlan two = job(Mesh({{"data", 2}}));
  EXPECT_NEAR(predict(two, {one, one}, hosts(1, 2), made(0)).exchange, 2 * ms, 1e-9);     // the last bucket
  EXPECT_NEAR(predict(two, {one, one}, hosts(1, 2), made(0.5)).exchange, 11 * ms, 1e-9);  // half of the rest too
  one.axes.front().bytes = 60e6;
  // 63 of 70 ms could overlap, with two thirds of 34 ms
  EXPECT_NEAR(predict(two, {one, one}, hosts(1, 2), made(0)).exchange, 70 * ms - 2.0 / 3 * 34 * ms, 1e-9);
}

TEST(Prediction, RanksOfAPipelineWaitForEachOther) {
  RankCost first = cost(8, 4), second = cost(8, 4);
  first.work.busy = 4 * 0.5;
  second.work.busy = 4 * 0.5;
  first.work.span = second.work.span = 5 * 0.5;  // (m + p − 1) halves
  first.work.updated = second.work.updated = 0.5;
  first.axes = second.axes = {{"pipeline", 4e6, 4, Exchange::send, 0}};
  const StepPrediction step = predict(job(Mesh({{"pipeline", 2}})), {first, second}, hosts(1, 2), made());
  EXPECT_NEAR(step.compute, 20 * ms, 1e-9);
  EXPECT_NEAR(step.idle, 5 * ms, 1e-9);
  EXPECT_NEAR(step.update, 2 * ms, 1e-9);
  EXPECT_NEAR(step.exchange, 2 * 4 * 2 * ms, 1e-9);  // sent and received
}

TEST(Prediction, ShardsAreGatheredAndScattered) {
  RankCost one = cost(32);
  one.work.updated = 0.5;
  one.axes = {{"data", 4e6, 4, Exchange::gather, 0}, {"data", 2e6, 2, Exchange::scatter, 0}};
  const StepPrediction step = predict(job(Mesh({{"data", 2}})), {one, one}, hosts(1, 2), made());
  EXPECT_NEAR(step.exchange, (4 * 2 + 2 * 2) * ms, 1e-9);
  EXPECT_NEAR(step.update, 2 * ms, 1e-9);
  EXPECT_EQ(step.exchanges.size(), 2u);
}

TEST(Prediction, ATensorGroupPaysTheFixedCostOfOperations) {
  RankCost one = cost(32);
  one.work.busy = one.work.span = 0.5;
  one.work.cut = true;
  const StepPrediction step = predict(job(Mesh({{"tensor", 2}})), {one, one}, hosts(1, 2), made());
  EXPECT_NEAR(step.compute, 17.5 * ms, 1e-9);  // half of 34, and a quarter of 2 that is not divided
  EXPECT_NEAR(step.error, 0.5 * ms, 1e-9);
}

TEST(Prediction, TheSlowestRankDecides) {
  EXPECT_NEAR(predict(job(Mesh({{"data", 2}})), {cost(8), cost(32)}, hosts(1, 2), made()).seconds, 38 * ms, 1e-9);
}

TEST(Prediction, RanksThatOutnumberCoresAreTimeSliced) {
  const std::vector<RankCost> all(4, cost(8));
  const StepPrediction step = predict(job(Mesh({{"data", 4}})), all, hosts(1, 2), made());
  EXPECT_NEAR(step.compute, 1.3 * 20 * ms, 1e-9);
  EXPECT_NEAR(step.update, 1.3 * 8 * ms, 1e-9);
  EXPECT_GT(step.error, 0.25 * 28 * ms - 1e-9);
  ASSERT_FALSE(step.notes.empty());
  EXPECT_THAT(step.notes.front(), HasSubstr("ranks outnumber cores"));
}

TEST(Prediction, UsesTimesOfAsManyRanksAtOnce) {
  Calibration calibration = made();
  calibration.steps[1] = timings_of(2, 1, 2 * ms, 2 * ms, 4 * ms);
  EXPECT_NEAR(predict(job(Mesh({{"data", 2}})), {cost(8), cost(8)}, hosts(1, 2), calibration).compute, 18 * ms, 1e-9);
  EXPECT_NEAR(predict(job(Mesh({{"data", 1}})), {cost(8)}, hosts(1, 2), calibration).compute, 10 * ms, 1e-9);
}

TEST(Prediction, OtherThreadNumbersFollowAmdahl) {
  Calibration calibration = made();
  calibration.steps = {timings_of(1, 2, 0, 0.6 * ms, 0), timings_of(2, 1, 0, 1 * ms, 0)};  // 0.2 ms is serial
  EXPECT_NEAR(pass_seconds(calibration, 1, 4, 64).value, 64 * 0.4 * ms, 1e-9);
  EXPECT_GT(pass_seconds(calibration, 1, 4, 64).error, 0);
}

TEST(Prediction, LargerRingsHaveMoreSteps) {
  const Calibration calibration = made();
  EXPECT_NEAR(exchange_seconds(calibration, "gloo", Exchange::all_reduce, 1e6, 2)->value, 2 * ms, 1e-9);
  EXPECT_NEAR(exchange_seconds(calibration, "gloo", Exchange::all_reduce, 1e6, 4)->value, 4 * ms, 1e-9);
  EXPECT_NEAR(exchange_seconds(calibration, "gloo", Exchange::send, 1e6, 4)->value, 2 * ms, 1e-9);
  EXPECT_FALSE(exchange_seconds(calibration, "mpi", Exchange::send, 1e6, 2));
}

TEST(Prediction, SeveralHostsNeedALink) {
  RankCost one = cost(32);
  one.axes = {{"data", 8e6, 1, Exchange::all_reduce, 0}};
  const JobPlan split = job(Mesh({{"data", 2}}), 1);
  EXPECT_THAT(predict(split, {one, one}, hosts(2, 2), made()).reason, HasSubstr("--link 20us,12GB/s"));
  const StepPrediction step = predict(split, {one, one}, hosts(2, 2), made(0), HostLink{1 * ms, 1e8});
  EXPECT_NEAR(step.exchange, 82 * ms, 1e-9);  // two steps, 8 MB at 100 MB/s
  // Two groups of a host share its link.
  RankCost both = cost(32);
  both.axes = {{"data", 8e6, 1, Exchange::all_reduce, 0}};
  const StepPrediction shared = predict(job(Mesh({{"data", 2}, {"tensor", 2}}), 2), std::vector<RankCost>(4, both),
                                        hosts(2, 2), made(0), HostLink{1 * ms, 1e8});
  EXPECT_NEAR(shared.exchange, 162 * ms, 1e-9);
}

TEST(Prediction, UnmeasuredExchangesHaveNoPrediction) {
  JobPlan gpus = job(Mesh({{"data", 1}}));
  gpus.ranks[0].devices[0].kind = DevicePlan::Kind::gpu;
  EXPECT_THAT(predict(gpus, {cost(8)}, hosts(1, 2, 1), made()).reason, HasSubstr("measured on cores"));
  RankCost one = cost(8);
  one.axes = {{"data", 8e6, 1}};
  JobPlan other = job(Mesh({{"data", 2}}));
  other.backend = "mpi";
  EXPECT_THAT(predict(other, {one, one}, hosts(1, 2), made()).reason, HasSubstr("no times of all_reduce by mpi"));
}

TEST(Prediction, ScatterOfTheMeasurementIsItsError) {
  Calibration calibration = made();
  calibration.steps[0] = timings_of(1, 1, 2 * ms, 1 * ms, 4 * ms, 0.1);
  const StepPrediction step = predict(job(Mesh({{"data", 1}})), {cost(32)}, hosts(1, 2), calibration);
  EXPECT_NEAR(step.error, 3.8 * ms, 1e-9);
}

// ---- advice ----

PredictedCandidate candidate(const std::string& name, int ranks, double seconds, double exchange = 0,
                             double error = 0) {
  PredictedCandidate one{name, ranks, 64, {}};
  one.step.seconds = seconds;
  one.step.error = error;
  one.step.compute = seconds - exchange;
  one.step.exchange = exchange;
  if (exchange > 0) one.step.exchanges = {{"data", Exchange::all_reduce, 49 * 1024.0 * 1024, 1, exchange, exchange}};
  return one;
}

TEST(Advice, StaysOnOneDeviceWithTheReason) {
  const PredictedCandidate single = candidate("single", 1, 9 * ms);
  PredictedCandidate ddp = candidate("ddp", 2, 31.5 * ms, 27 * ms);
  ddp.lower_frequency = PredictedCandidate::LowerFrequency{8, 64, candidate("ddp", 2, 7 * ms).step};
  EXPECT_EQ(advice_text(single, {single, ddp}),
            "stay on one device: ddp would be 0.3× because the all-reduce of 49 MiB takes 27 ms of a 9 ms step; "
            "sync.every 8 would be 1.3×, which may cost quality (docs/strategies/synchronisation.md)\n");
}

TEST(Advice, TakesTheFastest) {
  const PredictedCandidate single = candidate("single", 1, 90 * ms);
  const std::string text =
      advice_text(single, {candidate("fsdp", 2, 60 * ms, 15 * ms), candidate("ddp", 2, 50 * ms, 0, 5 * ms)});
  EXPECT_THAT(text, AllOf(HasSubstr("take ddp on 2 ranks: 1.8× of single (± 10 %)"), HasSubstr("fsdp would be 1.5×")));
}

TEST(Advice, NamesAGainWithinTheError) {
  EXPECT_THAT(advice_text(candidate("single", 1, 50 * ms), {candidate("ddp", 2, 48 * ms, 0, 10 * ms)}),
              HasSubstr("(within the prediction's error, ± 21 %)"));
}

TEST(Advice, RecommendsNothingIfTheErrorIsLarge) {
  const PredictedCandidate single = candidate("single", 1, 50 * ms);
  for (const double seconds : {6.5 * ms, 160 * ms}) {
    const std::string text = advice_text(single, {candidate("ddp", 4, seconds, 0, 0.8 * seconds)});
    EXPECT_THAT(text, HasSubstr("too uncertain to recommend anything (± 80 %)"));
    EXPECT_THAT(text, AllOf(HasSubstr("ddp would be"), Not(HasSubstr("take ddp")), Not(HasSubstr("stay on"))));
  }
  // A gain of a fiftieth is not advised, despite the error.
  EXPECT_THAT(advice_text(single, {candidate("ddp", 4, 2500 * ms, 0, 2000 * ms)}), HasSubstr("stay on one device"));
  // A prediction with an error above 100 % gives no advice.
  const PredictedCandidate rough = candidate("ddp", 4, 5 * ms, 0, 95 * ms);
  EXPECT_EQ(advice_text(single, {rough}),
            "too uncertain to recommend anything: no speed relative to single is known with an error below 100 %; "
            "measure again on an idle machine\n");
  EXPECT_THAT(advice_text(single, {rough, candidate("fsdp", 4, 20 * ms)}),
              ::testing::StartsWith("take fsdp on 4 ranks: 2.5× of single (± 0 %); ddp cannot be estimated"));
}

TEST(Advice, NamesWaitsUpdatesAndComputing) {
  const PredictedCandidate single = candidate("single", 1, 10 * ms);
  PredictedCandidate pipeline = candidate("pipeline", 2, 20 * ms);
  pipeline.step.compute = 5 * ms;
  pipeline.step.idle = 15 * ms;
  EXPECT_THAT(advice_text(single, {pipeline}), HasSubstr("its ranks wait for each other for 15 ms of a 10 ms step"));
  PredictedCandidate updates = candidate("ddp", 2, 20 * ms);
  updates.step.compute = 5 * ms;
  updates.step.update = 15 * ms;
  EXPECT_THAT(advice_text(single, {updates}), HasSubstr("every rank's update takes 15 ms"));
  EXPECT_THAT(advice_text(single, {candidate("tensor_parallel", 2, 20 * ms)}), HasSubstr("still computes for 20 ms"));
}

TEST(Advice, NamesNoSizeOfAnExchangeWithoutBytes) {
  PredictedCandidate fsdp = candidate("fsdp", 2, 20 * ms, 15 * ms);
  fsdp.step.exchanges = {{"data", Exchange::all_reduce, 0, 2, 15 * ms, 15 * ms}};
  EXPECT_THAT(advice_text(candidate("single", 1, 10 * ms), {fsdp}),
              HasSubstr("because the all-reduces take 15 ms of a 10 ms step"));
}

TEST(Advice, IsSilentWithoutATime) {
  PredictedCandidate none = candidate("ddp", 2, 1);
  none.step.reason = "not measured";
  EXPECT_EQ(advice_text(candidate("single", 1, 1), {none}), "");
  EXPECT_THAT(speed_text(12.4), "12×");
  EXPECT_THAT(speed_text(0.04), "0.04×");
}

TEST(Load, IsTheShareOfOtherProcesses) {
  const char* const before = "cpu  9 9 9 9\ncpu0 100 0 0 900 0 0 0 0 0 0\ncpu1 100 0 0 900 0 0 0 0 0 0\nintr 5\n";
  const char* const after = "cpu  9 9 9 9\ncpu0 300 0 0 900 0 0 0 0 0 0\ncpu1 150 0 0 1000 0 0 0 50 0 0\nintr 5\n";
  const auto one = cpu_times(before, {0, 1}), other = cpu_times(after, {0, 1});
  ASSERT_TRUE(one && other);
  const double tick = 1.0 / static_cast<double>(sysconf(_SC_CLK_TCK));
  EXPECT_NEAR(other->busy - one->busy, 250 * tick, 1e-9);
  EXPECT_NEAR(other->stolen, 50 * tick, 1e-9);
  EXPECT_NEAR(other_load(*one, *other, 150 * tick, 200 * tick, 2), 150.0 / 400, 1e-9);
  EXPECT_EQ(other_load(*one, *other, 1000, 1, 2), 50 * tick / 2) << "own work is no other load";
  EXPECT_FALSE(cpu_times(before, {0, 7})) << "a core that is not there";
}

TEST(Advice, RecommendsNothingOnABusyMachine) {
  const PredictedCandidate single = candidate("single", 1, 50 * ms), ddp = candidate("ddp", 2, 20 * ms);
  EXPECT_THAT(advice_text(single, {ddp}), HasSubstr("take ddp"));
  const std::string text = advice_text(single, {ddp}, 0.6);
  EXPECT_THAT(text, HasSubstr("other load took 60 % of the cores"));
  EXPECT_THAT(text, Not(HasSubstr("take ddp")));
  EXPECT_THAT(text, HasSubstr("ddp would be"));
  EXPECT_NEAR(widened(single.step, 0.1).error, 50 * ms / 9, 1e-6);
  EXPECT_EQ(widened(single.step, 0).error, single.step.error);
}

}  // namespace
}  // namespace convoy
