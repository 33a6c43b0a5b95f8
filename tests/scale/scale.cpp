// Supervision of many ranks: the real JobSupervisor and control channel of `convoy`, with agents and rank stubs in a
// few processes without LibTorch.
//
//   scale [--ranks N] [--per-host N]     measures and compares with the limits; exit code 1 if one is exceeded
//
// Measured: join, CPU time at rest, inquiry of a stall, agreement on a stop, a dead rank, and the loss of a tenth of
// the hosts, which send no more heartbeats.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "core/base/text.h"
#include "core/files/limits.h"
#include "core/rank_state/position.h"
#include "launch/job/job_supervisor.h"
#include "tests/scale/stubs.h"
#include "tests/support/config_text.h"

namespace convoy::scale {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr int stub_processes = 10;  // each runs a tenth of the hosts
constexpr double heartbeat = 12;    // seconds
constexpr double join_limit = 10, stop_limit = 1, naming_limit = 2;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

bool all_within = true;

void print_result(const std::string& what, double seconds, double limit) {
  const bool within = seconds <= limit;
  all_within = all_within && within;
  std::printf("  %s %s: %.2f s (limit %.0f s)\n", within ? "ok  " : "MISS", what.c_str(), seconds, limit);
  std::fflush(stdout);
}

void require(bool condition, const std::string& what) {
  if (condition) return;
  std::printf("FAILED: %s\n", what.c_str());
  std::exit(1);
}

JobPlan plan_of(int ranks, int per_host) {
  JobPlan job;
  job.name = "scale";
  job.backend = "gloo";
  job.mesh = Mesh({{"data", ranks}});
  job.config = testing::read_config(testing::valid_config);
  for (int rank = 0; rank < ranks; ++rank) {
    RankPlan plan;
    plan.rank = plan.process = rank;
    plan.host = rank / per_host;
    plan.cores = {rank % per_host};
    plan.devices.push_back({DevicePlan::Kind::cores, -1, plan.cores});
    job.ranks.push_back(plan);
    job.processes.push_back({plan.host, {rank}});
  }
  return job;
}

// One job: its supervisor and the processes of the stubs.
class Job {
 public:
  Job(EventLoop& loop, int ranks, int per_host) : loop_(loop), ranks_(ranks), per_host_(per_host) {
    folder_ = std::filesystem::temp_directory_path() / str("convoy-scale-", getpid());
    JobRequest request;
    request.processes = ranks;
    request.joins = true;
    request.launch.heartbeat = heartbeat;
    JobEvents events;
    events.on_joined = [this](const std::vector<Host>&) {
      agents_seconds_ = seconds_since(began_);
      RankAssignment assignment;
      assignment.job = plan_of(ranks_, per_host_);
      assignment.folder = folder_;
      supervisor_->publish(assignment);
    };
    events.on_failure = [this](const Abort& cause) {
      cause_ = cause;
      failed_ = Clock::now();
    };
    events.on_line = [](int, const std::string&, const std::string&) {};
    events.on_report = [](const std::string&, const Json&) {};
    events.on_first_step = [] {};
    events.on_notice = [this](const std::string& text) { notice_ = text; };
    supervisor_ = std::make_unique<JobSupervisor>(loop, request, events);
    probe_ = connect_channel(supervisor_->address(), -2 - ranks, "tests/scale", 10s);
    probe_->watch(protocol::rank_info,
                  [this](const std::string&, const std::string&) { loop_.post([this] { ++joined_; }); });
    start_stubs();
  }

  ~Job() {
    probe_.reset();
    for (const StartedProcess& stub : stubs_) {
      kill(stub.pid, SIGKILL);
      for (const int fd : {stub.output, stub.error}) loop_.forget(fd);
      for (const int fd : {stub.input, stub.output, stub.error}) close(fd);
    }
    supervisor_.reset();
  }

  double join() {
    wait([this] { return joined_ >= ranks_; }, "all ranks join");
    std::printf("  agents joined after %.2f s\n", agents_seconds_);
    return seconds_since(began_);
  }

