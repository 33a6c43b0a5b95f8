#include "tests/scale/stubs.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "core/control/assignment.h"
#include "core/rank_state/position.h"
#include "launch/job/job_supervisor.h"
#include "launch/machine/topology.h"
#include "tests/support/rank_answers.h"

namespace convoy::scale {
namespace {

using namespace std::chrono_literals;

constexpr Timeout patience = 120s;

void print(const std::string& line) { std::cout << line << std::endl; }

RankReport report_of_stub(int rank, int slow) {
  RankReport report;
  report.rank = rank;
  report.position.phase = "training";
  report.position.step = 20;
  report.calls = {{"world", rank == slow ? 8 : 9, 1, "all_reduce 'bucket 2' float32[1024] sum"}};
  return report;
}

class Stubs {
 public:
  explicit Stubs(const StubPlan& plan) : plan_(plan), address_(channel_address(plan.address)) {
    host_.name = str("host", plan.first / plan.per_host);
    for (int core = 0; core < plan.per_host; ++core) host_.cores.push_back({core, 0, 0, {core}});
  }

  // Connects as launch/job/run_as_agent.cpp does: a connection for each process, and one watch for each host.
  void join() {
    for (int first = plan_.first; first < plan_.end; first += plan_.per_host) {
      const int end = std::min(first + plan_.per_host, plan_.end);
      for (int process = first; process < end; ++process)
        agents_[process] = connect_channel(address_, -1 - process, str("convoy of rank ", process), patience);
      agents_[first]->on_abort([this](const Abort&) { aborted(); });
      agents_[first]->watch(protocol::job, [this, first](const std::string&, const std::string&) {
        const std::lock_guard<std::mutex> lock(mutex_);
        to_start_.push_back(first);
        changed_.notify_all();
      });
      host_.name = str("host", first / plan_.per_host);
      for (int process = first; process < end; ++process)
        agents_[process]->post(job_topic::join, {{"process", process},
                                                 {"host", host_},
                                                 {"size", plan_.size},
                                                 {"size_from", "tests/scale"},
                                                 {"config", nullptr}});
      waiting_for_abort_ += 1 + end - first;  // an agent and its ranks
    }
  }

  // Starts the ranks of each host when its agent has received the job.
  void start_ranks() {
    const int hosts = (plan_.end - plan_.first + plan_.per_host - 1) / plan_.per_host;
    for (int started = 0; started < hosts; ++started) {
      int first = 0;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return !to_start_.empty(); });
        first = to_start_.back();
        to_start_.pop_back();
      }
      for (int rank = first; rank < std::min(first + plan_.per_host, plan_.end); ++rank) start_rank(rank);
    }
  }

  void steps() {
    std::map<int, std::unique_ptr<StopAgreement>> running;
    for (const auto& [rank, channel] : ranks_)
      running[rank] = std::make_unique<StopAgreement>(channel, rank, plan_.size, patience);
    for (int64_t step = 0; !running.empty(); ++step) {
      if (step == 1) print("running");
      for (auto one = running.begin(); one != running.end();)
        one = one->second->stops_before(step) ? running.erase(one) : std::next(one);
      std::this_thread::sleep_for(20ms);
    }
    print("stopped");
    for (const auto& [rank, channel] : ranks_) {
      channel->set(str(protocol::rank_result, rank), Json{{"wait_seconds", 0}}.dump());
      if (rank == 0) channel->set(protocol::result, Json{{"steps", 20}, {protocol::stopped_early, true}}.dump());
    }
  }

  // The agent reports a signal, and the rank's connection ends.
  void die(int rank) {
    ranks_.at(rank)->supervised()->stop_sending();
    agents_.at(rank)->post(job_topic::ended,
                           {{"process", rank}, {"code", 0}, {"signal", 9}, {"lack", ""}, {"made", false}});
    ranks_.erase(rank);
  }

 private:
  void start_rank(int rank) {
    const std::shared_ptr<Channel> channel = connect_channel(address_, rank, str("rank ", rank), patience);
    const RankReport report = report_of_stub(rank, plan_.slow);
    channel->on_abort([this](const Abort&) { aborted(); });
    channel->supervised()->on_heartbeat([report] { return Json::array({to_json(report)}); });
    // Real ranks and agents also read it, each on its own core.
    if (channel->get(protocol::job, patience).empty()) print("no job");
    testing::answer_inquiries(channel, report);
    channel->set(str(protocol::rank_info, rank), Json{{"host", str("host", rank / plan_.per_host)}, {"pid", 1}}.dump());
    ranks_[rank] = channel;
  }

  void aborted() {
    if (--waiting_for_abort_ == 0) print("aborted");
  }

  const StubPlan plan_;
  const ChannelAddress address_;
  Host host_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> to_start_;  // first ranks of hosts
  std::atomic<int> waiting_for_abort_{0};
  std::map<int, std::shared_ptr<Channel>> agents_, ranks_;  // destroyed first: callbacks use the others
};

}  // namespace

int run_stubs(const StubPlan& plan) {
  Stubs stubs(plan);
  stubs.join();
  stubs.start_ranks();
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "steps") stubs.steps();
    if (line.rfind("die ", 0) == 0) stubs.die(std::stoi(line.substr(4)));
  }
  _exit(0);  // ends the connections at once, instead of one after the other
}

}  // namespace convoy::scale
