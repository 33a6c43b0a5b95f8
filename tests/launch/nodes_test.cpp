#include "launch/machine/environment.h"

#include <gmock/gmock.h>

#include <stdexcept>

#include "core/base/error.h"

namespace convoy {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char pod[] = "train-1.trainers.default.svc.cluster.local";

std::string node_text(const NodeOptions& typed, const Variables& variables, const std::string& host = "node1") {
  const auto role = node_role(typed, variables, [&] { return host; });
  if (!role) return "none";
  return str(role->node, " of ", role->nodes, " at ", role->host, ":", role->port, " ranks ", role->ranks, " from ",
             role->from);
}

std::string node_error(const NodeOptions& typed, const Variables& variables, Failure kind) {
  try {
    node_role(typed, variables, [] { return std::string("node1"); });
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return "accepted";
}

TEST(NodeRole, OptionsNameEverything) {
  EXPECT_EQ(node_text({2, 1, "node0:1234"}, {}), "1 of 2 at node0:1234 ranks 0 from --nodes");
  EXPECT_EQ(node_text({2, 0, "node0"}, {}), "0 of 2 at node0:29500 ranks 0 from --nodes");
  EXPECT_EQ(node_text({2, 1, "[fd00::5]:77"}, {}), "1 of 2 at fd00::5:77 ranks 0 from --nodes");
  EXPECT_EQ(node_text({2, 1, "[fd00::5]"}, {}), "1 of 2 at fd00::5:29500 ranks 0 from --nodes");
}

TEST(NodeRole, NoneWithoutNodesOrWithOne) {
  EXPECT_EQ(node_text({}, {{"MASTER_ADDR", "left over"}, {"JOB_COMPLETION_INDEX", "3"}}), "none");
  EXPECT_EQ(node_text({1, -1, ""}, {}), "none");
  EXPECT_EQ(node_text({}, {{"PET_NNODES", "1"}, {"PET_NODE_RANK", "0"}}), "none");
  // A rank started this process: it is a run of its own.
  EXPECT_EQ(node_text({}, {{"CONVOY_PROCESS", "0"}, {"NNODES", "2"}}), "none");
}

TEST(NodeRole, EachPlatformAloneIsEnough) {
  EXPECT_EQ(node_text({}, {{"PET_NNODES", "2"},
                           {"PET_NODE_RANK", "1"},
                           {"PET_NPROC_PER_NODE", "4"},
                           {"PET_MASTER_ADDR", "job-node-0-0.job"},
                           {"PET_MASTER_PORT", "29400"}}),
            "1 of 2 at job-node-0-0.job:29400 ranks 4 from PET_NNODES");
  EXPECT_EQ(node_text({}, {{"SKYPILOT_NUM_NODES", "3"},
                           {"SKYPILOT_NODE_RANK", "2"},
                           {"SKYPILOT_NODE_IPS", "10.0.0.5\n10.0.0.6\n10.0.0.7"}}),
            "2 of 3 at 10.0.0.5:29500 ranks 0 from SKYPILOT_NUM_NODES");
  EXPECT_EQ(node_text({}, {{"PET_NNODES", "2"}, {"PET_NODE_RANK", "0"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "5"}}),
            "0 of 2 at a:5 ranks 0 from PET_NNODES");
  EXPECT_EQ(node_text({}, {{"NNODES", "2"}, {"NODE_RANK", "0"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "5"}}),
            "0 of 2 at a:5 ranks 0 from NNODES");
  // A pod of an Indexed Job knows its index; node 0 has the same host name with index 0.
  EXPECT_EQ(node_text({}, {{"NNODES", "2"}, {"JOB_COMPLETION_INDEX", "1"}}, pod),
            "1 of 2 at train-0.trainers.default.svc.cluster.local:29500 ranks 0 from NNODES");
  EXPECT_EQ(node_text({2, -1, "train-0.trainers"}, {{"JOB_COMPLETION_INDEX", "1"}}, pod),
            "1 of 2 at train-0.trainers:29500 ranks 0 from --nodes");
}

TEST(NodeRole, WordsForRanksPerNodeLeaveThemToConvoy) {
  for (const char* word : {"auto", "gpu", "cpu"})
    EXPECT_EQ(
        node_text(
            {},
            {{"PET_NNODES", "2:2"}, {"PET_NODE_RANK", "1"}, {"PET_NPROC_PER_NODE", word}, {"PET_MASTER_ADDR", "a"}}),
        "1 of 2 at a:29500 ranks 0 from PET_NNODES");
}

// A name server that does not answer must not delay every start.
TEST(NodeRole, LooksUpTheHostsNameForAnIndexedJobOnly) {
  const auto refuse = []() -> std::string { throw std::logic_error("the name was looked up"); };
  EXPECT_FALSE(node_role({}, {{"HOME", "/root"}}, refuse));
  EXPECT_TRUE(node_role({2, 1, "node0"}, {}, refuse));
  EXPECT_TRUE(node_role({}, {{"NNODES", "2"}, {"NODE_RANK", "0"}, {"MASTER_ADDR", "a"}}, refuse));
  EXPECT_THROW(node_role({}, {{"NNODES", "2"}, {"JOB_COMPLETION_INDEX", "1"}}, refuse), std::logic_error);
}

TEST(NodeRole, OptionsWinOverVariables) {
  EXPECT_EQ(node_text({2, 0, "here:7"}, {{"NNODES", "5"}, {"NODE_RANK", "4"}, {"MASTER_ADDR", "there"}}),
            "0 of 2 at here:7 ranks 0 from --nodes");
}

TEST(NodeRole, PlatformsMustAgree) {
  const Variables kubeflow{{"PET_NNODES", "2"}, {"PET_NODE_RANK", "1"}, {"PET_MASTER_ADDR", "a"}};
  const auto with = [&](Variables more) {
    more.insert(kubeflow.begin(), kubeflow.end());
    return node_error({}, more, Failure::config);
  };
  EXPECT_EQ(with({{"NNODES", "2"}, {"NODE_RANK", "1"}, {"MASTER_ADDR", "a"}}), "accepted");
  EXPECT_THAT(with({{"NNODES", "3"}}), AllOf(HasSubstr("NNODES=3"), HasSubstr("PET_NNODES=2")));
  EXPECT_THAT(with({{"NNODES", "2"}, {"NODE_RANK", "0"}}),
              AllOf(HasSubstr("NODE_RANK=0"), HasSubstr("PET_NODE_RANK=1")));
  EXPECT_THAT(with({{"MASTER_ADDR", "b"}}), AllOf(HasSubstr("PET_MASTER_ADDR"), HasSubstr("names b")));
  EXPECT_THAT(with({{"NNODES", "2"}, {"MASTER_ADDR", "b"}}), AllOf(HasSubstr("PET_MASTER_ADDR"), HasSubstr("names b")));
  EXPECT_THAT(with({{"JOB_COMPLETION_INDEX", "0"}}), HasSubstr("JOB_COMPLETION_INDEX=0"));
  EXPECT_THAT(with({{"NODE_RANK", "0"}}), AllOf(HasSubstr("NODE_RANK=0"), HasSubstr("PET_NODE_RANK=1")));
  EXPECT_THAT(with({{"PET_MASTER_PORT", "5"}, {"NNODES", "2"}, {"MASTER_PORT", "6"}}),
              AllOf(HasSubstr("MASTER_PORT=6"), HasSubstr("PET_MASTER_PORT=5")));
  EXPECT_THAT(with({{"PET_NPROC_PER_NODE", "zz"}}), HasSubstr("PET_NPROC_PER_NODE=zz"));
  const Variables sky{{"SKYPILOT_NUM_NODES", "2"}, {"SKYPILOT_NODE_RANK", "0"}, {"SKYPILOT_NODE_IPS", "10.0.0.1"}};
  EXPECT_THAT(node_error({}, sky, Failure::config), HasSubstr("SKYPILOT_NODE_IPS has 1 address, which contradicts"));
}

// Its launcher gives the number of ranks also for one node.
TEST(NodeRole, KeepsTheRanksOfOneNode) {
  EXPECT_EQ(node_text({}, {{"PET_NNODES", "1"}, {"PET_NODE_RANK", "0"}, {"PET_NPROC_PER_NODE", "2"}}),
            "0 of 1 at :29500 ranks 2 from PET_NNODES");
  // A port alone goes with the host that another variable names.
  EXPECT_EQ(node_text({}, {{"SKYPILOT_NUM_NODES", "2"},
                           {"SKYPILOT_NODE_RANK", "0"},
                           {"SKYPILOT_NODE_IPS", "10.0.0.1 10.0.0.2"},
                           {"NNODES", "2"},
                           {"MASTER_PORT", "4001"}}),
            "0 of 2 at 10.0.0.1:4001 ranks 0 from SKYPILOT_NUM_NODES");
}

TEST(NodeRole, NamesWhatIsMissingOrWrong) {
  EXPECT_THAT(node_error({2, 1, ""}, {}, Failure::command_line), HasSubstr("--rendezvous"));
  EXPECT_THAT(node_error({2, -1, "a"}, {}, Failure::command_line), HasSubstr("--node-rank"));
  EXPECT_THAT(node_error({0, 1, "a"}, {}, Failure::command_line), HasSubstr("--nodes"));
  EXPECT_THAT(node_error({2, 2, "a"}, {}, Failure::command_line), HasSubstr("0 to 1"));
  for (const char* text : {":5", "a:", "a:0", "a:65536", "a:b", "fd00::5", "[fd00::5", "[a]5", "-x:5"})
    EXPECT_NE(node_error({2, 1, text}, {}, Failure::command_line), "accepted") << text;
  EXPECT_THAT(node_error({}, {{"NNODES", "2"}, {"MASTER_ADDR", "a"}}, Failure::config), HasSubstr("NODE_RANK"));
  EXPECT_THAT(node_error({}, {{"NNODES", "2"}, {"NODE_RANK", "2"}, {"MASTER_ADDR", "a"}}, Failure::config),
              HasSubstr("0 to 1"));
  EXPECT_THAT(node_error({}, {{"PET_NNODES", "1:4"}, {"PET_NODE_RANK", "0"}}, Failure::config), HasSubstr("range"));
  for (const char* text : {"x", "-1", "0", "99999999999"})
    EXPECT_THAT(node_error({}, {{"NNODES", text}}, Failure::config), HasSubstr("NNODES"));
}

}  // namespace
}  // namespace convoy