  // Share of a core that this process, with supervisor and server, uses while nothing happens.
  double processor_share() {
    const double before = process_cpu_seconds();
    const auto start = Clock::now();
    loop_.run_until([this] { return cause_.has_value(); }, 6s);
    require(!cause_, str("the job failed at rest: ", cause_ ? cause_->message : ""));
    return (process_cpu_seconds() - before) / seconds_since(start);
  }

  // All ranks but `slow` wait in a collective; rank 0 reports it.
  double name_slow(int slow) {
    const auto start = Clock::now();
    std::vector<int> members;
    for (int rank = 0; rank < ranks_; ++rank) members.push_back(rank);
    probe_->post(protocol::slow_collective, {{"rank", 0},
                                             {"group", "world"},
                                             {"number", 9},
                                             {"call", "all_reduce 'bucket 2' float32[1024] sum"},
                                             {"members", members},
                                             {"seconds", 5},
                                             {"limit", 10},
                                             {"over", false}});
    wait([this] { return !notice_.empty(); }, "a warning names the slow rank");
    require(notice_.find(str("rank ", slow, " has not reached")) != std::string::npos,
            "another rank is named: " + notice_);
    return seconds_since(start);
  }

  double stop() {
    order("steps\n");
    wait([this] { return running_ == stub_processes; }, "all ranks make steps");
    const auto start = Clock::now();
    supervisor_->stop(SIGTERM);
    wait([this] { return stopped_ == stub_processes; }, "all ranks stop");
    const double seconds = seconds_since(start);
    wait([this] { return supervisor_->saved(); }, "all ranks report their results");
    std::printf("  results arrived after %.2f s\n", seconds_since(start));
    return seconds;
  }

  // Returns the seconds until the supervisor names the rank, and prints when all others know.
  double kill_rank(int rank) {
    const auto start = Clock::now();
    order(str("die ", rank, "\n"), rank);
    wait([this] { return cause_.has_value(); }, "the dead rank is named");
    require(cause_->rank == rank && cause_->signal == 9, "another cause: " + cause_->message);
    const double seconds = std::chrono::duration<double>(failed_ - start).count();
    wait([this] { return aborted_ == stub_processes; }, "all processes hear of it");
    std::printf("  all %d ranks and their agents received it after %.2f s\n", ranks_, seconds_since(start));
    return seconds;
  }

  // The last tenth of the hosts stops sending heartbeats. Returns the seconds from the time limit of a heartbeat until
  // one of their ranks is named.
  double lose_hosts() {
    const auto start = Clock::now();
    kill(stubs_.back().pid, SIGSTOP);
    wait([this] { return cause_.has_value(); }, "a rank of the lost hosts is named");
    require(cause_->rank >= first_of(stub_processes - 1) && cause_->kind == Failure::hang,
            str("another cause: rank ", cause_->rank, ": ", cause_->message));
    const double seconds = std::chrono::duration<double>(failed_ - start).count() - heartbeat;
    wait([this] { return aborted_ == stub_processes - 1; }, "the other processes hear of it");
    return std::max(0.0, seconds);
  }

 private:
  int first_of(int stub) const {
    const int hosts = (ranks_ + per_host_ - 1) / per_host_;
    return std::min(hosts * stub / stub_processes * per_host_, ranks_);
  }

  void start_stubs() {
    began_ = Clock::now();
    for (int stub = 0; stub < stub_processes; ++stub) {
      ProcessStart start;
      start.argv = {program_path(), "--stubs"};
      for (const int number : {first_of(stub), first_of(stub + 1), ranks_, per_host_, ranks_ / 3})
        start.argv.push_back(std::to_string(number));
      start.environment = current_variables();
      start.with_input = true;
      const StartedProcess started = start_process(start);
      stubs_.push_back(started);
      write_text(started.input, to_string(supervisor_->address()) + "\n");
      loop_.on_readable(started.output, [this, fd = started.output] {
        if (!read_available(fd, output_, [this](const std::string& line) { received(line); })) loop_.forget(fd);
      });
      loop_.on_readable(started.error, [this, fd = started.error] {
        if (!read_available(fd, errors_, [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }))
          loop_.forget(fd);
      });
    }
  }

