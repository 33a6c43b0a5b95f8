#include "launch/farm/run/local_launcher.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "tests/support/sanitizer.h"

namespace convoy {
namespace {

using ::testing::HasSubstr;

constexpr int64_t for_files = 512 << 20;  // memory for pages of files, in addition to those in memory now

class FakeCgroups : public ::testing::Test {
 protected:
  FakeCgroups() {
    char pattern[] = "/tmp/convoy-groups-XXXXXX";
    root_ = mkdtemp(pattern);
    std::filesystem::create_directories(root_ + "/proc/self");
    std::filesystem::create_directories(root_ + "/sys/fs/cgroup/memory/own");
    std::filesystem::create_directories(root_ + "/sys/fs/cgroup/mine");
  }
  ~FakeCgroups() override { std::filesystem::remove_all(root_); }
  void listed(const std::string& lines) { std::ofstream(root_ + "/proc/self/cgroup") << lines; }
  std::string read(const std::string& path) const {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
  }

  std::string root_, why_;
};

TEST_F(FakeCgroups, VersionOneAllowsTheLimitAQuarterMoreAndFilePages) {
  listed("8:pids:/\n4:cpu,memory:/own\n0::/mine\n");
  const auto group = MemoryCgroup::make("a", 1000, why_, root_);
  ASSERT_NE(group, nullptr) << why_;
  EXPECT_THAT(group->folder(), HasSubstr("/sys/fs/cgroup/memory/own/convoy-"));
  const auto is_bounded_at = [&](int64_t bytes) {
    EXPECT_EQ(read(group->folder() + "/memory.limit_in_bytes"), std::to_string(bytes));
    EXPECT_EQ(read(group->folder() + "/memory.memsw.limit_in_bytes"), std::to_string(bytes));
    EXPECT_EQ(group->bytes(), bytes);
  };
  is_bounded_at(1250 + for_files);
  constexpr int64_t mapped = 3000000000;
  std::ofstream(group->folder() + "/memory.stat") << "cache 1\ntotal_cache " << mapped << "\ntotal_rss 7\n";
  group->follow_files();
  is_bounded_at(1250 + mapped + for_files);
  std::ofstream(group->folder() + "/memory.stat") << "cache 1\ntotal_cache 0\n";
  group->follow_files();
  is_bounded_at(1250 + for_files);
  EXPECT_FALSE(group->killed_some());
  std::ofstream(group->folder() + "/memory.oom_control") << "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n";
  EXPECT_TRUE(group->killed_some());
}

TEST_F(FakeCgroups, RemovesCgroupsOfKilledSupervisors) {
  listed("0::/mine\n");
  const std::string groups = root_ + "/sys/fs/cgroup/mine/";
  const pid_t gone = fork();
  if (gone == 0) _exit(0);
  waitpid(gone, nullptr, 0);
  const std::string left = groups + "convoy-" + std::to_string(gone) + "-a", used = left + "b",
                    living = groups + "convoy-" + std::to_string(getppid()) + "-a", foreign = groups + "other";
  for (const std::string& folder : {left, used, living, foreign}) std::filesystem::create_directory(folder);
  std::ofstream(used + "/a-process-that-is-not-gone") << 1;
  const auto group = MemoryCgroup::make("c", 1000, why_, root_);
  ASSERT_NE(group, nullptr) << why_;
  EXPECT_FALSE(std::filesystem::exists(left));
  for (const std::string& folder : {used, living, foreign}) EXPECT_TRUE(std::filesystem::exists(folder)) << folder;
}

TEST_F(FakeCgroups, VersionTwoDisablesSwap) {
  listed("0::/mine\n");
  const auto group = MemoryCgroup::make("b", 1000, why_, root_);
  ASSERT_NE(group, nullptr) << why_;
  EXPECT_EQ(read(group->folder() + "/memory.max"), std::to_string(1250 + for_files));
  std::ofstream(group->folder() + "/memory.stat") << "anon 5\nfile 1000000000\n";
  group->follow_files();
  EXPECT_EQ(read(group->folder() + "/memory.max"), std::to_string(1250 + for_files + 1000000000));
  EXPECT_EQ(read(group->folder() + "/memory.swap.max"), "0");
  ASSERT_TRUE(group->add(4711));
  EXPECT_EQ(read(group->folder() + "/cgroup.procs"), "4711");
  std::ofstream(group->folder() + "/memory.events") << "low 0\nhigh 0\nmax 7\noom 1\noom_kill 0\n";
  EXPECT_FALSE(group->killed_some());
}

TEST_F(FakeCgroups, IgnoresACgroupVisibleOnTheHostOnly) {
  listed("4:memory:/docker/0123\n");
  EXPECT_EQ(MemoryCgroup::make("c", 1000, why_, root_), nullptr);
  EXPECT_THAT(why_, HasSubstr("no memory cgroup"));
}

// Starts its work when it is in its cgroup.
class HeldChild {
 public:
  explicit HeldChild(const std::function<void()>& work) {
    EXPECT_EQ(pipe(go_), 0);
    pid_ = fork();
    if (pid_ != 0) return;
    char byte;
    if (read(go_[0], &byte, 1) != 1) _exit(2);
    work();
    _exit(0);
  }
  ~HeldChild() {
    close(go_[0]);
    close(go_[1]);
  }
  HeldChild(const HeldChild&) = delete;
  HeldChild& operator=(const HeldChild&) = delete;
  pid_t pid() const { return pid_; }
  void let_go() const { EXPECT_EQ(write(go_[1], "x", 1), 1); }

