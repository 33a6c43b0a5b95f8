#include "launch/hang_table.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "core/control/phases.h"
#include "launch/folding.h"
#include "launch/stacks.h"
#include "launch/text_table.h"

namespace convoy {
namespace {

constexpr size_t culprit_frames = 16, other_frames = 8, other_threads = 3;

// "all_reduce bucket 2" and "all_reduce": the operation as people write it.
std::string hyphenated(std::string text) {
  const size_t end = std::min(text.find(' '), text.size());
  std::replace(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
  return text;
}

bool contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

std::string age_text(const RankPlace& place) {
  if (!place.known) return "";
  return human_seconds(place.report.age);
}

std::string remark(const RankPlace& place, const StallVerdict& verdict) {
  std::string text;
  if (place.suspended)
    text = "stopped by a signal or a debugger";
  else if (!place.answered)
    text = place.told > 0 ? str("does not answer; told ", human_seconds(place.told), " ago") : "does not answer";
  if (contains(verdict.ranks, place.report.rank) && verdict.ranks.size() < 4 && text.empty()) text = "<- here";
  return text;
}

std::vector<ThreadStack> own_threads_of(const std::vector<ThreadStack>& stacks, int rank) {
  std::vector<ThreadStack> found;
  for (const ThreadStack& stack : stacks)
    if (stack.rank == rank) found.push_back(stack);
  return found;
}

std::string indented(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += "\n      " + line;
  return text;
}

std::string thread_words(const ThreadStack& stack) {
  if (stack.state == 'R') return ", running";
  if (stack.state == 'D') return ", in the kernel (disk or device)";
  return "";
}

// The rank to blame, and beside its own thread those of its process that do something.
std::string culprit_stacks(int rank, const std::vector<RankPlace>& places, const std::vector<ThreadStack>& stacks) {
  std::string text;
  int process = -1;
  for (const ThreadStack& stack : own_threads_of(stacks, rank)) {
    process = stack.process;
    text += str("\n    rank ", rank, "'s thread", thread_words(stack), ":",
                stack.frames.empty() ? " it did not answer the signal" : "",
                indented(readable_stack(stack.frames, culprit_frames)));
  }
  if (text.empty()) {
    for (const RankPlace& place : places)
      if (place.report.rank == rank)
        text += str("\n    rank ", rank, ": no stack, ",
                    place.suspended ? "since it is stopped" : "since its process does not answer");
    return text;
  }
  size_t told = 0;
  for (const ThreadStack& stack : stacks) {
    if (stack.rank >= 0 || stack.process != process || told++ >= other_threads) continue;
    text += str("\n    beside it, thread ", stack.name, thread_words(stack), ":",
                indented(readable_stack(stack.frames, other_frames)));
  }
  return text;
}

// Equal ones once.
std::string other_stacks(const StallVerdict& verdict, const std::vector<ThreadStack>& stacks) {
  std::map<std::vector<std::string>, std::vector<int>> ranks_of;
  for (const ThreadStack& stack : stacks)
    if (stack.rank >= 0 && !contains(verdict.ranks, stack.rank) && !stack.frames.empty())
      ranks_of[readable_stack(stack.frames, other_frames)].push_back(stack.rank);
  std::string text;
  for (const auto& [lines, ranks] : ranks_of) text += str("\n    ", rank_list(ranks), ":", indented(lines));
  return text;
}

const RankPlace* place_of(const std::vector<RankPlace>& places, int rank) {
  for (const RankPlace& place : places)
    if (place.report.rank == rank) return &place;
  return nullptr;
}

// The last call in that group; 0: none.
int64_t last_call(const RankPlace& place, const std::string& group) {
  int64_t last = 0;
  for (const RankCall& call : place.report.calls)
    if (call.group == group) last = std::max(last, call.number);
  return last;
}

bool waits(const RankPlace& place) { return !place.report.position.collective.empty(); }
bool silent(const RankPlace& place) { return place.suspended || !place.answered; }

// "; it is in loader, step 812", for those of `ranks` that are known.
std::string whereabouts(const std::vector<int>& ranks, const std::vector<RankPlace>& places) {
  std::map<std::string, std::vector<int>> at;
  bool suspended = false, unheard = false;
  for (int rank : ranks) {
    const RankPlace* place = place_of(places, rank);
    if (place == nullptr || !place->known) continue;
    at[place_text(*place)].push_back(rank);
    suspended = suspended || place->suspended;
    unheard = unheard || !place->answered;
  }
  std::string text;
  for (const auto& [where, who] : at)
    text += str(text.empty() ? "; " : ", ",
                ranks.size() == 1 ? "it is" : str(rank_list(who), who.size() == 1 ? " is" : " are"), " in ", where);
  if (suspended)
    text += ", stopped by a signal or a debugger, and sends no heartbeat";
  else if (unheard)
    text += ", does not answer and sends no heartbeat";
  return text;
}

// Of `among`, whoever is the reason by the first rule that applies to anybody.
std::vector<int> to_blame(const std::vector<RankPlace>& places, const std::vector<int>& missing,
                          const std::vector<int>& members) {
  const auto pick = [&](const std::vector<int>& among, const std::function<bool(const RankPlace&)>& rule) {
    std::vector<int> found;
    for (int rank : among) {
      const RankPlace* place = place_of(places, rank);
      if (place != nullptr && rule(*place)) found.push_back(rank);
    }
    return found;
  };
  std::vector<int> all;
  for (const RankPlace& place : places) all.push_back(place.report.rank);
  const std::vector<std::pair<const std::vector<int>*, std::function<bool(const RankPlace&)>>> rules = {
      {&missing, silent},
      {&missing, [](const RankPlace& place) { return !waits(place); }},
      {&members, silent},
      // Those that are missing wait elsewhere, so the reason is with somebody for whom they wait.
      {&all, silent},
      {&all, [](const RankPlace& place) { return !waits(place) && place.report.position.phase != "done"; }},
      {&missing, [](const RankPlace&) { return true; }}};
  for (const auto& [among, rule] : rules)
    if (std::vector<int> found = pick(*among, rule); !found.empty()) return found;
  return {};
}

StallVerdict judge_wait(const Stall& stall, const std::vector<RankPlace>& places) {
  if (StallVerdict difference = call_difference(places); !difference.message.empty()) return difference;
  std::vector<int> missing, members;
  for (int rank : stall.members) {
    const RankPlace* place = place_of(places, rank);
    if (rank == stall.rank || place == nullptr) continue;
    members.push_back(rank);
    const bool numbered = stall.number > 0;
    if (numbered ? last_call(*place, stall.group) < stall.number : !waits(*place) || stall.members.size() == 2)
      missing.push_back(rank);
  }
  StallVerdict verdict;
  verdict.ranks = to_blame(places, missing, members);
  const std::string what = short_call(stall.call), waited = human_seconds(stall.seconds);
  const bool come = !verdict.ranks.empty() && std::all_of(verdict.ranks.begin(), verdict.ranks.end(),
                                                          [&](int rank) { return contains(missing, rank); });
  const std::string has = verdict.ranks.size() == 1 ? " has" : " have";
  if (come)
    verdict.message = str(rank_list(verdict.ranks), has, " not come to ", what, " for ", waited);
  else if (!verdict.ranks.empty())
    verdict.message = str(rank_list(verdict.ranks), verdict.ranks.size() == 1 ? " keeps" : " keep",
                          " the others waiting: ", rank_list({stall.rank}), " has waited ", waited, " in ", what);
  else
    verdict.message = str(rank_list({stall.rank}), " has waited ", waited, " in ", what,
                          ", to which all ranks have come: what carries the data between them is stuck");
  verdict.message += whereabouts(verdict.ranks, places);
  return verdict;
}

StallVerdict judge_step(const Stall& stall, const std::vector<RankPlace>& places) {
  if (StallVerdict difference = call_difference(places); !difference.message.empty()) return difference;
  StallVerdict verdict;
  verdict.ranks = to_blame(places, {}, {});
  if (verdict.ranks.empty()) verdict.ranks = {stall.rank};
  const RankPlace* place = place_of(places, verdict.ranks.front());
  verdict.message = str(rank_list(verdict.ranks), verdict.ranks.size() == 1 ? " has" : " have", " been in ",
                        place != nullptr ? place_text(*place) : "one place", " for ",
                        human_seconds(place != nullptr ? place->report.age : stall.seconds), ", longer than ",
                        human_seconds(stall.limit), " (launch.step_timeout)");
  return verdict;
}

StallVerdict judge_set_up(const Stall& stall, const std::vector<RankPlace>& places) {
  StallVerdict verdict;
  verdict.kind = Failure::rendezvous;
  verdict.ranks = {stall.rank};
  const RankPlace* place = place_of(places, stall.rank);
  const std::string phase = place != nullptr ? place->report.position.phase : "";
  verdict.message =
      str(rank_list(verdict.ranks), " has been ", phase.empty() ? starting_phase : phase,
          reads_files(phase) ? " without progress" : "", " for ", human_seconds(stall.seconds),
          " before its first step, longer than ", human_seconds(stall.limit),
          " (launch.rendezvous); if it only needs longer, type: --set launch.rendezvous=", std::ceil(4 * stall.limit));
  return verdict;
}

}  // namespace

std::string short_call(const std::string& call) {
  const size_t end = std::min(call.find(' '), call.size());
  std::string text = hyphenated(call.substr(0, end));
  const size_t open = call.find('\''), close = call.find('\'', open + 1);
  if (open != std::string::npos && close != std::string::npos) text += " " + call.substr(open + 1, close - open - 1);
  return text;
}

std::string rank_list(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + ranges(std::set<int>(ranks.begin(), ranks.end()));
}

std::string place_text(const RankPlace& place) {
  if (!place.known) return "unknown";
  const RankPosition& position = place.report.position;
  std::string text = waits(place) ? hyphenated(position.collective) : position.phase;
  if (text.empty()) text = "starting";
  if (position.step >= 0) text += str(", step ", position.step);
  return text;
}

StallVerdict call_difference(const std::vector<RankPlace>& places) {
  struct Caller {
    int rank;
    const RankCall* call;
  };
  std::map<std::pair<std::string, int64_t>, std::vector<Caller>> callers;
  for (const RankPlace& place : places)
    for (const RankCall& call : place.report.calls)
      callers[{call.group, call.number}].push_back({place.report.rank, &call});
  StallVerdict verdict;
  for (const auto& [which, all] : callers) {
    std::map<uint64_t, std::vector<int>> alike;
    std::map<uint64_t, std::string> text;
    for (const Caller& caller : all) {
      alike[caller.call->hash].push_back(caller.rank);
      text[caller.call->hash] = caller.call->call;
    }
    if (alike.size() < 2) continue;
    verdict.kind = Failure::disagreement;
    verdict.message = str("the ranks called different things as call ", which.second, " of group ", which.first, ": ");
    std::vector<std::pair<std::vector<int>, std::string>> in_order;
    for (const auto& [hash, ranks] : alike) in_order.emplace_back(ranks, text[hash]);
    std::sort(in_order.begin(), in_order.end());
    for (size_t i = 0; i < in_order.size(); ++i) {
      verdict.message += str(i == 0 ? "" : "; ", rank_list(in_order[i].first), ": ", in_order[i].second);
      if (in_order.size() == 2 && all.size() > 2 && in_order[i].first.size() == 1) verdict.ranks = in_order[i].first;
    }
    return verdict;
  }
  return verdict;
}

StallVerdict judge(const Stall& stall, const std::vector<RankPlace>& places) {
  if (stall.kind == Stall::Kind::collective) return judge_wait(stall, places);
  if (stall.kind == Stall::Kind::step) return judge_step(stall, places);
  if (stall.kind == Stall::Kind::set_up) return judge_set_up(stall, places);
  StallVerdict verdict;
  verdict.ranks = {stall.rank};
  const RankPlace* place = place_of(places, stall.rank);
  verdict.message = stall.message;
  if (place != nullptr && place->known) verdict.message += str("; it was in ", place_text(*place));
  verdict.message += place != nullptr && place->suspended ? "; its process is stopped by a signal or a debugger"
                                                          : "; it is stopped, or its host is overloaded or gone";
  return verdict;
}

std::string hang_table(const std::vector<RankPlace>& places, const StallVerdict& verdict,
                       const std::vector<ThreadStack>& stacks) {
  struct Line {
    std::vector<int> ranks;
    const RankPlace* longest;
    bool blamed;
  };
  std::map<std::string, Line> lines;
  for (const RankPlace& place : places) {
    const bool blamed = contains(verdict.ranks, place.report.rank);
    const std::string key = str(blamed ? "0" : "1", place.host, '\n', place_text(place), '\n', silent(place));
    auto [found, fresh] = lines.try_emplace(key, Line{{}, &place, blamed});
    found->second.ranks.push_back(place.report.rank);
    if (place.report.age > found->second.longest->report.age) found->second.longest = &place;
  }
  std::vector<std::vector<std::string>> cells{{"rank", "host", "where", "for", ""}};
  for (const auto& [key, line] : lines)
    cells.push_back({ranges(std::set<int>(line.ranks.begin(), line.ranks.end())), line.longest->host,
                     place_text(*line.longest), age_text(*line.longest), remark(*line.longest, verdict)});
  std::string text = "where the ranks are:\n  ";
  for (const char c : text_table(cells, {3})) {
    text += c;
    if (c == '\n') text += "  ";
  }
  text.resize(text.find_last_not_of(" \n") + 1);
  if (stacks.empty()) return text;
  text += "\n  stacks, innermost first:";
  for (size_t i = 0; i < verdict.ranks.size() && i < 2; ++i) text += culprit_stacks(verdict.ranks[i], places, stacks);
  return text + other_stacks(verdict, stacks);
}

Json hang_json(const std::vector<RankPlace>& places, const StallVerdict& verdict,
               const std::vector<ThreadStack>& stacks) {
  Json ranks = Json::array(), threads = Json::array();
  for (const RankPlace& place : places) {
    const RankPosition& position = place.report.position;
    ranks.push_back({{"rank", place.report.rank},
                     {"host", place.host},
                     {"phase", place.known ? Json(position.phase) : Json()},
                     {"step", position.step >= 0 ? Json(position.step) : Json()},
                     {"collective", waits(place) ? Json(position.collective) : Json()},
                     {"seconds", place.known ? Json(place.report.age) : Json()},
                     {"answered", place.answered},
                     {"stopped", place.suspended},
                     {"to_blame", contains(verdict.ranks, place.report.rank)}});
  }
  for (const ThreadStack& stack : stacks) {
    const bool blamed = contains(verdict.ranks, stack.rank) || stack.rank < 0;
    threads.push_back({{"rank", stack.rank >= 0 ? Json(stack.rank) : Json()},
                       {"process", stack.process},
                       {"thread", stack.name},
                       {"state", std::string(1, stack.state)},
                       {"frames", readable_stack(stack.frames, blamed ? culprit_frames : other_frames)}});
  }
  return {{"ranks", ranks}, {"stacks", threads}};
}

}  // namespace convoy
