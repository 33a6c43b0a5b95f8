#include "launch/rank/whereabouts.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "core/control/position.h"
#include "core/control/supervised_channel.h"
#include "core/error.h"

namespace convoy {
namespace {

// Longer than any inquiry takes.
constexpr auto verdict_patience = std::chrono::milliseconds(2000);

}  // namespace

std::shared_ptr<Whereabouts> Whereabouts::create(std::shared_ptr<Channel> channel, int first) {
  std::shared_ptr<Whereabouts> made(new Whereabouts(channel, first));
  const std::weak_ptr<Whereabouts> weak = made;
  if (SupervisedChannel* told = supervised(channel.get()))
    told->on_beat([weak]() -> std::optional<Json> {
      const auto self = weak.lock();
      return self ? self->reports() : Json();
    });
  channel->watch(protocol::inquiry, [weak](const std::string&, const std::string& value) {
    if (const auto self = weak.lock()) self->answer(Json::parse(value));
  });
  return made;
}

void Whereabouts::add(int rank, std::shared_ptr<const CallNotes> notes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known =
      std::find_if(ranks_.begin(), ranks_.end(), [rank](const Rank& one) { return one.id.rank == rank; });
  if (known != ranks_.end()) ranks_.erase(known);
  ranks_.push_back({{rank, own_thread_id()}, std::move(notes)});
}

Json Whereabouts::reports() {
  Json all = Json::array();
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const Rank& rank : ranks_) all.push_back(to_json(report_of(rank.id.rank, *rank.notes)));
  return all;
}

void Whereabouts::answer(const Json& inquiry) {
  const Json id = inquiry.at("id");
  channel_->post(protocol::where, {{"id", id}, {"ranks", reports()}});
  if (!inquiry.at("stacks").get<bool>()) return;
  std::vector<RankThreadId> ids;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Rank& rank : ranks_) ids.push_back(rank.id);
  }
  Json threads = Json::array();
  for (ThreadStack& stack : own_stacks(ids)) {
    stack.process = first_;
    threads.push_back(to_json(stack));
  }
  channel_->post(protocol::stacks, {{"id", id}, {"process", first_}, {"threads", threads}});
}

void Whereabouts::late(int rank, const LateCall& call) {
  channel_->post(protocol::late, {{"rank", rank},
                                  {"group", call.group},
                                  {"number", call.number},
                                  {"call", call.call},
                                  {"members", call.members},
                                  {"seconds", call.seconds},
                                  {"limit", call.limit},
                                  {"over", call.over}});
  if (!call.over) return;
  const auto deadline = std::chrono::steady_clock::now() + verdict_patience;
  while (std::chrono::steady_clock::now() < deadline) {
    if (const auto reason = channel_->aborted()) throw CommError(Failure::peer_lost, -1, reason->message);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace convoy
