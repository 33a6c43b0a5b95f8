// Made-up interactions: kept in a folder, and mapped from there by whoever comes later.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "core/data/column_cache.h"
#include "core/data/synthetic.h"
#include "core/error.h"
#include "tests/core/checkpoint/temporary_folder.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

SyntheticInteractions sizes() {
  SyntheticInteractions made;
  made.rows = 5000;
  made.users = 300;
  made.items = 200;
  made.context = 6;
  return made;
}

void expect_equal(const PlantedInteractions& a, const PlantedInteractions& b) {
  EXPECT_TRUE(at::equal(a.all.user, b.all.user));
  EXPECT_TRUE(at::equal(a.all.item, b.all.item));
  EXPECT_TRUE(at::equal(a.all.context, b.all.context));
  EXPECT_EQ(a.split.train, b.split.train);
  EXPECT_EQ(a.split.held_out, b.split.held_out);
  EXPECT_EQ(a.all.users, b.all.users);
  EXPECT_EQ(a.all.items, b.all.items);
}

std::vector<fs::path> caches(const std::string& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors") found.push_back(entry.path());
  return found;
}

TEST(PlantedCache, IsWhatWouldBeMade) {
  const TemporaryFolder folder;
  const std::string place = folder / "deeper/still";
  const auto made = plant_interactions(sizes(), 3);
  expect_equal(made, plant_interactions(sizes(), 3, place));
  ASSERT_EQ(caches(place).size(), 1u);
  const auto written = fs::last_write_time(caches(place)[0]);
  expect_equal(made, plant_interactions(sizes(), 3, place));
  EXPECT_EQ(fs::last_write_time(caches(place)[0]), written);
  for (const auto& entry : fs::directory_iterator(place)) EXPECT_NE(entry.path().extension(), ".partial");
}

TEST(PlantedCache, OtherSizesAndSeedsAreOthers) {
  const TemporaryFolder folder;
  SyntheticInteractions steeper = sizes();
  steeper.item_exponent = 1.2;
  const auto first = plant_interactions(sizes(), 3, folder.path());
  EXPECT_FALSE(at::equal(first.all.item, plant_interactions(sizes(), 4, folder.path()).all.item));
  EXPECT_FALSE(at::equal(first.all.item, plant_interactions(steeper, 3, folder.path()).all.item));
  EXPECT_EQ(caches(folder.path()).size(), 3u);
}

TEST(PlantedCache, IsRebuiltWhenDamaged) {
  const TemporaryFolder folder;
  const auto made = plant_interactions(sizes(), 3, folder.path());
  const fs::path cache = caches(folder.path())[0];
  const auto size = fs::file_size(cache);
  const auto copy = plant_interactions(sizes(), 3);
  fs::resize_file(cache, size / 2);
  expect_equal(copy, plant_interactions(sizes(), 3, folder.path()));
  EXPECT_EQ(fs::file_size(cache), size);
}

// All come at the same time: one makes them, the others wait and map.
TEST(PlantedCache, IsMadeOnce) {
  const TemporaryFolder folder;
  std::atomic<int> made{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i)
    threads.emplace_back([&] {
      const auto make = [&]() -> Columns {
        ++made;
        return {{"x", at::arange(100000)}};
      };
      const Columns columns =
          made_columns(folder.path(), "numbers", "as they are", make, [](const Columns&) { return true; });
      EXPECT_TRUE(at::equal(columns.at("x"), at::arange(100000)));
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made, 1);
}

TEST(PlantedCache, WhereNoFolderCanBeItIsMadeAnew) {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "in the way";
  expect_equal(plant_interactions(sizes(), 3), plant_interactions(sizes(), 3, folder / "file/cache"));
}

}  // namespace
}  // namespace convoy
