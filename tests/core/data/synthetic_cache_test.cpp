// Synthetic interactions: stored in a folder, and mapped from there by later processes.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/data/readers/column_cache.h"
#include "core/data/sets/synthetic.h"
#include "core/files/files.h"
#include "tests/support/temporary_folder.h"

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

TEST(PlantedCache, EqualsTheGeneratedData) {
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

TEST(PlantedCache, DependsOnSizeAndSeed) {
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

// The cache cannot be opened, and the error is not that of a missing file. Another user's folder gives such
// an error too.
TEST(PlantedCache, IsSkippedWithoutAFolder) {
  const TemporaryFolder folder;
  const std::string loop = folder / "loop";
  fs::create_symlink(loop, loop);
  expect_equal(plant_interactions(sizes(), 3), plant_interactions(sizes(), 3, loop + "/deeper"));
}

// All start at the same time: one generates the data, the others wait and map it.
TEST(PlantedCache, IsGeneratedOnce) {
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

TEST(PlantedCache, IsRegeneratedIfNoFolderCanBeCreated) {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "in the way";
  expect_equal(plant_interactions(sizes(), 3), plant_interactions(sizes(), 3, folder / "file/cache"));
}

std::vector<std::string> partial_names(const std::string& folder) {
  std::vector<std::string> found;
  for (const std::string& name : names_in(folder))
    if (name.find(".partial") != std::string::npos) found.push_back(name);
  return found;
}

TEST(PlantedCache, RemovesOnlyLeftoversOfDeadWriters) {
  const TemporaryFolder folder, victim;
  const auto made = plant_interactions(sizes(), 3, folder.path());
  const fs::path cache = caches(folder.path())[0];
  const std::string name = cache.filename().string();
  fs::remove(cache);
  const std::string dead = str(".", name, ".partial.dead"), living = str(".", name, ".partial.living");
  for (const std::string& writer : {dead, living, name + ".partial"}) {
    fs::create_directory(folder / writer);
    std::ofstream(folder / writer + "/columns") << "half";
  }
  std::ofstream(victim / "columns") << "precious";
  fs::create_directory_symlink(victim.path(), folder / str(".", name, ".partial.link"));
  const Descriptor writes(open((folder / living).c_str(), O_RDONLY | O_DIRECTORY));
  ASSERT_EQ(flock(writes.get(), LOCK_EX), 0);
  expect_equal(made, plant_interactions(sizes(), 3, folder.path()));
  EXPECT_TRUE(fs::exists(cache));
  EXPECT_THAT(partial_names(folder.path()), ::testing::ElementsAre(living));
  EXPECT_EQ(fs::file_size(folder / living + "/columns"), 4u);
  EXPECT_EQ(fs::file_size(victim / "columns"), 8u);
}

TEST(PlantedCache, DoesNotBlockOnAFifoAsLockFile) {
  const TemporaryFolder folder;
  const auto made = plant_interactions(sizes(), 3, folder.path());
  const fs::path cache = caches(folder.path())[0];
  fs::remove(cache);
  fs::remove(cache.string() + ".lock");
  ASSERT_EQ(mkfifo((cache.string() + ".lock").c_str(), 0600), 0);
  expect_equal(made, plant_interactions(sizes(), 3, folder.path()));
  EXPECT_FALSE(fs::exists(cache));
}

// A process with the given name that holds the lock of `path` until this object ends.
class LockOwner {
 public:
  LockOwner(const std::string& path, const char* name) {
    int ready[2];
    if (pipe(ready) != 0) throw std::runtime_error("pipe");
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      prctl(PR_SET_NAME, name);
      const bool locked = flock(open(path.c_str(), O_RDONLY), LOCK_EX) == 0;
      if (write(ready[1], &locked, 1) != 1) _exit(1);
      while (true) pause();
    }
    bool locked = false;
    EXPECT_EQ(read(ready[0], &locked, 1), 1);
    EXPECT_TRUE(locked);
    close(ready[0]);
    close(ready[1]);
  }
  ~LockOwner() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  LockOwner(const LockOwner&) = delete;
  LockOwner& operator=(const LockOwner&) = delete;
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

TEST(PlantedCache, LimitsTheWaitForAnotherRank) {
  const TemporaryFolder folder;
  const auto made = plant_interactions(sizes(), 3, folder.path());
  const fs::path cache = caches(folder.path())[0];
  const std::string lock = cache.string() + ".lock";
  {
    const LockOwner stranger(lock, "backup");
    EXPECT_FALSE(locked_by_rank(lock));
  }
  EXPECT_FALSE(locked_by_rank(lock));
  fs::remove(cache);
  const LockOwner rank(lock, "convoy-rank");
  EXPECT_TRUE(locked_by_rank(lock));
  const CacheLockLimit limit(5.5);  // a program that is no rank gets 5 s
  ::testing::internal::CaptureStderr();
  expect_equal(made, plant_interactions(sizes(), 3, folder.path()));
  const std::string log = ::testing::internal::GetCapturedStderr();
  for (const std::string& words : {lock, str("convoy-rank (process ", rank.pid(), ")"), str("waiting for 5.50 s")})
    EXPECT_THAT(log, ::testing::HasSubstr(words));
}

}  // namespace
}  // namespace convoy
