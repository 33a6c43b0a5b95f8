// Keys, votes, waits and the abort of one job.
#include "core/control/store.h"

#include <algorithm>
#include <charconv>

namespace convoy {

std::chrono::steady_clock::time_point deadline_after(Timeout timeout) {
  return std::chrono::steady_clock::now() + std::min<Timeout>(timeout, std::chrono::hours(24 * 365));
}

std::vector<std::string> values_or_throw(Outcome outcome, const std::string& what, Timeout waited) {
  switch (outcome.kind) {
    case Outcome::Kind::done:
      return std::move(outcome.values);
    case Outcome::Kind::timeout: {
      std::string who;
      if (!outcome.missing.empty()) {
        std::vector<std::string> names;
        for (int participant : outcome.missing) names.push_back(str(participant));
        who = str("; still missing: ", join(names, ", "));
      }
      throw CommError(Failure::rendezvous, outcome.missing.size() == 1 ? outcome.missing[0] : -1,
                      "control channel: ", what, ": nothing came within ",
                      human_seconds(static_cast<double>(waited.count()) / 1000), who);
    }
    case Outcome::Kind::aborted:
      break;
  }
  const Abort reason = outcome.reason.value_or(Abort{});
  throw CommError(Failure::peer_lost, reason.rank, "control channel: ", what, ": the job is ending (",
                  name_of(reason.kind), reason.rank >= 0 ? str(", rank ", reason.rank) : "", "): ", reason.message);
}

void ControlStore::set(const std::string& key, const std::string& value) {
  values_[key] = value;
  for (const auto& [prefix, watches] : watches_) {
    if (key.compare(0, prefix.size(), prefix) != 0) continue;
    for (const auto& [owner, callback] : watches) callback(key, value);
  }
  reply_all({false, key}, {Outcome::Kind::done, {value}, {}, {}});
}

void ControlStore::reply_all(const WaitKey& key, const Outcome& outcome) {
  const auto [begin, end] = waits_.equal_range(key);
  for (auto wait = begin; wait != end; ++wait) wait->second.reply(outcome);
  waits_.erase(begin, end);
}

std::optional<std::string> ControlStore::peek(const std::string& key) const {
  auto found = values_.find(key);
  if (found == values_.end()) return std::nullopt;
  return found->second;
}

int64_t ControlStore::add(const std::string& key, int64_t delta) {
  int64_t value = 0;
  if (auto found = values_.find(key); found != values_.end()) {
    const std::string& text = found->second;
    const auto end = text.data() + text.size();
    const auto [rest, problem] = std::from_chars(text.data(), end, value);
    if (problem != std::errc() || rest != end) {
      throw Error(Failure::internal, "control channel: add to '", key, "', whose value is no number");
    }
  }
  if (__builtin_add_overflow(value, delta, &value)) {
    throw Error(Failure::internal, "control channel: add to '", key, "' overflows 64 bits");
  }
  set(key, std::to_string(value));
  return value;
}

std::string ControlStore::compare_set(const std::string& key, const std::string& expected, const std::string& desired) {
  auto found = values_.find(key);
  const std::string now = found == values_.end() ? std::string() : found->second;
  if (now != expected) return now;
  set(key, desired);
  return desired;
}

bool ControlStore::erase(const std::string& key) { return values_.erase(key) != 0; }

void ControlStore::get(Waiter waiter, const std::string& key, Reply reply) {
  if (auto found = values_.find(key); found != values_.end()) {
    reply({Outcome::Kind::done, {found->second}, {}, {}});
  } else if (abort_) {
    reply({Outcome::Kind::aborted, {}, {}, abort_});
  } else {
    waits_.insert({{false, key}, {waiter, std::move(reply)}});
  }
}

ControlStore::Consensus& ControlStore::add_value(const std::string& name, int participant, int count,
                                                 const std::string& value) {
  auto misuse = [&](const std::string& reason) {
    return Error(Failure::internal, "control channel: agree '", name, "', participant ", participant, ": ", reason);
  };
  if (count < 1 || participant < 0 || participant >= count) throw misuse(str("not one of ", count));
  Consensus& agreement = agreements_[name];
  if (agreement.complete) throw misuse("this name was used before; each vote needs its own");
  if (agreement.count == 0) agreement.count = count;
  if (agreement.count != count) throw misuse(str("expects ", count, " participants, others expect ", agreement.count));
  if (!agreement.votes.emplace(participant, value).second) throw misuse("has given a value before");
  return agreement;
}

void ControlStore::agree(Waiter waiter, const std::string& name, int participant, int count, const std::string& value,
                         bool again, Reply reply) {
  Consensus& agreement = add_value(name, participant, count, value);
  if (agreement.full()) {
    Outcome outcome;
    for (auto& vote : agreement.votes) outcome.values.push_back(std::move(vote.second));
    reply_all({true, name}, outcome);
    reply(std::move(outcome));
    agreement.votes.clear();
    agreement.complete = true;
    if (again) agreements_.erase(name);
  } else if (abort_) {
    reply({Outcome::Kind::aborted, {}, {}, abort_});
  } else {
    waits_.insert({{true, name}, {waiter, std::move(reply)}});
  }
}

void ControlStore::vote(const std::string& name, int participant, int count, int64_t value) {
  Consensus& agreement = add_value(name, participant, count, str(value));
  if (!agreement.full()) return;
  int64_t largest = value;
  for (const auto& [other, text] : agreement.votes) largest = std::max<int64_t>(largest, std::stoll(text));
  agreement.votes.clear();
  agreement.complete = true;
  set(name, str(largest));
}

void ControlStore::cancel(Waiter waiter) {
  const auto found =
      std::find_if(waits_.begin(), waits_.end(), [&](const auto& wait) { return wait.second.waiter == waiter; });
  if (found == waits_.end()) return;
  const auto wait = waits_.extract(found);
  Outcome outcome;
  outcome.kind = Outcome::Kind::timeout;
  if (const auto agreement = agreements_.find(wait.key().second); agreement != agreements_.end())
    for (int i = 0; i < agreement->second.count; ++i)
      if (agreement->second.votes.count(i) == 0) outcome.missing.push_back(i);
  wait.mapped().reply(std::move(outcome));
}

void ControlStore::watch(uint64_t owner, const std::string& prefix, Watch callback) {
  for (auto at = values_.lower_bound(prefix); at != values_.end(); ++at) {
    if (at->first.compare(0, prefix.size(), prefix) != 0) break;
    callback(at->first, at->second);
  }
  watches_[prefix].emplace(owner, std::move(callback));
}

void ControlStore::forget(uint64_t owner) {
  for (auto& [prefix, watches] : watches_) watches.erase(owner);
  for (auto wait = waits_.begin(); wait != waits_.end();)
    wait = wait->second.waiter.first == owner ? waits_.erase(wait) : std::next(wait);
}

ControlStore::AbortOutcome ControlStore::abort(const Abort& reason) {
  if (abort_) {
    if (abort_->kind != Failure::peer_lost || reason.kind == Failure::peer_lost) return AbortOutcome::ignored;
    abort_ = reason;
    return AbortOutcome::replaced;
  }
  abort_ = reason;
  for (const auto& wait : waits_) wait.second.reply({Outcome::Kind::aborted, {}, {}, abort_});
  waits_.clear();
  return AbortOutcome::first;
}

}  // namespace convoy
