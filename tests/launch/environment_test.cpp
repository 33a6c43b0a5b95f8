#include "launch/machine/environment.h"

#include <gmock/gmock.h>

#include "core/base/error.h"

namespace convoy {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Variables mpi(int rank, int size) {
  return {{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
          {"OMPI_COMM_WORLD_SIZE", std::to_string(size)},
          {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(rank)},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(size)},
          {"PMIX_RANK", std::to_string(rank)},
          {"OMPI_MCA_ess_base_jobid", "12345"}};
}

Variables slurm(int rank, int size) {
  return {{"SLURM_STEP_ID", "0"},
          {"SLURM_JOB_ID", "77"},
          {"SLURM_PROCID", std::to_string(rank)},
          {"SLURM_LOCALID", std::to_string(rank % 2)},
          {"SLURM_STEP_NUM_TASKS", std::to_string(size)},
          {"SLURM_NTASKS", std::to_string(size)}};
}

Variables torch(int rank, int size) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(size)},
          {"LOCAL_RANK", "0"},
          {"MASTER_ADDR", "10.0.0.1"},
          {"MASTER_PORT", "29500"}};
}

Variables operator+(Variables a, const Variables& b) {
  for (const auto& variable : b) a[variable.first] = variable.second;
  return a;
}

std::string error_of(const Variables& variables) {
  try {
    launched_as(variables);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Failure::config);
    return error.what();
  }
  return "";
}

TEST(Environment, WithoutVariablesTheProcessIsAlone) {
  const LaunchedAs as = launched_as({{"HOME", "/root"}, {"MASTER_ADDR", "left over"}});
  EXPECT_EQ(as.launcher, Launcher::none);
  EXPECT_EQ(as.size, 1);
}

TEST(Environment, Mpirun) {
  const LaunchedAs as = launched_as(mpi(1, 4));
  EXPECT_EQ(as.launcher, Launcher::open_mpi);
  EXPECT_EQ(as.rank, 1);
  EXPECT_EQ(as.local_rank, 1);
  EXPECT_EQ(as.size, 4);
  EXPECT_EQ(as.job, "12345");
  EXPECT_TRUE(as.pmi);
}

TEST(Environment, RefusesAnInvalidPort) {
  Variables wrong = torch(0, 2);
  wrong["MASTER_PORT"] = "70000";
  EXPECT_THAT(error_of(wrong), HasSubstr("MASTER_PORT=70000 is no port"));
}

TEST(Environment, Torchrun) {
  const LaunchedAs as = launched_as(torch(1, 2) + Variables{{"TORCHELASTIC_RUN_ID", "none"}});
  EXPECT_EQ(as.launcher, Launcher::torchrun);
  EXPECT_EQ(as.rank, 1);
  EXPECT_EQ(as.local_rank, 0);
  EXPECT_FALSE(as.pmi);
  // The run id alone is the same for all jobs.
  EXPECT_THAT(as.job, HasSubstr("29500"));
  EXPECT_EQ(as.job.find('/'), std::string::npos);
}

TEST(Environment, SlurmStepUsesItsOwnLocalRank) {
  const LaunchedAs as = launched_as(slurm(3, 4));
  EXPECT_EQ(as.launcher, Launcher::slurm);
  EXPECT_EQ(as.rank, 3);
  EXPECT_EQ(as.local_rank, 1);
  EXPECT_EQ(as.size, 4);
  EXPECT_FALSE(as.pmi);
  EXPECT_THAT(as.job, HasSubstr("77.0"));
}

TEST(Environment, SlurmWithPmixCanDoMpi) { EXPECT_TRUE(launched_as(slurm(3, 4) + Variables{{"PMIX_RANK", "3"}}).pmi); }

TEST(Environment, BatchScriptAndInteractiveShellAreNoTasks) {
  Variables batch = slurm(0, 4);
  batch.erase("SLURM_STEP_ID");
  EXPECT_EQ(launched_as(batch).launcher, Launcher::none);
  EXPECT_EQ(launched_as(slurm(0, 4) + Variables{{"SLURM_STEP_ID", "4294967290"}}).launcher, Launcher::none);
}

