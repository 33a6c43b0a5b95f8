#include "core/control/addresses.h"

#include <gmock/gmock.h>

#include "core/base/error.h"
#include "launch/job/rendezvous.h"

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Interface loopback{"lo", "127.0.0.1", 8, true};
const Interface bridge{"docker0", "172.17.0.1", 16, false};

std::vector<Interface> host(const std::string& address, int prefix = 24) {
  return {loopback, bridge, {"eth0", address, prefix, false}};
}

TEST(Networks, ComparesAddressesByPrefix) {
  EXPECT_TRUE(same_network("10.0.0.1", "10.0.0.200", 24));
  EXPECT_FALSE(same_network("10.0.0.1", "10.0.1.1", 24));
  EXPECT_TRUE(same_network("10.0.0.1", "10.0.1.1", 23));
  EXPECT_FALSE(same_network("10.0.0.1", "10.0.0.200", 25));
  EXPECT_TRUE(same_network("fd77::1", "fd77::abcd:2", 64));
  EXPECT_FALSE(same_network("fd77::1", "fd78::1", 64));
  EXPECT_FALSE(same_network("10.0.0.1", "fd77::1", 8));
  EXPECT_FALSE(same_network("10.0.0.1", "no address", 0));
}

TEST(Networks, IgnoresABridgeOnEveryHost) {
  const auto common = common_network(host("10.0.0.1"), {host("10.0.0.2"), host("10.0.0.3")});
  ASSERT_TRUE(common.has_value());
  EXPECT_EQ(common->address, "10.0.0.1");
  EXPECT_FALSE(common_network(host("10.0.0.1"), {host("10.0.0.2"), host("10.9.0.3")}).has_value());
}

TEST(Networks, IgnoresAnAddressOfSeveralHosts) {
  EXPECT_THAT(repeated_networks({host("10.0.0.1"), host("10.0.0.2")}), ElementsAre("172.17.0.1/16"));
  EXPECT_THAT(repeated_networks({host("10.0.0.1")}), IsEmpty());
}

TEST(Networks, UsesTheLoopbackOnOneHost) {
  LaunchedAs as;
  as.launcher = Launcher::open_mpi;
  as.size = as.local_size = 4;
  EXPECT_EQ(serving_address("", as, {}).address, "127.0.0.1");
  as.local_size = 2;
  EXPECT_EQ(serving_address("127.0.0.0/8", as, {}).address, "127.0.0.1");
}

TEST(Networks, ChoosesTheCommonNetwork) {
  std::vector<Interface> here = host("192.168.1.5");
  here.push_back({"ib0", "10.1.0.5", 16, false});
  EXPECT_EQ(common_network(here, {host("10.1.7.7", 16)})->name, "ib0");
  EXPECT_EQ(common_network({{"eth0", "fd77::1", 64, false}}, {{{"eth0", "fd77::2", 64, false}}})->address, "fd77::1");
}

TEST(Networks, ReadsTheInterfacesOfThisHost) {
  const std::vector<Interface> here = interfaces_here();
  const bool loop = std::any_of(here.begin(), here.end(), [](const Interface& i) { return i.address == "127.0.0.1"; });
  EXPECT_TRUE(loop);
  EXPECT_TRUE(is_here("localhost"));
  EXPECT_TRUE(is_here("127.0.0.1"));
  EXPECT_FALSE(is_here("203.0.113.9"));
  EXPECT_EQ(address_towards("127.0.0.1"), "");
  const std::vector<Interface> again = Json(here).get<std::vector<Interface>>();
  ASSERT_EQ(again.size(), here.size());
  EXPECT_EQ(again[0].address, here[0].address);
  EXPECT_EQ(again[0].prefix, here[0].prefix);
}

TEST(Networks, FindsThisHostsAddressInAConfiguredNetwork) {
  EXPECT_EQ(configured_address("10.0.0.0/24", host("10.0.0.7")), "10.0.0.7");
  EXPECT_EQ(configured_address("10.9.9.9", host("10.0.0.7")), "10.9.9.9");
  try {
    configured_address("10.8.0.0/16", host("10.0.0.7"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Failure::rendezvous);
    EXPECT_THAT(error.what(), HasSubstr("eth0 10.0.0.7/24"));
  }
}

TEST(Networks, UsesTheNetworkOfTheControlChannel) {
  EXPECT_EQ(data_address("", "127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(data_address("", "::1"), "::1");
  EXPECT_EQ(data_address("127.0.0.0/8", "203.0.113.9"), "127.0.0.1");
}

}  // namespace
}  // namespace convoy
