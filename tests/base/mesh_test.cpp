// Coordinates and groups of the mesh.
#include "core/base/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Mesh, IsOneRankWithoutAxes) {
  const Mesh mesh;
  EXPECT_EQ(mesh.size(), 1);
  EXPECT_EQ(mesh.degree("data"), 1);
  EXPECT_EQ(mesh.coordinate(0, "data"), 0);
  EXPECT_THAT(mesh.group(0, "data"), ElementsAre(0));
}

TEST(Mesh, LastAxisVariesFastest) {
  const Mesh mesh({{"data", 2}, {"pipeline", 3}, {"tensor", 4}});
  EXPECT_EQ(mesh.size(), 24);
  EXPECT_EQ(mesh.coordinate(23, "data"), 1);
  EXPECT_EQ(mesh.coordinate(23, "pipeline"), 2);
  EXPECT_EQ(mesh.coordinate(23, "tensor"), 3);
  EXPECT_EQ(mesh.coordinate(6, "pipeline"), 1);
  EXPECT_THAT(mesh.group(6, "tensor"), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(mesh.group(6, "pipeline"), ElementsAre(2, 6, 10));
  EXPECT_THAT(mesh.group(6, "data"), ElementsAre(6, 18));
  EXPECT_THAT(mesh.group(6, "expert"), ElementsAre(6));
}

TEST(Mesh, GroupsOfAnAxisPartitionTheRanks) {
  const Mesh mesh({{"data", 3}, {"tensor", 2}});
  for (const char* axis : {"data", "tensor"}) {
    for (int rank = 0; rank < mesh.size(); ++rank) {
      const auto group = mesh.group(rank, axis);
      ASSERT_EQ(static_cast<int>(group.size()), mesh.degree(axis));
      EXPECT_EQ(group[mesh.coordinate(rank, axis)], rank);
      for (int peer : group) EXPECT_EQ(mesh.group(peer, axis), group);
    }
  }
}

TEST(Mesh, RefusesBadAxes) {
  auto reason = [](std::vector<Axis> axes) -> std::string {
    try {
      Mesh mesh(std::move(axes));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Failure::config);
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(reason({{"data", 0}}), HasSubstr("'data': the degree is 0"));
  EXPECT_THAT(reason({{"data", 2}, {"data", 2}}), HasSubstr("given twice"));
  EXPECT_THAT(reason({{"", 2}}), HasSubstr("no name"));
  EXPECT_THAT(reason({{"a", 65536}, {"b", 65536}}), HasSubstr("number of ranks does not fit"));
}

}  // namespace
}  // namespace convoy
