// Visible GPUs, cgroup limits, leftovers, lines, progress text, exit codes, topology as JSON.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/control/exit_codes.h"
#include "core/files/limits.h"
#include "launch/job/console.h"
#include "launch/job/rendezvous.h"
#include "launch/machine/gpus.h"
#include "launch/machine/host_lists.h"
#include "launch/machine/topology.h"
#include "launch/prepare/run_folder.h"
#include "launch/process/event_loop.h"
#include "launch/process/orphan_guard.h"
#include "tests/support/sanitizer.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

std::vector<std::string> uuids(const char* visible) {
  std::vector<Gpu> gpus;
  for (int i = 0; i < 4; ++i) gpus.push_back({i, str("GPU-", i, i), "", 0, 0});
  std::vector<std::string> names;
  for (const Gpu& gpu : visible_gpus(gpus, visible)) {
    EXPECT_EQ(gpu.index, static_cast<int>(names.size()));
    names.push_back(gpu.uuid);
  }
  return names;
}

TEST(Mps, FindsTheDaemonAndReportsSharedGpus) {
  const fs::path folder = fs::temp_directory_path() / str("convoy-mps-", getpid());
  fs::create_directory(folder);
  const std::string daemon = folder / "nvidia-cuda-mps-control.pid";
  EXPECT_EQ(mps_folder({}, folder), "");
  std::ofstream(daemon) << getpid() << "\n";
  EXPECT_EQ(mps_folder({}, folder), folder.string());
  std::ofstream(daemon) << 999999999 << "\n";  // larger than any process id
  EXPECT_EQ(mps_folder({}, folder), "");
  const Variables named{{"CUDA_MPS_PIPE_DIRECTORY", folder}};
  EXPECT_EQ(mps_folder(named), folder.string()) << "the variable of a container names it";

  Topology topology;
  topology.hosts.push_back({"here", {}, {}, 0});
  topology.hosts.push_back({"there", {}, {}, 0});
  JobPlan job;
  for (int rank = 0; rank < 5; ++rank) {
    RankPlan plan;
    plan.rank = plan.process = rank;
    plan.host = rank / 3;
    plan.devices.push_back({DevicePlan::Kind::gpu, 0, {}});
    job.ranks.push_back(plan);
  }
  const std::vector<std::string> notes = shared_gpu_notes(job, topology, "here", named);
  fs::remove_all(folder);
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_EQ(notes[0],
            str("GPU 0 of here is shared by ranks 0-2: at the same time, through the MPS daemon of ", folder.string()));
  EXPECT_EQ(notes[1].rfind("GPU 0 of there is shared by ranks 3-4: they are time-sliced", 0), 0u) << notes[1];
  job.ranks.resize(1);
  EXPECT_TRUE(shared_gpu_notes(job, topology, "here", named).empty());
}

TEST(VisibleGpus, AreReadLikeCuda) {
  EXPECT_EQ(uuids(nullptr).size(), 4u);
  EXPECT_THAT(uuids("2,0"), ElementsAre("GPU-22", "GPU-00"));
  EXPECT_THAT(uuids("GPU-3"), ElementsAre("GPU-33"));
  EXPECT_THAT(uuids("1,-1,2"), ElementsAre("GPU-11"));
  EXPECT_TRUE(uuids("").empty());
}

