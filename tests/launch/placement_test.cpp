#include "launch/machine/placement.h"

#include <gmock/gmock.h>

#include "core/base/error.h"
#include "launch/text/text_table.h"
#include "tests/launch/saved_topologies.h"

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// `cores` physical cores in two NUMA nodes. As in Linux, the first hardware threads of all cores come first.
Topology machine(int cores, int threads_each = 1, int gpus = 0) {
  Host host;
  host.name = "m";
  for (int id = 0; id < cores; ++id) {
    Core core{id, id * 2 / cores, id * 2 / cores, {}};
    for (int t = 0; t < threads_each; ++t) core.siblings.push_back(id + t * cores);
    host.cores.push_back(core);
  }
  for (int i = 0; i < gpus; ++i) host.gpus.push_back({i, "", "", 1 - i, 0});
  return {{host}};
}

TEST(Placement, GivesRanksEqualNumbersOfCores) {
  JobPlan job = job_of(2);
  const PlacementResult result = place(job, machine(5, 2), {});
  EXPECT_THAT(job.ranks[0].cores, ElementsAre(0, 1, 5, 6));  // both hardware threads of cores 0 and 1
  EXPECT_THAT(job.ranks[1].cores, ElementsAre(3, 4, 8, 9));  // cores of the other NUMA node, without core 2
  EXPECT_EQ(job.ranks[0].threads, 2);
  EXPECT_FALSE(result.shared);
  EXPECT_THAT(result.warnings, IsEmpty());
  EXPECT_EQ(job.ranks[1].devices[0].cores, job.ranks[1].cores);
}

TEST(Placement, RecordsAllResourcesOfTheHosts) {
  EXPECT_EQ(topology_json(machine(4, 2, 1)).dump(),
            R"([{"host":"m","memory_bytes":0,"nodes":[{"socket":0,"numa":0,"threads":"0-1+4-5"},)"
            R"({"socket":1,"numa":1,"threads":"2-3+6-7"}],"gpus":[{"index":0,"numa":1}]}])");
}

TEST(Placement, UsesHyperThreadsWhenCoresRunOut) {
  JobPlan job = job_of(4);
  place(job, machine(2, 2), {});
  EXPECT_THAT(job.ranks[0].cores, ElementsAre(0));
  EXPECT_THAT(job.ranks[1].cores, ElementsAre(2));
  EXPECT_THAT(job.ranks[2].cores, ElementsAre(1));
  EXPECT_EQ(job.ranks[3].threads, 1);
}

TEST(Placement, WarnsOnceWhenRanksShareCores) {
  JobPlan job = job_of(3);
  const PlacementResult result = place(job, machine(2), {});
  EXPECT_TRUE(result.shared);
  EXPECT_THAT(result.warnings, ElementsAre(HasSubstr("3 ranks share 2 cores")));
  for (const RankPlan& rank : job.ranks) {
    EXPECT_THAT(rank.cores, ElementsAre(0, 1));
    EXPECT_EQ(rank.threads, 1);
  }
}

TEST(Placement, KeepsExplicitCores) {
  LaunchConfig launch;
  launch.cores_per_rank = 1;
  JobPlan job = job_of(2);
  place(job, machine(4), launch);
  EXPECT_THAT(job.ranks[1].cores, ElementsAre(1));
  launch.cores_per_rank = 3;
  job = job_of(2);
  try {
    place(job, machine(4), launch);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.key(), "launch.cores_per_rank");
    EXPECT_THAT(error.what(), HasSubstr("6 cores"));
    EXPECT_THAT(error.what(), HasSubstr("may use 4"));
  }
}

TEST(Placement, ThreadsBeyondCoresDoNotSpin) {
  LaunchConfig launch;
  launch.threads = 4;
  JobPlan job = job_of(2);
  EXPECT_TRUE(place(job, machine(4), launch).shared);
  EXPECT_EQ(job.ranks[0].threads, 4);
  EXPECT_THAT(job.ranks[0].cores, ElementsAre(0, 1));
}

