#include "tests/support/torch/jobs.h"

#include <mutex>
#include <thread>

#include "backends/registry.h"
#include "core/control/channel.h"

namespace convoy {
namespace {

// Keeps the first failure that is not a lost peer.
class FirstFailure {
 public:
  void add(std::exception_ptr failure, bool follows) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_ && (!follows_ || follows)) return;
    failure_ = std::move(failure);
    follows_ = follows;
  }
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr failure_;
  bool follows_ = false;
};

bool only_lost_a_peer() {
  try {
    throw;
  } catch (const Error& error) {
    return error.kind() == Failure::peer_lost;
  } catch (...) {
    return false;
  }
}

}  // namespace

void test_jobs(int size, const std::function<void(Job&)>& body, const std::vector<std::string>& settings) {
  EmbeddedRank common;
  common.size = common.process_ranks = size;
  common.channel = make_local_channel();
  common.backend = "local";
  common.backends = std::make_shared<Registry>();
  register_backends(*common.backends);
  common.settings = {"device=cpu", "launch.rendezvous=20", "launch.collective=20", "launch.heartbeat=20"};
  common.settings.insert(common.settings.end(), settings.begin(), settings.end());
  common.arguments = {"test"};
  FirstFailure failure;
  const auto run = [&](int rank) {
    EmbeddedRank mine = common;
    mine.rank = mine.local_rank = rank;
    try {
      Job job = embedded_job(mine);
      try {
        body(job);
        job.finish();
      } catch (...) {
        failure.add(std::current_exception(), only_lost_a_peer());
        throw;
      }
    } catch (...) {
      failure.add(std::current_exception(), only_lost_a_peer());
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 1; rank < size; ++rank) threads.emplace_back(run, rank);
  run(0);
  for (std::thread& thread : threads) thread.join();
  failure.rethrow();
}

}  // namespace convoy