 private:
  int go_[2] = {-1, -1};
  pid_t pid_ = -1;
};

TEST(MemoryCgroup, TheKernelKillsAtTheBound) {
  constexpr size_t much = 768u << 20;
  std::string why;
  auto group = MemoryCgroup::make("test", 32 << 20, why);
  if (!group) GTEST_SKIP() << why;
  const HeldChild child([] {
    void* memory = mmap(nullptr, much, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) _exit(3);
    std::memset(memory, 1, much);
  });
  ASSERT_TRUE(group->add(child.pid()));
  child.let_go();
  int status = 0;
  ASSERT_EQ(waitpid(child.pid(), &status, 0), child.pid());
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  EXPECT_TRUE(group->killed_some());
  const std::string folder = group->folder();
  group.reset();
  EXPECT_FALSE(std::filesystem::exists(folder));
}

// A pipeline would be extremely slow if the pages of its file were evicted and read again and again.
TEST(MemoryCgroup, KeepsAFileLargerThanTheLimit) {
  if (sanitized) GTEST_SKIP() << measures_the_sanitizer;
  constexpr int64_t much = 704 << 20;
  std::string why;
  auto group = MemoryCgroup::make("files", 32 << 20, why);
  if (!group) GTEST_SKIP() << why;
  char path[] = "/tmp/convoy-file-XXXXXX";
  const int file = mkstemp(path);
  ASSERT_GE(file, 0);
  unlink(path);
  ASSERT_EQ(ftruncate(file, much), 0);
  ASSERT_EQ(posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED), 0);
  const HeldChild child([file] {
    const auto* rows = static_cast<const volatile char*>(mmap(nullptr, much, PROT_READ, MAP_SHARED, file, 0));
    if (rows == MAP_FAILED) _exit(3);
    for (;;)
      for (int64_t i = 0; i < much; i += 4096) (void)rows[i];
  });
  ASSERT_TRUE(group->add(child.pid()));
  child.let_go();
  const auto held = [&] {
    std::ifstream stat(group->folder() + "/memory.stat");
    std::string key;
    for (int64_t bytes = 0; stat >> key >> bytes;)
      if (key == "total_cache" || key == "file") return bytes;
    return int64_t{0};
  };
  const auto started = std::chrono::steady_clock::now();
  while (held() < much && std::chrono::steady_clock::now() - started < std::chrono::seconds(20)) {
    usleep(static_cast<useconds_t>(MemoryCgroup::follow_files_every * 1e6));
    group->follow_files();
  }
  EXPECT_GE(held(), much);
  int status = 0;
  EXPECT_EQ(waitpid(child.pid(), &status, WNOHANG), 0) << "it has ended: " << status;
  kill(child.pid(), SIGKILL);
  waitpid(child.pid(), &status, 0);
  close(file);
  EXPECT_FALSE(group->killed_some());
}

}  // namespace
}  // namespace convoy