class LimitsTest : public ::testing::Test {
 protected:
  LimitsTest() : root_(fs::temp_directory_path() / str("convoy-limits-", getpid())) {}
  ~LimitsTest() override { fs::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  fs::path root_;
};

TEST_F(LimitsTest, Version2UsesTheTightestAncestor) {
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  write("sys/fs/cgroup/a/b/memory.max", "1000\n");
  write("sys/fs/cgroup/a/memory.max", "2000\n");
  const Limits limits = cgroup_limits(root_);
  EXPECT_DOUBLE_EQ(limits.cores.value(), 1.5);
  EXPECT_EQ(limits.memory.value(), 1000);
}

TEST_F(LimitsTest, AvailableMemoryIsWithinTheLimit) {
  EXPECT_FALSE(memory_left(root_).has_value());
  write("proc/meminfo", "MemTotal:        2000 kB\nMemFree:  1 kB\nMemAvailable:    1000 kB\n");
  EXPECT_EQ(memory_left(root_), 1000 * 1024);
  write("proc/self/cgroup", "0::/a\n");
  write("sys/fs/cgroup/a/memory.max", "900\n");
  EXPECT_EQ(memory_left(root_), 900);
  write("sys/fs/cgroup/a/memory.stat", "anon 200\nfile 600\nshmem 100\n");
  EXPECT_EQ(memory_left(root_), 600);
  EXPECT_EQ(cgroup_limits(root_).memory, 900);
}

TEST_F(LimitsTest, Version1) {
  write("proc/self/cgroup", "4:memory:/j\n2:cpu,cpuacct:/j\n");
  write("sys/fs/cgroup/cpu/j/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu/j/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/memory/j/memory.limit_in_bytes", "4096\n");
  const Limits limits = cgroup_limits(root_);
  EXPECT_FALSE(limits.cores.has_value());
  EXPECT_EQ(limits.memory.value(), 4096);
}

TEST_F(LimitsTest, ReadsThreadsAndKillsOfTheGroup) {
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/pids.max", "120\n");
  write("sys/fs/cgroup/a/b/pids.max", "max\n");
  write("sys/fs/cgroup/a/memory.events", "oom 9\noom_kill 9\n");
  EXPECT_EQ(memory_kills(root_), 9) << "the nearest that counts";
  write("sys/fs/cgroup/a/b/memory.events", "low 0\noom 1\noom_kill 2\n");
  EXPECT_EQ(cgroup_limits(root_).threads, 120);
  EXPECT_EQ(memory_kills(root_), 2) << "an ancestor counts others too";
  EXPECT_NE(no_thread_text(root_).find("pids.max of the cgroup is 120"), std::string::npos) << no_thread_text(root_);
}

// The kernel reports a failed allocation of a thread's stack by EAGAIN, like too many threads.
TEST_F(LimitsTest, DoesNotBlameThreadsForAMemoryLimit) {
  if (sanitized) GTEST_SKIP() << measures_the_sanitizer;
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit before{};
  getrlimit(RLIMIT_AS, &before);
  const rlimit little{static_cast<rlim_t>(pages * getpagesize() + (1 << 20)), before.rlim_max};
  setrlimit(RLIMIT_AS, &little);
  const std::string text = no_thread_text(root_);
  setrlimit(RLIMIT_AS, &before);
  EXPECT_EQ(text.find("RLIMIT_NPROC"), std::string::npos) << text;
  EXPECT_NE(text.find("RLIMIT_AS (`ulimit -v`) is "), std::string::npos) << text;
  EXPECT_EQ(no_thread_text(root_).find("RLIMIT_AS (`ulimit -v`) is "), std::string::npos) << "without the limit";
}

TEST(Descriptors, NameTheirLimitWhenExhausted) {
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{3, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  std::string text;
  Failure kind = Failure::internal;
  try {
    FolderLock lock(fs::temp_directory_path());
  } catch (const Error& error) {
    text = error.what();
    kind = error.kind();
  }
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(kind, Failure::io) << text;
  EXPECT_NE(text.find("Too many open files"), std::string::npos) << text;
  EXPECT_NE(text.find("(`ulimit -n`) is 3 "), std::string::npos) << text;
}

TEST_F(LimitsTest, CountsKillsOfVersion1) {
  EXPECT_EQ(memory_kills(root_), -1);
  write("proc/self/cgroup", "4:memory:/j\n3:pids:/j\n");
  write("sys/fs/cgroup/memory/j/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
  write("sys/fs/cgroup/memory/j/memory.limit_in_bytes", "1048576\n");
  write("sys/fs/cgroup/pids/j/pids.max", "7\n");
  EXPECT_EQ(memory_kills(root_), 3);
  EXPECT_EQ(cgroup_limits(root_).threads, 7);
  EXPECT_NE(no_memory_text(root_).find("memory of the cgroup is 1 MiB"), std::string::npos) << no_memory_text(root_);
}

TEST(RankLogs, ReportAnUnwritableLogOnce) {
  const fs::path folder = fs::temp_directory_path() / str("convoy-logs-", getpid());
  fs::create_directory(folder);
  std::vector<std::string> said;
  const auto before = signal(SIGXFSZ, SIG_IGN);
  rlimit whole{};
  getrlimit(RLIMIT_FSIZE, &whole);
  const rlimit little{100, whole.rlim_max};
  setrlimit(RLIMIT_FSIZE, &little);
  {
    RankLogs logs(folder, RankLogs::usual_limit, [&said](const std::string& text) { said.push_back(text); });
    for (int i = 0; i < 5; ++i) logs.write(0, std::string(60, 'x'));
  }
  setrlimit(RLIMIT_FSIZE, &whole);
  signal(SIGXFSZ, before);
  fs::remove_all(folder);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find("rank0.log: cannot be written: File too large"), std::string::npos) << said[0];
}

TEST_F(LimitsTest, HasNoLimitsWithoutGroups) {
  const Limits limits = cgroup_limits(root_);
  EXPECT_FALSE(limits.cores || limits.memory);
}

TEST(Leftovers, RemovesOnlyUnusedLeftovers) {
  const fs::path root = fs::temp_directory_path() / str("convoy-sweep-", getpid());
  const fs::path sessions = root / str("ompi.", host_name(), ".", geteuid());
  const std::string segment = str("vader_segment.", host_name(), ".0.1.");
  const pid_t gone = 4194304 + 1;  // beyond any pid
  fs::create_directories(sessions / str("pid.", gone) / "0");
  fs::create_directories(sessions / str("pid.", getpid()));
  std::ofstream(root / (segment + "0")) << "x";
  std::ofstream(root / "vader_segment.elsewhere.0.1.0") << "x";
  LeftoverPaths places{root, root, 60};
  EXPECT_EQ(remove_leftover_open_mpi(places), 0);  // too young
  places.oldest_seconds = 5;
  for (const fs::path& old : {sessions / str("pid.", gone), root / (segment + "0")})
    fs::last_write_time(old, fs::file_time_type::clock::now() - std::chrono::seconds(10));
  EXPECT_EQ(remove_leftover_open_mpi(places), 2);
  EXPECT_FALSE(fs::exists(sessions / str("pid.", gone)));
  EXPECT_TRUE(fs::exists(sessions / str("pid.", getpid())));
  EXPECT_FALSE(fs::exists(root / (segment + "0")));
  EXPECT_TRUE(fs::exists(root / "vader_segment.elsewhere.0.1.0"));
  fs::remove_all(root);
}

TEST(Leftovers, RemovesTheSessionOfADeadMpirun) {
  const fs::path root = fs::temp_directory_path() / str("convoy-sweep-session-", getpid());
  const fs::path sessions = root / str("ompi.", host_name(), ".", geteuid());
  const pid_t gone = 4194304 + 1;  // beyond any pid
  LeftoverPaths places;
  places.temporary = root;
  for (const pid_t pid : {gone, getpid()}) fs::create_directories(sessions / str("pid.", pid) / "0");
  remove_leftover_session(gone, places);
  remove_leftover_session(getpid(), places);
  EXPECT_FALSE(fs::exists(sessions / str("pid.", gone)));
  EXPECT_TRUE(fs::exists(sessions / str("pid.", getpid()))) << "it runs";
  fs::remove_all(sessions / str("pid.", getpid()));
  fs::create_directories(sessions / str("pid.", gone));
  remove_leftover_session(gone, places);
  EXPECT_FALSE(fs::exists(sessions)) << "no process uses it any more";
  fs::remove_all(root);
}

TEST(Leftovers, RemovesTheSegmentOfADeadRank) {
  const fs::path root = fs::temp_directory_path() / str("convoy-sweep-own-", getpid());
  fs::create_directories(root);
  const std::string segment = str("vader_segment.", host_name(), ".", geteuid(), ".1ada0001.");
  for (const char* rank : {"0", "1"}) std::ofstream(root / (segment + rank)) << "x";
  LeftoverPaths places;
  places.shared_memory = root;
  remove_leftover_segment({{"OMPI_COMM_WORLD_LOCAL_RANK", "1"}}, places);  // the job is unknown: nothing is guessed
  EXPECT_TRUE(fs::exists(root / (segment + "1")));
  remove_leftover_segment({{"OMPI_MCA_ess_base_jobid", "450494465"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}}, places);
  EXPECT_FALSE(fs::exists(root / (segment + "1")));
  EXPECT_TRUE(fs::exists(root / (segment + "0")));
  fs::remove_all(root);
}

TEST(Lines, AreSplitAndBounded) {
  LineSplitter cutter;
  std::vector<std::string> lines;
  const LineSplitter::Sink sink = [&](const std::string& line) { lines.push_back(line); };
  const std::string text = "a\r\nb\n\nbar 1\rbar 2\rend";
  for (char c : text) cutter.add(&c, 1, sink);  // cuts may fall anywhere
  cutter.finish(sink);
  EXPECT_THAT(lines, ElementsAre("a", "b", "", "bar 1", "bar 2", "end"));
  lines.clear();
  const std::string endless(200 << 10, 'x');
  cutter.add(endless.data(), endless.size(), sink);
  EXPECT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].size(), 64u << 10);
}

