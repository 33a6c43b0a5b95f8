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
  for (const Watching& watching : watches_) {
    if (key.compare(0, watching.prefix.size(), watching.prefix) == 0) watching.callback(key, value);
  }
  auto waiting = gets_.find(key);
  if (waiting == gets_.end()) return;
  for (auto& [waiter, reply] : waiting->second) {
    waits_for_.erase(waiter);
    reply({Outcome::Kind::done, {value}, {}, {}});
  }
  gets_.erase(waiting);
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
    waits_for_[waiter] = key;
    gets_[key][waiter] = std::move(reply);
  }
}

void ControlStore::agree(Waiter waiter, const std::string& name, int participant, int count, const std::string& value,
                         bool again, Reply reply) {
  auto misuse = [&](const std::string& reason) {
    return Error(Failure::internal, "control channel: agree '", name, "', participant ", participant, ": ", reason);
  };
  if (count < 1 || participant < 0 || participant >= count) throw misuse(str("not one of ", count));
  Consensus& agreement = agreements_[name];
  if (agreement.complete) throw misuse("this name was used before; each agreement needs its own");
  if (agreement.count == 0) agreement.count = count;
  if (agreement.count != count) throw misuse(str("expects ", count, " participants, others expect ", agreement.count));
  if (!agreement.votes.emplace(participant, value).second) throw misuse("has voted before");
  if (static_cast<int>(agreement.votes.size()) == count) {
    Outcome outcome;
    for (auto& vote : agreement.votes) outcome.values.push_back(std::move(vote.second));
    for (auto& [other, other_reply] : agreement.waiting) {
      waits_for_.erase(other);
      other_reply(outcome);
    }
    reply(std::move(outcome));
    agreement.votes.clear();
    agreement.waiting.clear();
    agreement.complete = true;
    if (again) agreements_.erase(name);
  } else if (abort_) {
    reply({Outcome::Kind::aborted, {}, {}, abort_});
  } else {
    waits_for_[waiter] = name;
    agreement.waiting[waiter] = std::move(reply);
  }
}

void ControlStore::cancel(Waiter waiter) {
  auto found = waits_for_.find(waiter);
  if (found == waits_for_.end()) return;
  const std::string name = found->second;
  waits_for_.erase(found);
  Outcome outcome;
  outcome.kind = Outcome::Kind::timeout;
  if (auto gets = gets_.find(name); gets != gets_.end()) {
    if (auto node = gets->second.extract(waiter)) {
      if (gets->second.empty()) gets_.erase(gets);
      node.mapped()(std::move(outcome));
      return;
    }
  }
  Consensus& agreement = agreements_.at(name);
  for (int i = 0; i < agreement.count; ++i) {
    if (agreement.votes.count(i) == 0) outcome.missing.push_back(i);
  }
  agreement.waiting.extract(waiter).mapped()(std::move(outcome));
}

void ControlStore::watch(uint64_t owner, const std::string& prefix, Watch callback) {
  for (auto at = values_.lower_bound(prefix); at != values_.end(); ++at) {
    if (at->first.compare(0, prefix.size(), prefix) != 0) break;
    callback(at->first, at->second);
  }
  watches_.push_back({owner, prefix, std::move(callback)});
}

void ControlStore::forget(uint64_t owner) {
  watches_.erase(std::remove_if(watches_.begin(), watches_.end(),
                                [&](const Watching& watching) { return watching.owner == owner; }),
                 watches_.end());
  for (auto at = waits_for_.lower_bound({owner, 0}); at != waits_for_.end() && at->first.first == owner;) {
    if (auto gets = gets_.find(at->second); gets != gets_.end()) {
      gets->second.erase(at->first);
      if (gets->second.empty()) gets_.erase(gets);
    }
    if (auto agreement = agreements_.find(at->second); agreement != agreements_.end()) {
      agreement->second.waiting.erase(at->first);
    }
    at = waits_for_.erase(at);
  }
}

ControlStore::AbortOutcome ControlStore::abort(const Abort& reason) {
  if (abort_) {
    if (abort_->kind != Failure::peer_lost || reason.kind == Failure::peer_lost) return AbortOutcome::ignored;
    abort_ = reason;
    return AbortOutcome::replaced;
  }
  abort_ = reason;
  for (auto& entry : gets_) {
    for (auto& [waiter, reply] : entry.second) reply({Outcome::Kind::aborted, {}, {}, abort_});
  }
  gets_.clear();
  for (auto& entry : agreements_) {
    for (auto& [waiter, reply] : entry.second.waiting) reply({Outcome::Kind::aborted, {}, {}, abort_});
    entry.second.waiting.clear();
  }
  waits_for_.clear();
  return AbortOutcome::first;
}

}  // namespace convoy