TEST(Placement, RefusesMoreThreadsThanTheHostCanRun) {
  LaunchConfig launch;
  launch.threads = 9;
  JobPlan job = job_of(1);
  try {
    place(job, machine(4, 2), launch);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.key(), "launch.threads");
    EXPECT_THAT(error.what(), HasSubstr("may use 8 cores"));
  }
  launch.threads = 8;
  place(job, machine(4, 2), launch);
  EXPECT_EQ(job.ranks[0].threads, 8);
}

TEST(Placement, BindWidensOrLeavesFree) {
  LaunchConfig launch;
  launch.cores_per_rank = 1;
  launch.bind = "numa";
  JobPlan job = job_of(2);
  place(job, machine(4), launch);
  EXPECT_THAT(job.ranks[0].cores, ElementsAre(0, 1));
  launch.bind = "none";
  job = job_of(2);
  place(job, machine(4), launch);
  EXPECT_THAT(job.ranks[0].cores, IsEmpty());
  EXPECT_EQ(job.ranks[0].threads, 1);
}

TEST(Placement, GivesGpuRanksCoresOfTheirNode) {
  JobPlan job = job_of(2, true);
  place(job, machine(4, 1, 2), {});
  EXPECT_THAT(job.ranks[0].cores, ElementsAre(2, 3));  // GPU 0 is attached to NUMA node 1
  EXPECT_THAT(job.ranks[1].cores, ElementsAre(0, 1));
}

TEST(Placement, KeepsTheLaunchersBinding) {
  JobPlan job = job_of(2);
  place(job, machine(4), {}, {{2}, {3}});  // mpirun --bind-to core
  EXPECT_THAT(job.ranks[0].cores, ElementsAre(2));
  EXPECT_THAT(job.ranks[1].cores, ElementsAre(3));
  job = job_of(2);
  place(job, machine(4), {}, {{0, 1, 2, 3}, {0, 1, 2, 3}});  // --bind-to none
  EXPECT_THAT(job.ranks[0].cores, ElementsAre(0, 1));
  EXPECT_THAT(job.ranks[1].cores, ElementsAre(2, 3));
}

TEST(Placement, DividesARanksCoresBetweenItsDevices) {
  JobPlan job = job_of(1);
  job.ranks[0].devices.resize(2);
  place(job, machine(4), {});
  EXPECT_THAT(job.ranks[0].devices[0].cores, ElementsAre(0, 1));
  EXPECT_THAT(job.ranks[0].devices[1].cores, ElementsAre(2, 3));
}

TEST(Placement, DividesEachHostSeparately) {
  Topology two = machine(2);
  two.hosts.push_back(machine(4).hosts[0]);
  JobPlan job = job_of(3);
  job.ranks[1].host = job.ranks[2].host = 1;
  place(job, two, {});
  EXPECT_THAT(job.ranks[0].cores, ElementsAre(0, 1));
  EXPECT_THAT(job.ranks[1].cores, ElementsAre(0, 1));
  EXPECT_THAT(job.ranks[2].cores, ElementsAre(2, 3));
}

TEST(Placement, GivesListedCoresToRanksInOrder) {
  Topology two = machine(4);
  two.hosts.push_back(machine(4).hosts[0]);
  LaunchConfig launch;
  launch.bind = "list";
  launch.cores = {"3", "0-1"};
  JobPlan job = job_of(4);
  job.ranks[2].host = job.ranks[3].host = 1;
  const PlacementResult result = place(job, two, launch);
  EXPECT_THAT(job.ranks[0].cores, ElementsAre(3));
  EXPECT_THAT(job.ranks[1].cores, ElementsAre(0, 1));
  EXPECT_EQ(job.ranks[1].threads, 2);
  EXPECT_THAT(job.ranks[2].cores, ElementsAre(3));
  EXPECT_EQ(result.table[3].why, "launch.cores");
  EXPECT_FALSE(result.shared);
}

std::string listed_refusal(const std::vector<std::string>& cores) {
  LaunchConfig launch;
  launch.bind = "list";
  launch.cores = cores;
  JobPlan job = job_of(2);
  try {
    place(job, machine(4), launch);
  } catch (const ConfigError& error) {
    return error.key() + ": " + error.what();
  }
  return "";
}

TEST(Placement, RefusesMissingListedCores) {
  EXPECT_THAT(listed_refusal({"0"}), HasSubstr("launch.cores: "));
  EXPECT_THAT(listed_refusal({"0", "2+7"}), ::testing::AllOf(HasSubstr("launch.cores.1: "), HasSubstr("names core 7"),
                                                             HasSubstr("may use cores 0-3 of m")));
}