TEST(StopRequests, IgnoreARepeatedFirstRequest) {
  StopRequests requests;
  const auto start = StopRequests::Clock::now();
  using std::chrono::milliseconds;
  EXPECT_EQ(requests.received(start, SIGTERM), StopRequests::Kind::first);
  EXPECT_EQ(requests.received(start + std::chrono::microseconds(5), SIGTERM), StopRequests::Kind::echo);
  EXPECT_EQ(requests.received(start + milliseconds(499), SIGINT), StopRequests::Kind::echo);
  EXPECT_EQ(requests.received(start + milliseconds(500), SIGINT), StopRequests::Kind::again);
  for (const int number : {SIGXCPU, SIGHUP, SIGUSR1, SIGALRM})
    EXPECT_EQ(requests.received(start + milliseconds(5000), number), StopRequests::Kind::echo) << number;
  EXPECT_EQ(requests.received(start + std::chrono::microseconds(5), SIGQUIT), StopRequests::Kind::again);
}

TEST(Progress, FitsOnOneLine) {
  const Json record = {{"epoch", 3},
                       {"epochs", 20},
                       {"step", 1200},
                       {"steps", 8640},
                       {"loss", 0.22131},
                       {"samples_per_second", 105300.0},
                       {"metrics", Json::object()},
                       {"remaining_seconds", 3723.2}};
  EXPECT_EQ(progress_line(record), "epoch 3/20, step 1200/8640, 105.3k/s, loss 0.2213, 1:02:03 left");
  EXPECT_EQ(metrics_line({{"epoch", 1}, {"step", 5}, {"metrics", {{"hr@10", 0.612}, {"loss", "nan"}}}}),
            "epoch 1, step 5: hr@10 0.612, loss nan");
}

