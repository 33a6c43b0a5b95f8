// Saved machines as hwloc reads them: cores, nodes, the rest of a cpuset, GPUs with their nearest cores.
#include "launch/machine/topology.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/base/error.h"
#include "tests/launch/saved_topologies.h"

namespace convoy {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Host host_named(const std::string& name) { return machine_named(name).hosts.front(); }

std::vector<int> nodes(const Host& host) {
  std::vector<int> nodes;
  for (const Core& core : host.cores) nodes.push_back(core.numa);
  return nodes;
}

TEST(SavedTopology, ReadsEightGpusOnTwoSockets) {
  const Host host = host_named("dgx");
  EXPECT_EQ(host.name, "dgx");
  EXPECT_EQ(host.memory, 2048 * gib);
  ASSERT_EQ(host.cores.size(), 32u);
  EXPECT_THAT(host.cores[17].siblings, ElementsAre(17, 49));
  EXPECT_EQ(host.cores[17].socket, 1);
  ASSERT_EQ(host.gpus.size(), 8u);
  for (int i = 0; i < 8; ++i) {
    const Gpu& gpu = host.gpus[static_cast<size_t>(i)];
    EXPECT_EQ(gpu.index, i);
    EXPECT_EQ(gpu.numa, i / 4);
    EXPECT_EQ(gpu.socket, i / 4);
    EXPECT_EQ(gpu.memory, 80 * gib);
    EXPECT_EQ(gpu.uuid.substr(0, 12), str("GPU-000000d", i));
  }
  EXPECT_EQ(host.gpus[0].pci, "0000:1b:00.0");
  EXPECT_EQ(host.gpus[7].pci, "0000:df:00.0");
}

TEST(SavedTopology, SortsGpusByAddress) {
  const Host host = host_named("numa4");
  EXPECT_THAT(nodes(host), ElementsAre(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3));
  ASSERT_EQ(host.gpus.size(), 2u);
  EXPECT_EQ(host.gpus[0].numa, 3);
  EXPECT_EQ(host.gpus[0].socket, 1);
  EXPECT_EQ(host.gpus[1].numa, 1);
}

TEST(SavedTopology, IgnoresNodesOfGpuMemory) {
  const Host host = host_named("grace");
  EXPECT_EQ(host.cores.front().numa, 0);
  EXPECT_EQ(host.cores.back().numa, 1);
  ASSERT_EQ(host.gpus.size(), 2u);
  EXPECT_EQ(host.gpus[1].numa, 1);
  EXPECT_EQ(host.memory, 480 * gib);
}

TEST(SavedTopology, IgnoresADisplayGpu) {
  const Host host = host_named("laptop");
  ASSERT_EQ(host.cores.size(), 6u);
  EXPECT_THAT(host.cores[1].siblings, ElementsAre(2, 3));
  EXPECT_THAT(host.cores[2].siblings, ElementsAre(4));
  EXPECT_THAT(host.gpus, IsEmpty());
}

TEST(SavedTopology, RespectsTheCpuset) {
  const Host host = host_named("container");
  std::vector<int> ids;
  for (const Core& core : host.cores) ids.push_back(core.id);
  EXPECT_THAT(ids, ElementsAre(2, 3, 6));
}

TEST(SavedTopology, ReadsHyperThreads) {
  const Host host = host_named("hyperthreads");
  ASSERT_EQ(host.cores.size(), 4u);
  EXPECT_THAT(host.cores[3].siblings, ElementsAre(3, 7));
  EXPECT_THAT(nodes(host), Each(0));
}

std::string refusal_of(const std::string& path) {
  try {
    saved_host(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Failure::config);
    return error.what();
  }
  return "";
}

TEST(SavedTopology, NamesAnInvalidFile) {
  EXPECT_THAT(refusal_of("/nowhere/m.xml"), HasSubstr("--topology /nowhere/m.xml: no such file"));
  const auto path = std::filesystem::temp_directory_path() / str("convoy-topology-", getpid(), ".xml");
  std::ofstream(path) << "<topology version=\"2.0\"><object type=\"Mach";
  const std::string message = refusal_of(path);
  std::filesystem::remove(path);
  EXPECT_THAT(message, HasSubstr("lstopo --of xml"));
}

TEST(ThisHost, SeparatesTheLaunchersMaskFromTheAllowedCores) {
  const Host whole = this_host({false, true}), own = this_host({false, false});
  ASSERT_FALSE(own.cores.empty());
  EXPECT_GE(whole.cores.size(), own.cores.size());
  if (whole.cores.size() == own.cores.size()) {
    EXPECT_THAT(whole.bound, IsEmpty());
  }
}

TEST(ThisHost, ReadsBackFromJson) {
  Host host = host_named("dgx");
  host.bound = {0, 32};
  const Host copy = Json(host).get<Host>();
  EXPECT_EQ(Json(copy), Json(host));
  EXPECT_EQ(copy.gpus[5].socket, 1);
  EXPECT_THAT(copy.bound, ElementsAre(0, 32));
}

}  // namespace
}  // namespace convoy