  void received(const std::string& line) {
    if (line == "running") ++running_;
    if (line == "stopped") ++stopped_;
    if (line == "aborted") ++aborted_;
  }

  // To all processes, or to that of `rank`.
  void order(const std::string& line, int rank = -1) {
    for (int stub = 0; stub < stub_processes; ++stub)
      if (rank < 0 || (rank >= first_of(stub) && rank < first_of(stub + 1)))
        write_text(stubs_[size_t(stub)].input, line);
  }

  void wait(const std::function<bool()>& done, const std::string& what) {
    require(loop_.run_until(done, 180s), str("waited 180 s until ", what, cause_ ? ": " + cause_->message : ""));
  }

  EventLoop& loop_;
  const int ranks_, per_host_;
  std::string folder_;
  Clock::time_point began_, failed_;
  double agents_seconds_ = 0;
  int joined_ = 0, running_ = 0, stopped_ = 0, aborted_ = 0;
  std::string notice_;
  std::optional<Abort> cause_;
  LineSplitter output_, errors_;
  std::vector<StartedProcess> stubs_;
  std::unique_ptr<JobSupervisor> supervisor_;
  std::shared_ptr<Channel> probe_;
};

int measure(int ranks, int per_host) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  EventLoop loop;
  std::printf("%d ranks on %d hosts\n", ranks, (ranks + per_host - 1) / per_host);
  const int some = ranks / 3;
  {
    Job job(loop, ranks, per_host);
    print_result("join", job.join(), join_limit);
    std::printf("  processor time of the supervisor at rest: %.1f %% of a core\n", 100 * job.processor_share());
    print_result("naming a slow rank", job.name_slow(some), naming_limit);
    print_result("stop agreement", job.stop(), stop_limit);
  }
  {
    Job job(loop, ranks, per_host);
    job.join();
    print_result("naming a dead rank", job.kill_rank(some), naming_limit);
  }
  {
    Job job(loop, ranks, per_host);
    job.join();
    print_result(str("naming a rank after a tenth of the hosts was silent for ", heartbeat, " s"), job.lose_hosts(),
                 naming_limit);
  }
  return all_within ? 0 : 1;
}

int stubs_of(char** words) {
  StubPlan plan;
  std::string line;
  for (char letter = 0; read(STDIN_FILENO, &letter, 1) == 1 && letter != '\n';) line += letter;
  plan.address = line;
  plan.first = std::atoi(words[0]);
  plan.end = std::atoi(words[1]);
  plan.size = std::atoi(words[2]);
  plan.per_host = std::atoi(words[3]);
  plan.slow = std::atoi(words[4]);
  return run_stubs(plan);
}

}  // namespace
}  // namespace convoy::scale

int main(int count, char** words) {
  using namespace convoy::scale;
  if (count == 7 && std::strcmp(words[1], "--stubs") == 0) return stubs_of(words + 2);
  int ranks = 512, per_host = 8;
  for (int at = 1; at < count; at += 2) {
    int* const value = std::strcmp(words[at], "--ranks") == 0      ? &ranks
                       : std::strcmp(words[at], "--per-host") == 0 ? &per_host
                                                                   : nullptr;
    const int given = value != nullptr && at + 1 < count ? std::atoi(words[at + 1]) : 0;
    if (given < 1) {
      std::fprintf(stderr, "usage: scale [--ranks N] [--per-host N]\n");
      return 64;
    }
    *value = given;
  }
  if ((ranks + per_host - 1) / per_host < stub_processes) {
    std::fprintf(stderr, "scale: at least %d hosts are needed\n", stub_processes);
    return 64;
  }
  return measure(ranks, per_host);
}