TEST(DataAddress, StaysOnTheHostWithTheControlChannel) {
  EXPECT_EQ(data_address("", "127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(data_address("", "::1"), "::1");
  // Several hosts: this host's address in that direction, if there is a route. A configured address may belong to
  // another host.
  const std::string address = data_address("", "10.1.2.3");
  EXPECT_TRUE(address.empty() || !local_address_of(address).empty()) << address;
  EXPECT_EQ(data_address("10.1.2.9", "10.1.2.3"), address);
}

TEST(ExitCodes, AreDistinctForFailuresAndSignals) {
  EXPECT_EQ(exit_code_of(Failure::config), 78);
  EXPECT_EQ(exit_code_of(Abort{Failure::training, 0, 0, 9, "", ""}), 137);
  EXPECT_EQ(exit_code_of(Abort{Failure::stopped, 0, 0, 0, "", ""}), 143);
  EXPECT_EQ(failure_of_exit(110), Failure::hang);
  EXPECT_EQ(failure_of_exit(3), Failure::training);
}

TEST(TopologyTest, ReadsThisHost) {
  const Host host = this_host({false});
  ASSERT_FALSE(host.cores.empty());
  EXPECT_FALSE(host.name.empty());
  EXPECT_GT(host.memory, 0);
  for (const Core& core : host.cores) EXPECT_EQ(core.siblings.at(0), core.id);
  const Host copy = Json(host).get<Host>();
  EXPECT_EQ(Json(copy), Json(host));
}

}  // namespace
}  // namespace convoy
