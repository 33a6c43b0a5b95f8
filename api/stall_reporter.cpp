#include "api/stall_reporter.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "core/rank_state/position.h"

namespace convoy {
namespace {

// Longer than an inquiry of the supervisor takes.
constexpr auto diagnosis_limit = std::chrono::milliseconds(2000);

}  // namespace

std::shared_ptr<StallReporter> StallReporter::create(std::shared_ptr<Channel> channel, int first) {
  std::shared_ptr<StallReporter> made(new StallReporter(channel, first));
  const std::weak_ptr<StallReporter> weak = made;
  if (SupervisedChannel* supervised_channel = channel->supervised())
    supervised_channel->on_heartbeat([weak_ranks = std::weak_ptr<Ranks>(made->ranks_)]() -> std::optional<Json> {
      const auto ranks = weak_ranks.lock();
      return ranks ? ranks->reports() : Json();
    });
  channel->watch(protocol::inquiry, [weak](const std::string&, const std::string& value) {
    if (const auto self = weak.lock()) self->answer(Json::parse(value));
  });
  return made;
}

void StallReporter::add(int rank, std::shared_ptr<const CollectiveRecords> records) {
  const std::lock_guard<std::mutex> lock(ranks_->mutex);
  std::vector<Rank>& all = ranks_->all;
  const auto known = std::find_if(all.begin(), all.end(), [rank](const Rank& one) { return one.id.rank == rank; });
  if (known != all.end()) all.erase(known);
  all.push_back({{rank, gettid()}, std::move(records)});
}

Json StallReporter::Ranks::reports() {
  Json reports = Json::array();
  const std::lock_guard<std::mutex> lock(mutex);
  for (const Rank& rank : all) reports.push_back(to_json(report_of(rank.id.rank, *rank.records)));
  return reports;
}

void StallReporter::answer(const Json& inquiry) {
  const Json id = inquiry.at("id");
  channel_->post(protocol::where, {{"id", id}, {"ranks", ranks_->reports()}});
  if (!inquiry.at("stacks").get<bool>()) return;
  std::vector<RankThreadId> ids;
  {
    const std::lock_guard<std::mutex> lock(ranks_->mutex);
    for (const Rank& rank : ranks_->all) ids.push_back(rank.id);
  }
  std::vector<ThreadStack> stacks = thread_stacks(ids);
  for (ThreadStack& stack : stacks) stack.process = first_;
  channel_->post(protocol::stacks, {{"id", id}, {"process", first_}, {"threads", stacks}});
}

void StallReporter::report(int rank, const SlowCollective& call) {
  Json report = call;
  report["rank"] = rank;
  channel_->post(protocol::slow_collective, report);
  if (!call.over) return;
  const auto deadline = std::chrono::steady_clock::now() + diagnosis_limit;
  while (std::chrono::steady_clock::now() < deadline) {
    if (const auto reason = channel_->aborted()) throw CommError(Failure::peer_lost, -1, reason->message);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace convoy