TEST(Environment, ReportsInheritedVariables) {
  EXPECT_TRUE(launched_as(slurm(1, 2)).inherited.empty());
  EXPECT_TRUE(launched_as(mpi(1, 2)).inherited.empty());
  const Variables batch{{"SLURM_JOB_ID", "77"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}};
  ASSERT_EQ(launched_as(batch).inherited.size(), 1u);
  EXPECT_THAT(launched_as(batch).inherited[0], AllOf(HasSubstr("SLURM_JOB_ID, SLURM_PROCID, SLURM_NTASKS"),
                                                     HasSubstr("batch script"), HasSubstr("srun")));
  const Variables allocation{{"SLURM_JOB_ID", "77"}, {"SLURM_NTASKS", "4"}};
  EXPECT_THAT(launched_as(allocation).inherited.at(0), HasSubstr("the allocation of Slurm job 77"));
  // mpirun's daemon on another host is a task of srun.
  const LaunchedAs under_both = launched_as(mpi(3, 4) + slurm(1, 2));
  EXPECT_EQ(under_both.rank, 3);
  EXPECT_THAT(under_both.inherited.at(0),
              AllOf(HasSubstr("SLURM_PROCID"), HasSubstr("task 1 of step 77.0"), HasSubstr("those of mpirun")));
}

TEST(Environment, ARunStartedByARankIsIndependent) {
  const Variables rank = mpi(1, 2) + Variables{{"CONVOY_PROCESS", "1"},
                                               {"CONVOY_RANK", "1"},
                                               {"CONVOY_CHANNEL", "127.0.0.1,1,a,b"},
                                               {"OMP_NUM_THREADS", "1"}};
  const LaunchedAs as = launched_as(rank);
  EXPECT_EQ(as.launcher, Launcher::none);
  EXPECT_TRUE(as.channel.empty());
  EXPECT_THAT(as.inherited.at(0), HasSubstr("of rank 1 of another run"));
}

TEST(Environment, ConvoyVariablesComeFirst) {
  const Variables own{
      {"CONVOY_RANK", "0"}, {"CONVOY_WORLD_SIZE", "3"}, {"CONVOY_LOCAL_RANK", "0"}, {"CONVOY_JOB", "a/b"}};
  const LaunchedAs as = launched_as(own + slurm(1, 2));
  EXPECT_EQ(as.launcher, Launcher::convoy);
  EXPECT_EQ(as.size, 3);
  EXPECT_EQ(as.job, "a_b");
}

