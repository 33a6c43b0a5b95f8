#include "launch/machine/host_lists.h"

#include <gmock/gmock.h>

#include "core/base/error.h"
#include "launch/job/agent.h"

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string refusal(const std::vector<std::string>& items, int ranks = 0) {
  try {
    rank_hosts(host_shares(items), ranks);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Failure::command_line);
    return error.what();
  }
  return "";
}

TEST(Hosts, ReadsNamesWithAndWithoutSlots) {
  EXPECT_THAT(rank_hosts(host_shares({"a", "b"}), 4), IsEmpty());
  EXPECT_THAT(rank_hosts(host_shares({"a:1", "b:2"}), 0), ElementsAre(0, 1, 1));
  EXPECT_THAT(rank_hosts(host_shares({"a:1", "b:2"}), 3), ElementsAre(0, 1, 1));
  const std::vector<HostShare> six = host_shares({"[fd77::1]:4", "[fd77::2]:4"});
  EXPECT_EQ(six[0].name, "fd77::1");
  EXPECT_EQ(six[1].ranks, 4);
}

TEST(Hosts, NamesMistakes) {
  EXPECT_THAT(refusal({"a", ""}), HasSubstr("names no host"));
  EXPECT_THAT(refusal({"a", "a"}), HasSubstr("twice"));
  EXPECT_THAT(refusal({"a:0", "b:2"}), HasSubstr("'a:0'"));
  EXPECT_THAT(refusal({"a:x"}), HasSubstr("number of ranks"));
  EXPECT_THAT(refusal({"a:2", "b"}), HasSubstr("for all"));
  EXPECT_THAT(refusal({"a:2", "b:2"}, 3), HasSubstr("4 ranks"));
  // ssh would read it as an option, which can execute any command.
  EXPECT_THAT(refusal({"-oProxyCommand=x"}), HasSubstr("option"));
  EXPECT_THAT(refusal({"a b"}), HasSubstr("character"));
}

TEST(Hosts, QuotesWordsForAnyShell) {
  EXPECT_THAT(remote_command({"ssh", "-oBatchMode=yes"}, "node1", {"/opt/it's here/convoy", "$(agent)"}),
              ElementsAre("ssh", "-oBatchMode=yes", "node1", "exec '/opt/it'\\''s here/convoy' '$(agent)'"));
  EXPECT_THROW(remote_command({"ssh"}, "a", {"two\nlines"}), Error);
}

TEST(Hosts, ReadsBackMessages) {
  const RemotePlan plan = remote_plan(to_line(RemotePlan{"10.0.0.1,5,job,secret", {2, 3}, 4}));
  EXPECT_EQ(plan.channel, "10.0.0.1,5,job,secret");
  EXPECT_THAT(plan.processes, ElementsAre(2, 3));
  RemoteHello hello;
  hello.version = "1";
  hello.host.name = "node1";
  hello.interfaces = {{"eth0", "10.0.0.2", 24, false}};
  const auto back = remote_hello(to_line(hello));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->host.name, "node1");
  EXPECT_EQ(back->interfaces.at(0).address, "10.0.0.2");
  EXPECT_FALSE(remote_hello("Welcome to node1").has_value());
  const RemoteRequest request = remote_request(to_line(RemoteRequest{"1", "/work", {{"OMP_NUM_THREADS", "2"}}, true}));
  EXPECT_EQ(request.environment.at("OMP_NUM_THREADS"), "2");
  EXPECT_TRUE(request.gpus);
}

TEST(Hosts, SendsOnlyLibrarySettings) {
  const Variables kept = forwarded({{"OMP_NUM_THREADS", "2"},
                                    {"NCCL_DEBUG", "INFO"},
                                    {"HOME", "/root"},
                                    {"CUDA_VISIBLE_DEVICES", "1"},
                                    {"LD_LIBRARY_PATH", "/x"}});
  EXPECT_EQ(kept.size(), 3u);
  EXPECT_EQ(kept.count("HOME") + kept.count("CUDA_VISIBLE_DEVICES"), 0u);
}

TEST(Hosts, ExpandsSlurmHostLists) {
  EXPECT_THAT(hosts_in_list("sn[1-3,7],login"), ElementsAre("sn1", "sn2", "sn3", "sn7", "login"));
  EXPECT_THAT(hosts_in_list("a,b"), ElementsAre("a", "b"));
  EXPECT_THAT(hosts_in_list("n[08-10]-ib"), ElementsAre("n08-ib", "n09-ib", "n10-ib"));
  EXPECT_THAT(hosts_in_list(""), IsEmpty());
}

}  // namespace
}  // namespace convoy