TEST(Placement, RefusesACoreListedTwice) {
  EXPECT_THAT(listed_refusal({"0-1", "1-2"}),
              ::testing::AllOf(HasSubstr("launch.cores.1: "), HasSubstr("gives core 1 of m also to rank 0")));
  EXPECT_THAT(listed_refusal({"0+0", "1"}), HasSubstr("launch.cores.0: "));
}

TEST(Placement, ReportsOverlappingLauncherMasks) {
  const std::vector<std::vector<int>> masks{{0, 1}, {1, 2}};
  JobPlan job = job_of(2);
  const PlacementResult kept = place(job, machine(4), {}, masks);
  EXPECT_TRUE(kept.shared);
  EXPECT_THAT(kept.warnings, ElementsAre(HasSubstr("ranks 0-1 share core 1 of m because their launcher bound them")));
  EXPECT_THAT(job.ranks[1].cores, ElementsAre(1, 2));
  LaunchConfig launch;
  launch.bind = "convoy";
  job = job_of(2);
  const PlacementResult anew = place(job, machine(4), launch, masks);
  EXPECT_THAT(job.ranks[0].cores, ElementsAre(0, 1));
  EXPECT_THAT(job.ranks[1].cores, ElementsAre(2, 3));
  EXPECT_THAT(anew.warnings, IsEmpty());
}

TEST(Placement, ReportsRanksBoundToOneCore) {
  JobPlan job = job_of(2);
  const PlacementResult result = place(job, machine(4), {}, {{0}, {0}});
  EXPECT_TRUE(result.shared);
  EXPECT_THAT(result.warnings,
              ElementsAre(::testing::AllOf(HasSubstr("2 ranks share 1 core on m"), HasSubstr("the job may use 4 cores"),
                                           HasSubstr("launch.bind=convoy"))));
}

TEST(Placement, HyperThreadsOfOneCoreAreOneCore) {
  JobPlan job = job_of(2);  // mpirun --bind-to hwthread
  const PlacementResult result = place(job, machine(2, 2), {}, {{0}, {2}});
  EXPECT_THAT(result.warnings, ElementsAre(HasSubstr("share core 0")));
}

TEST(Placement, KeepLeavesTheMaskUnchanged) {
  LaunchConfig launch;
  launch.bind = "keep";
  JobPlan job = job_of(2);
  const PlacementResult result = place(job, machine(8), launch, {{0, 1, 2, 3}, {0, 1, 2, 3}});
  EXPECT_THAT(job.ranks[0].cores, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(job.ranks[1].cores, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(job.ranks[1].threads, 2);  // its share
  EXPECT_TRUE(result.shared);
  EXPECT_EQ(result.table[0].why, "as its launcher bound it");
  job = job_of(1);
  place(job, machine(8), launch);
  EXPECT_THAT(job.ranks[0].cores, IsEmpty());
}

TEST(Placement, PrintsATable) {
  JobPlan job = job_of(3);
  const PlacementResult result = place(job, machine(4), {});
  EXPECT_EQ(placement_text(result.table, 2),
            "rank  host  device  NUMA  cores  threads  why\n"
            "0     m     cores   0     0            1  in one NUMA node\n"
            "1     m     cores   0     1            1  in one NUMA node\n"
            "… and 1 more\n");
  const Json rows(result.table);
  EXPECT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[2]["cores"], Json({2}));
  EXPECT_EQ(rows[2]["numa"], Json({1}));
}

TEST(Placement, MergesRanksOfEqualPlacement) {
  std::vector<PlacedRank> table;
  for (int rank = 0; rank < 1024; ++rank) {
    PlacedRank row;
    row.rank = rank;
    row.host = str("node", rank / 8);
    row.device = str("GPU ", rank % 8);
    row.cores = {rank % 8};
    row.why = "near";
    table.push_back(row);
  }
  const std::string text = placement_text(table, 16);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 9);
  EXPECT_THAT(text, HasSubstr("1-1017 by 8  node0 … node127 (128)  GPU 1"));
}

}  // namespace
}  // namespace convoy
