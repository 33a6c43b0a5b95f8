// Placement of ranks on saved topologies of other machines.
#include <gmock/gmock.h>

#include <set>

#include "launch/machine/placement.h"
#include "tests/launch/saved_topologies.h"

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Returns physical cores that two ranks have in common.
int shared_cores(const JobPlan& job, const Host& host) {
  int shared = 0;
  for (const Core& core : host.cores) {
    std::set<int> owners;
    for (const RankPlan& rank : job.ranks)
      for (int unit : rank.cores)
        if (std::count(core.siblings.begin(), core.siblings.end(), unit) > 0) owners.insert(rank.rank);
    shared += owners.size() > 1 ? 1 : 0;
  }
  return shared;
}

TEST(Inventory, PlacesEachRankOnTheNodeOfItsGpu) {
  const Topology dgx = machine_named("dgx");
  JobPlan job = job_of(8, true);
  const PlacementResult result = place(job, dgx, {});
  ASSERT_EQ(result.table.size(), 8u);
  for (const PlacedRank& row : result.table) {
    EXPECT_THAT(row.numa, ElementsAre(row.rank / 4));
    EXPECT_EQ(row.threads, 4);
    EXPECT_EQ(row.cores.size(), 8u);  // with all hardware threads
    EXPECT_EQ(row.why, str("GPU ", row.rank, " is on NUMA node ", row.rank / 4));
    EXPECT_THAT(row.device, HasSubstr(str("GPU ", row.rank, " GPU-000000d", row.rank)));
  }
  EXPECT_EQ(shared_cores(job, dgx.hosts[0]), 0);
  EXPECT_EQ(job.ranks[5].devices[0].uuid, dgx.hosts[0].gpus[5].uuid);
  EXPECT_THAT(result.warnings, IsEmpty());
}

TEST(Inventory, KeepsARankOnTheNodeOfItsGpu) {
  JobPlan job = job_of(2, true);
  place(job, machine_named("numa4"), {});
  EXPECT_THAT(job.ranks[0].cores, ElementsAre(12, 13, 14, 15));  // the four nearest of 16 / 2 cores
  EXPECT_THAT(job.ranks[1].cores, ElementsAre(4, 5, 6, 7));
}

TEST(Inventory, TakesFurtherCoresFromTheSocket) {
  LaunchConfig launch;
  launch.cores_per_rank = 6;
  JobPlan job = job_of(2, true);
  const PlacementResult result = place(job, machine_named("numa4"), launch);
  EXPECT_THAT(job.ranks[0].cores, ElementsAre(8, 9, 12, 13, 14, 15));
  EXPECT_THAT(result.table[0].why, HasSubstr("on socket 1, and its NUMA node 3 has too few cores left"));
}

TEST(Inventory, KeepsARankOnOneNode) {
  const Topology numa4 = machine_named("numa4");
  for (int ranks : {3, 4, 7, 8}) {
    JobPlan job = job_of(ranks);
    const PlacementResult result = place(job, numa4, {});
    EXPECT_EQ(shared_cores(job, numa4.hosts[0]), 0) << ranks;
    for (const PlacedRank& row : result.table) {
      EXPECT_EQ(row.numa.size(), 1u) << ranks << " ranks, rank " << row.rank;
      EXPECT_EQ(row.threads, result.table.front().threads);
    }
  }
}

TEST(Inventory, GivesTwoRanksOnFourNodesASocketEach) {
  JobPlan job = job_of(2);
  const PlacementResult result = place(job, machine_named("numa4"), {});
  EXPECT_THAT(result.table[0].sockets, ElementsAre(0));
  EXPECT_THAT(result.table[1].sockets, ElementsAre(1));
  EXPECT_EQ(result.table[1].threads, 8);
}

TEST(Inventory, CrossesNodesToAvoidIdleCores) {
  Topology uneven = machine_named("numa4");
  auto& cores = uneven.hosts[0].cores;
  cores.erase(cores.begin() + 10, cores.end());  // 4 + 4 + 2
  JobPlan job = job_of(3);
  const PlacementResult result = place(job, uneven, {});
  EXPECT_EQ(result.table[0].threads, 3);
  EXPECT_THAT(result.table[2].numa, ::testing::SizeIs(::testing::Gt(1u)));
  EXPECT_THAT(result.table[2].why, HasSubstr("no NUMA node has 3 free cores"));
}

TEST(Inventory, UsesPhysicalCoresBeforeHyperThreads) {
  const Topology machine = machine_named("hyperthreads");
  JobPlan job = job_of(4);
  const PlacementResult four = place(job, machine, {});
  EXPECT_EQ(shared_cores(job, machine.hosts[0]), 0);
  EXPECT_THAT(job.ranks[3].cores, ElementsAre(3, 7));
  EXPECT_EQ(four.table[0].threads, 1);
  job = job_of(6);
  const PlacementResult six = place(job, machine, {});
  EXPECT_EQ(shared_cores(job, machine.hosts[0]), 2);
  EXPECT_THAT(job.ranks[1].cores, ElementsAre(4));
  EXPECT_THAT(six.table[1].why, HasSubstr("hardware threads"));
  EXPECT_THAT(job.ranks[5].cores, ElementsAre(3, 7));  // to itself
  EXPECT_EQ(six.table[5].why, "the host has one NUMA node");
  EXPECT_FALSE(six.shared);
}

TEST(Inventory, PlacesAGpuPerSocket) {
  JobPlan job = job_of(2, true);
  place(job, machine_named("grace"), {});
  EXPECT_THAT(job.ranks[0].cores, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(job.ranks[1].cores, ElementsAre(8, 9, 10, 11, 12, 13, 14, 15));
}

TEST(Inventory, PlacesRanksOfALaptopInOrder) {
  JobPlan job = job_of(3);
  place(job, machine_named("laptop"), {});
  EXPECT_THAT(job.ranks[0].cores, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(job.ranks[2].cores, ElementsAre(6, 7));
  EXPECT_EQ(job.ranks[0].threads, 2);
}

TEST(Inventory, KeepsRanksWithinTheCpuset) {
  JobPlan job = job_of(3);
  place(job, machine_named("container"), {});
  EXPECT_THAT(job.ranks[0].cores, ElementsAre(2));
  EXPECT_THAT(job.ranks[1].cores, ElementsAre(3));
  EXPECT_THAT(job.ranks[2].cores, ElementsAre(6));
  job = job_of(4);
  EXPECT_THAT(place(job, machine_named("container"), {}).warnings, ElementsAre(HasSubstr("4 ranks share 3 cores")));
}

}  // namespace
}  // namespace convoy
