// Measures real process trees, and finds pipelines above their memory limit.
#include "launch/farm/monitor/resources.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "core/files/limits.h"
#include "launch/machine/gpus.h"
#include "tests/launch/saved_topologies.h"
#include "tests/support/sanitizer.h"

namespace convoy {
namespace {

// A child that runs `task` and then waits to be killed.
class Child {
 public:
  explicit Child(const std::function<void()>& task) {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("pipe");
    pid_ = fork();
    if (pid_ == 0) {
      setpgid(0, 0);
      task();
      const char ready = 1;
      if (write(ends[1], &ready, 1) != 1) _exit(1);
      while (true) pause();
    }
    close(ends[1]);
    char ready = 0;
    const ssize_t got = read(ends[0], &ready, 1);
    EXPECT_EQ(got, 1);
    close(ends[0]);
  }
  ~Child() {
    kill(-pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

void touch_anonymous(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  std::memset(memory, 1, bytes);
}

void touch_mapped(const std::string& path, size_t bytes) {
  const int fd = open(path.c_str(), O_RDONLY);
  const auto* memory = static_cast<const volatile char*>(mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0));
  for (size_t at = 0; at < bytes; at += 4096) (void)memory[at];
}

void burn(double seconds) {
  const clock_t end = clock() + clock_t(seconds * CLOCKS_PER_SEC);
  while (clock() < end) {
  }
}

// Test machines may have little CPU time for one of the pipelines.
bool eventually(const std::function<bool()>& holds) {
  for (int i = 0; i < 1500; ++i) {
    if (holds()) return true;
    usleep(20000);
  }
  return false;
}

std::string folder_of_test() {
  const std::string folder = (std::filesystem::temp_directory_path() / str("convoy-resources-", getpid())).string();
  std::filesystem::create_directories(folder);
  return folder;
}

TEST(ProcessTrees, CountsAnonymousMemoryAndNotMappedFiles) {
  if (sanitized) GTEST_SKIP() << measures_the_sanitizer;
  const std::string folder = folder_of_test();
  std::ofstream(folder + "/data") << std::string(48 * mib, 'x');
  const Child child([&] {
    touch_anonymous(32 * mib);
    touch_mapped(folder + "/data", 48 * mib);
  });
  ProcessTrees trees;
  trees.add("a", child.pid());
  trees.refresh();
  const MemoryUse use = trees.memory("a");
  EXPECT_GE(use.anonymous, int64_t(32 * mib));
  EXPECT_LT(use.anonymous, int64_t(44 * mib));
  EXPECT_GE(use.mapped, int64_t(48 * mib));
  std::filesystem::remove_all(folder);
}

TEST(ProcessTrees, FollowsGrandchildrenAlsoWithoutTheirParent) {
  const Child child([] {
    const pid_t middle = fork();
    if (middle == 0) {
      if (fork() == 0) {
        burn(0.3);
        while (true) pause();
      }
      while (true) pause();
    }
  });
  const Child stranger([] {});
  ProcessTrees trees;
  trees.refresh();  // no process belongs to a pipeline yet
  trees.add("a", child.pid());
  ASSERT_TRUE(eventually([&] {
    trees.refresh();
    return trees.processes("a").size() == 3;
  }));
  const std::vector<pid_t> all = trees.processes("a");
  EXPECT_EQ(std::count(all.begin(), all.end(), stranger.pid()), 0);

  EXPECT_TRUE(eventually([&] {
    trees.refresh();
    return trees.cpu_seconds("a") >= 0.25;
  }));
  EXPECT_LT(trees.cpu_seconds("a"), 2);
  // The middle process ends; its child then has another parent, and is still counted.
  const pid_t middle = *std::find_if(all.begin(), all.end(), [&](pid_t pid) {
    std::ifstream stat(str("/proc/", pid, "/stat"));
    std::string line;
    std::getline(stat, line);
    return std::atoi(line.c_str() + line.rfind(')') + 4) == child.pid();
  });
  kill(middle, SIGKILL);
  const double before = trees.cpu_seconds("a");
  EXPECT_TRUE(eventually([&] {
    trees.refresh();
    return trees.processes("a").size() == 2;
  }));
  EXPECT_GE(trees.cpu_seconds("a"), before);
  trees.remove("a");
  EXPECT_TRUE(trees.processes("a").empty());
}

TEST(ProcessTrees, FindsChildrenOfOtherThreads) {
  const Child child([] {
    std::thread([] {
      if (fork() == 0)
        while (true) pause();
      while (true) pause();
    }).detach();
  });
  ProcessTrees trees;
  trees.add("a", child.pid());
  EXPECT_TRUE(eventually([&] {
    trees.refresh(true);
    return trees.processes("a").size() == 2;
  }));
  // Without `all`, one of ten calls reads all of /proc, and so finds children of other threads.
  ProcessTrees others;
  others.add("a", child.pid());
  for (int i = 0; i < 10; ++i) others.refresh();
  EXPECT_EQ(others.processes("a").size(), 2u);
}

// Checks the reports of a watch; returns the seconds between exceeding the limit and the report.
double delay_of_one_above_its_limit() {
  EventLoop loop;
  std::vector<ResourceSample> samples;
  std::string over;
  int64_t used = 0, limit = 0;
  auto* passed =
      static_cast<std::atomic<double>*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const Child small([] { touch_anonymous(8 * mib); });
  const Child large([passed] {
    if (fork() != 0) return;
    usleep(1500000);
    touch_anonymous(72 * mib);
    *passed = unix_seconds();
    touch_anonymous(24 * mib);
    while (true) pause();
  });
  double message = 0;
  ResourceWatch watch(
      loop, [&](const std::vector<ResourceSample>& all) { samples = all; },
      [&](const ResourceSample& sample, int64_t of) {
        message = unix_seconds();
        over += sample.pipeline;
        used = sample.memory;
        limit = of;
      });
  watch.add({"small", small.pid(), int64_t(64 * mib), {}});
  watch.add({"large", large.pid(), int64_t(64 * mib), {}});
  bool late = false;
  loop.after(std::chrono::seconds(30), [&] { late = true; });
  loop.run_until([&] { return !over.empty() || late; });
  EXPECT_EQ(over, "large");
  EXPECT_GT(used, limit);
  EXPECT_EQ(limit, int64_t(64 * mib));
  // The report may arrive before the child could record the time.
  EXPECT_TRUE(eventually([&] { return *passed > 0; }));
  const double delay = message - *passed;
  bool more = false;
  loop.after(std::chrono::milliseconds(1500), [&] { more = true; });
  // The watch samples less often on a slow machine: the use of all pipelines is reported later than an exceeded limit.
  loop.run_until([&] { return late || (more && samples.size() == 2 && samples[0].memory_peak >= int64_t(72 * mib)); });
  EXPECT_EQ(over, "large") << "reported once";
  EXPECT_EQ(samples.size(), 2u);
  if (samples.size() != 2) return delay;
  EXPECT_EQ(samples[0].pipeline, "large");
  EXPECT_EQ(samples[0].processes, 2);
  EXPECT_GE(samples[0].memory_peak, int64_t(72 * mib));
  EXPECT_EQ(samples[0].gpu, -1);
  const ResourceSample last = watch.remove("large");
  EXPECT_EQ(last.processes, 2);
  EXPECT_EQ(watch.remove("unheard of").processes, 0);
  return delay;
}

// A machine with other load may take a core away at any moment, but hardly in each of three attempts.
TEST(ResourceWatch, ReportsTheOneAboveItsLimitWithinASecond) {
  if (sanitized) GTEST_SKIP() << measures_the_sanitizer;
  std::vector<double> delays;
  do delays.push_back(delay_of_one_above_its_limit());
  while (delays.back() >= 1.2 && delays.size() < 3);
  EXPECT_LT(delays.back(), 1.2) << ::testing::PrintToString(delays);
}

TEST(ResourceWatch, CostsLittleForTwoHundred) {
  if (sanitized) GTEST_SKIP() << measures_the_sanitizer;
  EventLoop loop;
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < 200; ++i) children.push_back(std::make_unique<Child>([] { (void)fork(); }));
  int rounds = 0;
  ResourceWatch watch(
      loop, [&](const std::vector<ResourceSample>& all) { rounds += all.size() == 200; },
      [](const ResourceSample&, int64_t) {});
  for (size_t i = 0; i < children.size(); ++i) watch.add({str("p", i), children[i]->pid(), int64_t(4096 * mib), {}});
  bool done = false;
  loop.after(std::chrono::seconds(1), [&] { done = true; });  // new processes are sampled more often
  loop.run_until([&] { return done; });
  const double before = watch.cost();
  const auto start = std::chrono::steady_clock::now();
  bool late = false;
  done = false;
  rounds = 0;
  loop.after(std::chrono::seconds(4), [&] { done = true; });
  loop.after(std::chrono::seconds(30), [&] { late = true; });
  loop.run_until([&] { return late || (done && rounds > 0); });  // a slow machine samples less often
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_GE(rounds, 1);
  EXPECT_LT((watch.cost() - before) / seconds, 0.02) << "of a core; 0.01 where nothing else runs";
}

TEST(GpuShare, UsesWhatTheDriverReports) {
  const GpuReading own{0.9, 1000, {{10, 0.5}, {11, 0.25}}, {{10, 400}, {11, 300}}};
  const GpuShare share = share_of({own}, {10, 12}, {10, 11, 12}, false);
  EXPECT_DOUBLE_EQ(share.use, 0.5);
  EXPECT_EQ(share.memory, 400);
  EXPECT_FALSE(share.of_device);
  EXPECT_EQ(share_of({own}, {12}, {10, 11, 12}, false).memory, 0) << "it has not used its GPU yet";

  const GpuReading idle{0, 500, {}, {}};
  const GpuShare two = share_of({own, idle}, {10}, {10}, true);
  EXPECT_DOUBLE_EQ(two.use, 0.25);
  EXPECT_EQ(two.memory, 400);

  const GpuReading unsampled{0.7, 1000, {}, {{10, 400}}};
  EXPECT_DOUBLE_EQ(share_of({unsampled}, {10}, {10}, true).use, 0.7) << "all of its work is this one's";
  EXPECT_DOUBLE_EQ(share_of({unsampled}, {10}, {10, 11}, false).use, 0);

  const GpuReading foreign{0.8, 2000, {{70001, 0.8}}, {{70001, 1900}}};
  const GpuShare device = share_of({foreign}, {10}, {10}, true);
  EXPECT_TRUE(device.of_device);
  EXPECT_DOUBLE_EQ(device.use, 0.8);
  EXPECT_EQ(device.memory, 2000);

  EXPECT_EQ(share_of({}, {10}, {10}, true).use, -1);
}

class Log : public ::testing::Test {
 protected:
  void SetUp() override { folder_ = folder_of_test(); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::vector<Json> lines() const {
    std::ifstream file(folder_ + "/metrics.jsonl");
    std::vector<Json> all;
    for (std::string line; std::getline(file, line);) all.push_back(Json::parse(line, nullptr, false));
    return all;
  }
  static ResourceSample sample(const std::string& name, double time) {
    ResourceSample sample;
    sample.pipeline = name;
    sample.time = time;
    sample.cpu = 0.5;
    sample.memory = 100;
    return sample;
  }
  std::string folder_;
};

TEST_F(Log, WritesLinesAtGrowingIntervals) {
  ResourceLog log(folder_);
  for (int second = 0; second < 1800; ++second) log.write({sample("a", 1000 + second)});
  const auto all = lines();
  ASSERT_GT(all.size(), 60u);
  for (size_t i = 0; i < 60; ++i) EXPECT_EQ(all[i]["time"], 1000 + double(i));
  EXPECT_LT(all.size(), 330u);
  for (size_t i = 1; i < all.size(); ++i)
    EXPECT_LE(all[i]["time"].get<double>() - all[i - 1]["time"].get<double>(), 61);
}

TEST(ResourceSamples, IgnoreNumbersBeyondIntegers) {
  const ResourceSample read = resource_sample(Json{{"memory_bytes", 1e300}, {"gpu_memory_bytes", -1e300}});
  EXPECT_EQ(read.memory, 0);
  EXPECT_EQ(read.gpu_memory, -1);
}

TEST_F(Log, WritesTheLastSampleOfEachPipeline) {
  std::ofstream(folder_ + "/metrics.jsonl") << "{\"cut";
  std::ofstream(folder_ + "/.resources.json.77") << "left";
  {
    ResourceLog log(folder_);
    EXPECT_FALSE(std::filesystem::exists(folder_ + "/.resources.json.77"));
    log.write({sample("a", 10), sample("b", 10)});
    log.end(sample("a", 11));
    log.write({sample("b", 12)});
    std::ifstream file(folder_ + "/resources.json");
    const Json live = Json::parse(file);
    ASSERT_EQ(live.size(), 1u);
    EXPECT_EQ(resource_sample(live[0]).pipeline, "b");
    EXPECT_EQ(resource_sample(live[0]).memory, 100);
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/resources.json"));
  const auto all = lines();
  ASSERT_EQ(all.size(), 5u);
  EXPECT_TRUE(all[0].is_discarded());
  EXPECT_EQ(all[3]["time"], 11);
  EXPECT_EQ(all[3]["kind"], "resources");
}

}  // namespace
}  // namespace convoy