TEST(Environment, NamesMissingVariables) {
  Variables torch_without = torch(0, 2);
  torch_without.erase("LOCAL_RANK");
  EXPECT_THAT(error_of(torch_without),
              AllOf(HasSubstr("not LOCAL_RANK"), HasSubstr("torchrun"), HasSubstr("unset RANK")));
  EXPECT_THAT(error_of({{"WORLD_SIZE", "2"}}), HasSubstr("RANK"));
  EXPECT_THAT(error_of({{"OMPI_COMM_WORLD_RANK", "0"}}), HasSubstr("OMPI_COMM_WORLD_SIZE"));
  EXPECT_THAT(error_of({{"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}), HasSubstr("OMPI_COMM_WORLD_RANK"));
  EXPECT_THAT(error_of({{"CONVOY_RANK", "0"}}), HasSubstr("CONVOY_WORLD_SIZE"));
  EXPECT_THAT(error_of({{"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "2"}}), HasSubstr("SLURM_PROCID"));
}

TEST(Environment, NamesBothConflictingVariables) {
  EXPECT_THAT(error_of(torch(0, 2) + mpi(1, 2)), AllOf(HasSubstr("RANK=0"), HasSubstr("OMPI_COMM_WORLD_RANK=1")));
  EXPECT_THAT(error_of(torch(1, 2) + mpi(1, 4)), AllOf(HasSubstr("WORLD_SIZE=2"), HasSubstr("OMPI_COMM_WORLD_SIZE=4")));
  EXPECT_THAT(error_of(slurm(1, 2) + Variables{{"PMIX_RANK", "0"}}),
              AllOf(HasSubstr("SLURM_PROCID=1"), HasSubstr("PMIX_RANK=0")));
  EXPECT_THAT(error_of(torch(0, 2) + slurm(1, 2)), HasSubstr("SLURM_PROCID=1"));
  const Variables own{
      {"CONVOY_RANK", "0"}, {"CONVOY_WORLD_SIZE", "2"}, {"CONVOY_LOCAL_RANK", "0"}, {"CONVOY_JOB", "a"}};
  EXPECT_THAT(error_of(own + mpi(1, 2)), AllOf(HasSubstr("CONVOY_RANK=0"), HasSubstr("OMPI_COMM_WORLD_RANK=1")));
}

TEST(Environment, AcceptsNestedLaunchers) {
  // mpirun's daemon was itself started by srun; torchrun is one task a host.
  EXPECT_EQ(launched_as(mpi(3, 4) + slurm(1, 2)).launcher, Launcher::open_mpi);
  EXPECT_EQ(launched_as(torch(3, 4) + slurm(1, 2) + Variables{{"TORCHELASTIC_RUN_ID", "x"}}).launcher,
            Launcher::torchrun);
}

TEST(Environment, ChecksNumbers) {
  EXPECT_THAT(error_of(mpi(4, 4)), HasSubstr("rank 4 of 4"));
  EXPECT_THAT(error_of(torch(0, 2) + Variables{{"RANK", "one"}}), HasSubstr("RANK=one"));
  EXPECT_THAT(error_of(torch(0, 2) + Variables{{"WORLD_SIZE", "-2"}}), HasSubstr("WORLD_SIZE=-2"));
  EXPECT_THAT(error_of(torch(0, 2) + Variables{{"LOCAL_RANK", "5"}}), HasSubstr("local rank 5"));
  EXPECT_THAT(error_of(slurm(0, 2) + Variables{{"SLURM_STEP_ID", "batch"}}), HasSubstr("SLURM_STEP_ID=batch"));
}

TEST(Environment, RefusesPmixWithoutASize) {
  EXPECT_THAT(error_of({{"PMIX_RANK", "0"}}), HasSubstr("CONVOY_WORLD_SIZE"));
}

TEST(Environment, RefusesAChannelWithoutARank) {
  EXPECT_THAT(error_of({{"CONVOY_CHANNEL", "127.0.0.1,1,a,b"}}), HasSubstr("unset CONVOY_CHANNEL"));
  EXPECT_EQ(launched_as(mpi(0, 2) + Variables{{"CONVOY_CHANNEL", "127.0.0.1,1,a,b"}}).channel, "127.0.0.1,1,a,b");
}

TEST(Environment, NestedRunsKeepTheUsersSettings) {
  const Variables kept = without_ranks(mpi(0, 2) + torch(0, 2) + slurm(0, 2) +
                                       Variables{{"OMPI_MCA_btl", "tcp,self"},
                                                 {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                                 {"OMPI_MCA_orte_base_help_aggregate", "0"},
                                                 {"SLURM_NODELIST", "n[1-2]"},
                                                 {"CONVOY_CHANNEL", "x"}});
  EXPECT_THAT(kept, ::testing::UnorderedElementsAre(
                        ::testing::Key("OMPI_MCA_btl"), ::testing::Key("OMPI_ALLOW_RUN_AS_ROOT"),
                        ::testing::Key("OMPI_MCA_orte_base_help_aggregate"), ::testing::Key("SLURM_NODELIST"),
                        ::testing::Key("SLURM_JOB_ID"), ::testing::Key("SLURM_NTASKS")));
}

}  // namespace
}  // namespace convoy
