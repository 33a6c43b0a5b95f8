// Saves in the background: they write the state of the call, one at a time, and report a failure once.
#include <condition_variable>
#include <mutex>
#include <thread>

#include "tests/core/checkpoint/saved_state.h"

namespace convoy {
namespace {

using namespace saved_state;

constexpr int64_t any_size = int64_t{1} << 40;

// Files whose writes wait until they are released.
class HeldFiles : public FileSystem {
 public:
  void release() {
    const std::lock_guard<std::mutex> lock(mutex_);
    held_ = false;
    released_.notify_all();
  }
  std::unique_ptr<WritableFile> create(const std::string& path) override {
    std::unique_lock<std::mutex> lock(mutex_);
    EXPECT_TRUE(released_.wait_for(lock, std::chrono::seconds(20), [this] { return !held_; }));
    return system_files().create(path);
  }
  void make_folder(const std::string& path) override { system_files().make_folder(path); }
  void rename(const std::string& from, const std::string& to) override { system_files().rename(from, to); }
  void sync_folder(const std::string& path) override { system_files().sync_folder(path); }
  void remove_all(const std::string& path) override { system_files().remove_all(path); }

 private:
  std::mutex mutex_;
  std::condition_variable released_;
  bool held_ = true;
};

void expect_saved(const Context& context, const std::string& folder, int64_t step) {
  Checkpoints checkpoints(context, folder, 0);
  const auto info = checkpoints.newest();
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->step, step);
  StateOwner read = state_owner(columns, context.rank, context.size, false);
  checkpoints.load(read, *info);
  expect_restored(read);
}

TEST(BackgroundSave, WritesTheStateOfTheCall) {
  for (const int size : {1, 3}) {
    const TemporaryFolder folder;
    HeldFiles files;
    over_ranks(size, [&](const Context& context) {
      Checkpoints checkpoints(context, folder.path(), 0, files);
      StateOwner held = state_owner(rows, context.rank, context.size, true);
      checkpoints.save_in_background(held, {4, trainer_part(4)}, any_size);
      checkpoints.check_background();
      EXPECT_FALSE(std::filesystem::exists(folder / "latest"));
      for (StateEntry& entry : held.entries) entry.tensor.fill_(5);  // training continues
      if (context.rank == 0) files.release();
      checkpoints.wait_for_background();
      expect_saved(context, folder.path(), 4);
    });
  }
}

TEST(BackgroundSave, ASecondSaveWaitsForTheFirst) {
  const TemporaryFolder folder;
  const Context context = alone();
  HeldFiles files;
  Checkpoints checkpoints(context, folder.path(), 0, files);
  StateOwner held = state_owner(whole, 0, 1, true);
  checkpoints.save_in_background(held, {1, trainer_part(1)}, any_size);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_FALSE(std::filesystem::exists(folder / "step-1"));
    files.release();
  });
  checkpoints.save_in_background(held, {2, trainer_part(2)}, any_size);
  EXPECT_TRUE(std::filesystem::exists(folder / "step-1"));
  checkpoints.save(held, {3, trainer_part(3)});
  EXPECT_TRUE(std::filesystem::exists(folder / "step-2"));
  later.join();
  expect_saved(context, folder.path(), 3);
}

TEST(BackgroundSave, WritesBeforeItReturnsIfACopyIsTooLarge) {
  const TemporaryFolder folder;
  const Context context = alone();
  Checkpoints checkpoints(context, folder.path(), 0);
  StateOwner held = state_owner(whole, 0, 1, true);
  checkpoints.save_in_background(held, {1, trainer_part(1)}, 10);
  EXPECT_TRUE(std::filesystem::exists(folder / "step-1"));
  expect_saved(context, folder.path(), 1);
}

TEST(BackgroundSave, ReportsOneRanksFailureOnceToEveryRank) {
  const TemporaryFolder folder;
  std::atomic<int> reported{0};
  over_ranks(3, [&](const Context& context) {
    FailingFiles files(context.rank == 1 ? 1 : 1 << 30, ENOSPC);  // within its write
    Checkpoints checkpoints(context, folder.path(), 0, files);
    StateOwner held = state_owner(rows, context.rank, context.size, true);
    checkpoints.save_in_background(held, {1, trainer_part(1)}, any_size);
    try {
      for (int i = 0; i < 2000; ++i, std::this_thread::sleep_for(std::chrono::milliseconds(10)))
        checkpoints.check_background();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Failure::io);
      EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
      ++reported;
    }
    checkpoints.check_background();
    checkpoints.save(held, {2, trainer_part(2)});  // the next one succeeds
    expect_saved(context, folder.path(), 2);
  });
  EXPECT_EQ(reported, 3);
}

// A rank that fails in training waits briefly for a save, then abandons it. The next attempt removes its leftovers.
TEST(BackgroundSave, GetsTimeToEndAndIsThenAbandoned) {
  const TemporaryFolder ended;
  over_ranks(2, [&](const Context& context) {
    Checkpoints checkpoints(context, ended.path(), 0);
    StateOwner held = state_owner(rows, context.rank, context.size, true);
    checkpoints.save_in_background(held, {1, trainer_part(1)}, any_size);
  });
  EXPECT_TRUE(std::filesystem::exists(ended / "step-1"));
  const TemporaryFolder folder;
  const auto begin = std::chrono::steady_clock::now();
  over_ranks(2, [&](const Context& given) {
    Context context = given;
    context.config.launch.failure_grace = 0.1;
    HeldFiles files;  // only rank 1 uses them
    Checkpoints checkpoints(context, folder.path(), 0, context.rank == 1 ? files : system_files());
    StateOwner held = state_owner(rows, context.rank, context.size, true);
    checkpoints.save_in_background(held, {1, trainer_part(1)}, any_size);
    if (context.rank == 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    files.release();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << "within launch.collective";
  EXPECT_FALSE(std::filesystem::exists(folder / "step-1"));
  const Context context = alone();
  EXPECT_FALSE(Checkpoints(context, folder.path(), 0).newest().has_value());
  EXPECT_TRUE(names_in(folder.path()).empty());
}

}  // namespace
}  // namespace convoy
