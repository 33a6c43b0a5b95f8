#include "core/checkpoint/save_coordination.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>

#include "core/base/error.h"

namespace convoy {

SaveCoordination::SaveCoordination(const Context& context, const std::string& call)
    : context_(context), timeout_(timeout_of(context.config.launch.collective)) {
  // The communicator distributes the token: a key of the control store needs a name that all ranks know already.
  token_ = random_token();
  at::Tensor letters = at::empty({int64_t(token_.size())}, at::kByte);
  std::memcpy(letters.mutable_data_ptr(), token_.data(), token_.size());
  at::Tensor on_device = letters.to(context.devices.front());
  context.world->broadcast(on_device, 0, {"checkpoint." + call, timeout_})->wait();
  on_device = on_device.to(at::kCPU);
  std::memcpy(token_.data(), on_device.const_data_ptr(), token_.size());
}

bool SaveCoordination::is_over(std::chrono::steady_clock::time_point& begin) const {
  if (*cancelled_) throw CommError(Failure::peer_lost, -1, "the training ended during a save");
  if (const std::optional<Abort> cause = context_.channel->aborted())
    throw CommError(Failure::peer_lost, cause->rank, cause->message);
  const auto now = std::chrono::steady_clock::now();
  if (now - begin <= timeout_) return false;
  context_.channel->peek(key("time limit"));  // a late answer means that the supervisor was suspended
  constexpr std::chrono::seconds prompt{1};
  const auto answered = std::chrono::steady_clock::now();
  if (answered - now < prompt) return true;
  begin = answered;
  return false;
}

void SaveCoordination::fail_late(const std::string& phase) const {
  throw CommError(Failure::rendezvous, -1,
                  convoy::str("checkpoint, ", phase, ": not all ranks were ready within ",
                              human_seconds(std::chrono::duration<double>(timeout_).count()),
                              " (launch.collective): is the storage slow, or a host gone?"));
}

std::vector<std::string> SaveCoordination::agree(const std::string& phase, const std::string& value) {
  SupervisedChannel* const later = cancelled_ != nullptr ? context_.channel->supervised() : nullptr;
  if (later == nullptr) return context_.channel->agree(key(phase), context_.rank, context_.size, value, timeout_);
  struct Answers {
    std::mutex mutex;
    std::condition_variable arrived;
    std::optional<std::vector<std::string>> values;
  };
  const auto answers = std::make_shared<Answers>();  // its callback may outlive this wait
  auto begin = std::chrono::steady_clock::now();
  later->agree_later(key(phase), context_.rank, context_.size, value,
                     [answers](const std::vector<std::string>& values) {
                       const std::lock_guard<std::mutex> lock(answers->mutex);
                       answers->values = values;
                       answers->arrived.notify_all();
                     });
  constexpr std::chrono::milliseconds check_every{50};
  std::unique_lock<std::mutex> lock(answers->mutex);
  while (!answers->arrived.wait_for(lock, check_every, [&] { return answers->values.has_value(); })) {
    lock.unlock();  // the callback needs the lock while is_over waits for the channel
    const bool over = is_over(begin);
    lock.lock();
    if (over && !answers->values) fail_late(phase);
  }
  return *answers->values;
}

std::string SaveCoordination::take(const std::string& from) {
  std::string value;
  if (cancelled_ == nullptr) {
    value = context_.channel->get(from, timeout_);
  } else {
    constexpr std::chrono::milliseconds check_every{5};
    auto begin = std::chrono::steady_clock::now();
    std::optional<std::string> seen;
    for (bool over = false; !(seen = context_.channel->peek(from)); over = is_over(begin)) {
      if (over) fail_late("list");
      std::this_thread::sleep_for(check_every);
    }
    value = *seen;
  }
  context_.channel->erase(from);
  return value;
}

std::vector<std::string> SaveCoordination::collect(const std::string& phase, const std::function<std::string()>& work) {
  Json mine{{"value", ""}};
  try {
    mine["value"] = work();
  } catch (const CommError&) {
    throw;
  } catch (const Error& error) {
    mine = {{"kind", name_of(error.kind())}, {"error", error.what()}};
  } catch (const std::exception& error) {
    mine = {{"kind", name_of(Failure::io)}, {"error", error.what()}};
  }
  const std::string text = mine.dump(-1, ' ', false, Json::error_handler_t::replace);
  const auto answers = agree(phase, text);
  std::vector<std::string> values;
  for (size_t rank = 0; rank < answers.size(); ++rank) {
    const Json answer = Json::parse(answers[rank]);
    if (answer.contains("error")) {
      const std::string who = context_.size > 1 ? convoy::str("rank ", rank, ": ") : "";
      const std::string text = who + answer["error"].get<std::string>();
      // This rank only received the failure: a CommError names the rank that failed.
      if (int(rank) != context_.rank) throw CommError(failure_named(answer["kind"]), int(rank), text);
      throw Error(failure_named(answer["kind"]), text);
    }
    values.push_back(answer["value"]);
  }
  return values;
}

void SaveCoordination::on_all(const std::string& phase, const std::function<void()>& work) {
  collect(phase, [&] {
    work();
    return std::string();
  });
}

std::string SaveCoordination::on_first(const std::string& phase, const std::function<std::string()>& work) {
  return collect(phase, [&] { return first() ? work() : std::string(); }).front();
}

std::vector<std::string> SaveCoordination::to_first(const std::string& phase, const std::string& text) {
  std::vector<std::string> all;
  if (!first()) {
    context_.channel->set(key(phase) + convoy::str("/", context_.rank), text);
    return all;
  }
  all.push_back(text);
  for (int rank = 1; rank < context_.size; ++rank) all.push_back(take(key(phase) + convoy::str("/", rank)));
  return all;
}

}  // namespace convoy
