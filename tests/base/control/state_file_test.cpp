// A rank's position can be read after its death, and while the rank writes.
#include "core/rank_state/state_file.h"
#include "core/rank_state/position.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "core/base/error.h"
#include "core/files/limits.h"

namespace convoy {
namespace {

using ::testing::HasSubstr;

class StateFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "convoy-state-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    path_ = folder_ + "/rank0.state";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
  std::string path_;
};

TEST_F(StateFileTest, TruncatesALongFailureBetweenCharacters) {
  StateFile file(path_);
  std::string text(4094, 'x');
  text += "é and more";  // its second byte would be the 4096th
  file.failure(text.c_str());
  EXPECT_EQ(read_state_file(path_)->failure, std::string(4094, 'x'));
  file.failure((std::string(4095, 'x')).c_str());
  EXPECT_EQ(read_state_file(path_)->failure.size(), 4095u);
}

TEST_F(StateFileTest, ReadsBackItsContent) {
  EXPECT_FALSE(read_state_file(path_));
  StateFile file(path_);
  auto position = read_state_file(path_);
  ASSERT_TRUE(position);
  EXPECT_EQ(position->phase, "");
  EXPECT_EQ(position->step, -1);
  EXPECT_EQ(position->failure, "");
  for (int64_t step = 0; step < 100; ++step) {
    file.phase(step % 2 == 0 ? "training" : "evaluating");
    file.step(step);
    file.collective(step % 2 == 0 ? "bucket 2" : "");
    position = read_state_file(path_);
    ASSERT_TRUE(position);
    EXPECT_EQ(position->phase, step % 2 == 0 ? "training" : "evaluating");
    EXPECT_EQ(position->step, step);
    EXPECT_EQ(position->collective, step % 2 == 0 ? "bucket 2" : "");
  }
  EXPECT_NEAR(position->seconds, unix_seconds(), 60);
  file.failure(R"({"kind": "training"})");
  EXPECT_EQ(read_state_file(path_)->failure, R"({"kind": "training"})");
}

TEST_F(StateFileTest, KeepsTheLastCollectivesOfEachGroup) {
  StateFile file(path_);
  EXPECT_TRUE(read_collective_records(path_).empty());
  CollectiveRecords notes(path_);
  const int world = notes.add_group("world"), half = notes.add_group("world/0.1");
  notes.add_group("never called");
  const int64_t shape[] = {2, 3, 4, 5, 6};
  for (int64_t number = 1; number <= 20; ++number)
    notes.called(world,
                 {number, static_cast<uint64_t>(number * 10), "all_reduce", "bucket 2", "float32", shape, 2, "sum"});
  notes.called(half, {1, 7, "barrier", "", "", nullptr, -1, ""});
  auto calls = read_collective_records(path_);
  ASSERT_EQ(calls.size(), 9u);
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(calls[static_cast<size_t>(i)].group, "world");
    EXPECT_EQ(calls[static_cast<size_t>(i)].number, 13 + i);
    EXPECT_EQ(calls[static_cast<size_t>(i)].hash, static_cast<uint64_t>(130 + 10 * i));
    EXPECT_EQ(calls[static_cast<size_t>(i)].call, "all_reduce 'bucket 2' float32[2,3] sum");
  }
  EXPECT_EQ(calls[8].group, "world/0.1");
  EXPECT_EQ(calls[8].call, "barrier");
  notes.called(half, {2, 8, "broadcast", std::string(100, 'n').c_str(), "int64", shape, 5, "root 3"});
  file.phase("optimizer");
  EXPECT_EQ(notes.position().phase, "optimizer");
  EXPECT_EQ(notes.calls().back().call, "broadcast '" + std::string(47, 'n') + "' int64[2,3,4,5,…] root 3");
  EXPECT_GT(state_file_cpu_seconds(calls, 100), 0);
  EXPECT_LT(state_file_cpu_seconds(calls, 100), 0.1);
}

TEST_F(StateFileTest, LeavesOutGroupsBeyondItsCapacity) {
  StateFile file(path_);
  CollectiveRecords notes(path_);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(notes.add_group("group"), i);
  const int none = notes.add_group("one too many");
  EXPECT_EQ(none, -1);
  notes.called(none, {1, 1, "barrier", "", "", nullptr, -1, ""});
  EXPECT_TRUE(read_collective_records(path_).empty());
}

TEST_F(StateFileTest, TruncatesLongTexts) {
  StateFile file(path_);
  for (size_t length = 0; length < 200; ++length) {
    const std::string name(length, 'x');
    file.collective(name.c_str());
    EXPECT_EQ(read_state_file(path_)->collective, name.substr(0, 127));
  }
  file.failure(std::string(10000, 'y').c_str());
  EXPECT_EQ(read_state_file(path_)->failure, std::string(4095, 'y'));
  file.failure("short");
  EXPECT_EQ(read_state_file(path_)->failure, "short");
}

TEST_F(StateFileTest, ReadersNeverSeeAPartialUpdate) {
  StateFile file(path_);
  const std::string a(120, 'a'), b(60, 'b');
  std::atomic<bool> end{false};
  std::vector<std::thread> writers;
  for (const auto& text : {a, b}) {
    writers.emplace_back([&file, &end, text] {
      while (!end) {
        file.collective(text.c_str());
        std::this_thread::yield();
      }
    });
  }
  file.collective(a.c_str());
  for (int i = 0; i < 5000; ++i) {
    const auto position = read_state_file(path_);
    ASSERT_TRUE(position);
    ASSERT_TRUE(position->collective == a || position->collective == b) << position->collective;
  }
  end = true;
  for (auto& writer : writers) writer.join();
}

StateFile* in_handler = nullptr;  // a signal handler can reach only a global

TEST_F(StateFileTest, IsWrittenByASignalHandler) {
  const pid_t child = fork();
  if (child == 0) {
    StateFile file(path_);
    in_handler = &file;
    signal(SIGSEGV, [](int) {
      in_handler->failure("from the handler");
      kill(getpid(), SIGKILL);
    });
    file.phase("training");
    file.step(17);
    file.collective("bucket 2");
    raise(SIGSEGV);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  const auto position = read_state_file(path_);
  ASSERT_TRUE(position);
  EXPECT_EQ(position->phase, "training");
  EXPECT_EQ(position->step, 17);
  EXPECT_EQ(position->collective, "bucket 2");
  EXPECT_EQ(position->failure, "from the handler");
}

TEST_F(StateFileTest, KeepsReadersOfTheOldFileValid) {
  StateFile first(path_);
  first.step(5);
  StateFile second(path_);
  first.step(6);  // writes to the old file, which has no name any more
  EXPECT_EQ(read_state_file(path_)->step, -1);
}

TEST_F(StateFileTest, RefusesOtherFiles) {
  std::ofstream(path_) << "not a state file";
  EXPECT_FALSE(read_state_file(path_));
  { StateFile file(path_); }
  std::fstream(path_, std::ios::in | std::ios::out | std::ios::binary) << "X";
  EXPECT_FALSE(read_state_file(path_));
  std::filesystem::resize_file(path_, 100);
  EXPECT_FALSE(read_state_file(path_));
  try {
    StateFile file(folder_ + "/none/rank0.state");
    FAIL() << "created in a folder that is not there";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Failure::io);
    EXPECT_THAT(error.what(), HasSubstr("/none/rank0.state"));
  }
}

}  // namespace
}  // namespace convoy
