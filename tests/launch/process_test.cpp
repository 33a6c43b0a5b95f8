#include "launch/process/process.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch/job/agent.h"
#include "launch/process/event_loop.h"
#include "launch/process/orphan_guard.h"

namespace convoy {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;

// One program, observed until its end.
struct Watched {
  std::vector<std::string> lines;
  std::optional<ProcessEnd> end;
};

class ProcessTest : public ::testing::Test {
 protected:
  void start(std::vector<std::string> argv, Variables environment = current_variables(), std::vector<int> cores = {}) {
    ProcessStart start;
    start.argv = std::move(argv);
    start.environment = std::move(environment);
    start.cores = std::move(cores);
    agent_.start(0, start);
  }
  void shell(const std::string& script) { start({"sh", "-c", script}); }
  void finish() {
    loop_.run_until([this] { return agent_.idle(); });
  }

  Watched seen_;
  EventLoop loop_;
  Agent agent_{loop_,
               {[this](int, const std::string& line) { seen_.lines.push_back(line); },
                [this](int, const ProcessEnd& end) { seen_.end = end; }}};
};

TEST_F(ProcessTest, LinesAndCode) {
  shell("echo one; echo two; printf three; exit 7");
  finish();
  EXPECT_THAT(seen_.lines, ElementsAre("one", "two", "three"));
  EXPECT_EQ(seen_.end->code, 7);
  EXPECT_EQ(seen_.end->exit_code(), 7);
}

TEST_F(ProcessTest, Signal) {
  shell("kill -KILL $$");
  finish();
  EXPECT_EQ(seen_.end->signal, SIGKILL);
  EXPECT_EQ(seen_.end->exit_code(), 137);
}

// The agent reads `kills` as the kernel's count of processes that it killed for lack of memory.
TEST(Agent, BlamesMemoryOnlyForARecentKill) {
  EventLoop loop;
  int64_t kills = 7;
  std::vector<std::string> lacks;
  Agent agent(
      loop, {[](int, const std::string&) {}, [&lacks](int, const ProcessEnd& end) { lacks.push_back(end.lack); }},
      [&kills] { return kills; }, milliseconds(1000));
  const auto kill_one = [&] {
    ProcessStart start;
    start.argv = {"sh", "-c", "kill -KILL $$"};
    start.environment = current_variables();
    agent.start(0, start);
    loop.run_until([&agent] { return agent.idle(); });
  };
  kill_one();
  kills = 8;  // the kernel has just killed it
  kill_one();
  bool later = false;
  loop.after(milliseconds(2300), [&later] { later = true; });
  loop.run_until([&later] { return later; });
  kill_one();
  ASSERT_EQ(lacks.size(), 3u);
  EXPECT_EQ(lacks[0], "");
  EXPECT_THAT(lacks[1], ::testing::HasSubstr("the kernel killed it"));
  EXPECT_EQ(lacks[2], "") << "that kill was of another process, long ago";
}

TEST(Lack, OfThreadsIsReportedOnlyAfterAFailedStart) {
  const auto lack = [](const std::string& line) {
    ProcessEnd end;
    end.signal = SIGABRT;
    return lack_of(end, "before\n" + line + "\nafter\n", false);
  };
  for (const char* line :
       {"libgomp: Thread creation failed: Resource temporarily unavailable",
        "  what():  Resource temporarily unavailable", "sh: 1: Cannot fork: Resource temporarily unavailable",
        "pthread_create failed for thread 3 of 4: Resource temporarily unavailable"})
    EXPECT_THAT(lack(line), ::testing::HasSubstr("no more threads or processes")) << line;
  for (const char* line :
       {"recv: Resource temporarily unavailable", "  what():  read: Resource temporarily unavailable",
        "cannot lock data.csv: Resource temporarily unavailable"})
    EXPECT_EQ(lack(line), "") << line;
  for (const char* line : {"  what():  std::bad_alloc", "mmap: Cannot allocate memory",
                           "Fatal glibc error: failed to register TLS destructor: out of memory"})
    EXPECT_THAT(lack(line), ::testing::HasSubstr("out of memory")) << line;
}

TEST(Lack, IsTakenFromTheReportBeforeTheExitCode) {
  ProcessEnd end;
  end.code = 71;
  EXPECT_EQ(lack_of(end, "before\nconvoy-rank: out of memory on the host (RLIMIT_AS is 1 MiB)\n", false),
            "out of memory on the host (RLIMIT_AS is 1 MiB)");
  EXPECT_THAT(lack_of(end, "nothing\n", false), testing::HasSubstr("out of memory on the host ("));
}

TEST_F(ProcessTest, HasExactlyTheGivenEnvironment) {
  start({"/usr/bin/env"}, {{"ONLY", "this"}});
  finish();
  EXPECT_THAT(seen_.lines, ElementsAre("ONLY=this"));
}

TEST_F(ProcessTest, SignalsAreDefaultAndUnblocked) {
  shell("grep -E 'SigBlk|SigIgn' /proc/self/status | tr -d '\\t'");
  finish();
  EXPECT_THAT(seen_.lines, ElementsAre("SigBlk:0000000000000000", "SigIgn:0000000000000000"));
}

TEST_F(ProcessTest, IsBoundBeforeItRuns) {
  start({"sh", "-c", "grep Cpus_allowed_list /proc/self/status | tr -d '\\t '"}, current_variables(), {0});
  finish();
  EXPECT_THAT(seen_.lines, ElementsAre("Cpus_allowed_list:0"));
}

TEST_F(ProcessTest, LeadsAProcessGroup) {
  shell("ps -o pgid= -p $$ | tr -d ' '; echo $$");
  finish();
  ASSERT_EQ(seen_.lines.size(), 2u);
  EXPECT_EQ(seen_.lines[0], seen_.lines[1]);
}

TEST_F(ProcessTest, KillAfterGrace) {
  shell("trap '' TERM; sleep 100");
  agent_.kill_after(milliseconds(50));
  finish();
  EXPECT_EQ(seen_.end->signal, SIGKILL);
}

TEST_F(ProcessTest, KillsLeftoversOfItsGroup) {
  shell("sleep 100 & echo $!");
  finish();
  const pid_t left = std::atoi(seen_.lines.at(0).c_str());
  kill_descendants(1000);
  EXPECT_NE(kill(left, 0), 0);
}

TEST_F(ProcessTest, KillsAGrandchildInANewSession) {
  shell("setsid sh -c 'echo $$; exec sleep 100' & sleep 0.2");
  finish();
  const pid_t left = std::atoi(seen_.lines.at(0).c_str());
  EXPECT_EQ(kill(left, 0), 0);  // it left the group
  EXPECT_TRUE(kill_descendants(1000));
  EXPECT_NE(kill(left, 0), 0);
}

TEST(Execute, MissingAndNotExecutable) {
  try {
    executable_path("/no/such/program", "build it");
    FAIL();
  } catch (const CannotExecute& error) {
    EXPECT_EQ(error.code(), 127);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("build it"));
  }
  try {
    start_process({{"/etc/passwd"}, {}, {}, SIGKILL, false});
    FAIL();
  } catch (const CannotExecute& error) {
    EXPECT_EQ(error.code(), 126);
  }
  EXPECT_EQ(executable_path("sh", "").substr(0, 1), "/");
}

TEST(EventLoopTest, TimersInOrderAndCancelled) {
  EventLoop loop;
  std::vector<int> order;
  loop.after(milliseconds(20), [&] { order.push_back(2); });
  loop.after(milliseconds(1), [&] { order.push_back(1); });
  const auto never = loop.after(milliseconds(5), [&] { order.push_back(0); });
  loop.cancel(never);
  loop.run_until([&] { return order.size() == 2; });
  EXPECT_THAT(order, ElementsAre(1, 2));
}

}  // namespace
}  // namespace convoy
