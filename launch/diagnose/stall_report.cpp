#include "launch/diagnose/stall_report.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "launch/text/text_table.h"

namespace convoy {
namespace {

constexpr size_t stalled_frames = 16, other_frames = 8, other_threads = 3;

// "all-reduce bucket 2" for "all_reduce bucket 2".
std::string hyphenated(std::string text) {
  const size_t end = std::min(text.find(' '), text.size());
  std::replace(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
  return text;
}

bool contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

const RankStatus* status_of(const std::vector<RankStatus>& statuses, int rank) {
  for (const RankStatus& status : statuses)
    if (status.report.rank == rank) return &status;
  return nullptr;
}

std::string remark(const RankStatus& status, const StallDiagnosis& diagnosis) {
  std::string text;
  if (status.suspended)
    text = "stopped by a signal or a debugger";
  else if (!status.answered)
    text = status.seconds_since_report > 0
               ? str("does not answer; last report ", human_seconds(status.seconds_since_report), " ago")
               : "does not answer";
  if (contains(diagnosis.ranks, status.report.rank) && diagnosis.ranks.size() < 4 && text.empty()) text = "<- here";
  return text;
}

std::string indented(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += "\n      " + line;
  return text;
}

std::string thread_words(const ThreadStack& stack) {
  if (stack.state == "R") return ", running";
  if (stack.state == "D") return ", in the kernel (disk or device)";
  return "";
}

// Stacks of a stalled rank: the rank's thread, then threads of its process that are busy.
std::string stalled_rank_stacks(int rank, const std::vector<RankStatus>& statuses,
                                const std::vector<ThreadStack>& stacks) {
  std::string text;
  int process = -1;
  for (const ThreadStack& stack : stacks) {
    if (stack.rank != rank) continue;
    process = stack.process;
    text += str("\n    rank ", rank, "'s thread", thread_words(stack), ":",
                stack.frames.empty() ? " it did not answer the signal" : "",
                indented(readable_stack(stack.frames, stalled_frames)));
  }
  if (text.empty()) {
    const RankStatus* status = status_of(statuses, rank);
    if (status == nullptr) return "";
    return str("\n    rank ", rank, ": no stack, ",
               status->suspended ? "since it is stopped" : "since its process does not answer");
  }
  size_t printed = 0;
  for (const ThreadStack& stack : stacks) {
    if (stack.rank >= 0 || stack.process != process || printed++ >= other_threads) continue;
    text += str("\n    in its process, thread ", stack.name, thread_words(stack), ":",
                indented(readable_stack(stack.frames, other_frames)));
  }
  return text;
}

// Stacks of the other ranks; equal ones once.
std::string other_stacks(const StallDiagnosis& diagnosis, const std::vector<ThreadStack>& stacks) {
  std::map<std::vector<std::string>, std::vector<int>> ranks_of;
  for (const ThreadStack& stack : stacks)
    if (stack.rank >= 0 && !contains(diagnosis.ranks, stack.rank) && !stack.frames.empty())
      ranks_of[readable_stack(stack.frames, other_frames)].push_back(stack.rank);
  std::string text;
  for (const auto& [lines, ranks] : ranks_of) text += str("\n    ", rank_list(ranks), ":", indented(lines));
  return text;
}

// Number of the last collective in that group; 0: none.
int64_t last_call(const RankStatus& status, const std::string& group) {
  int64_t last = 0;
  for (const RankCall& call : status.report.calls)
    if (call.group == group) last = std::max(last, call.number);
  return last;
}

bool waits(const RankStatus& status) { return !status.report.position.collective.empty(); }
bool unresponsive(const RankStatus& status) { return status.suspended || !status.answered; }

// "loader, step 812"
std::string position_text(const RankStatus& status) {
  if (!status.known) return "unknown";
  const RankPosition& position = status.report.position;
  std::string text = waits(status) ? hyphenated(position.collective) : position.phase;
  if (text.empty()) text = "starting";
  if (position.step >= 0) text += str(", step ", position.step);
  return text;
}

// "; it is in loader, step 812", for the known ranks among `ranks`.
std::string positions_of(const std::vector<int>& ranks, const std::vector<RankStatus>& statuses) {
  std::map<std::string, std::vector<int>> at;
  bool suspended = false, unheard = false;
  for (int rank : ranks) {
    const RankStatus* status = status_of(statuses, rank);
    if (status == nullptr || !status->known) continue;
    at[position_text(*status)].push_back(rank);
    suspended = suspended || status->suspended;
    unheard = unheard || !status->answered;
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

// Stalled ranks: those that match the first rule that matches any rank.
std::vector<int> stalled_ranks(const std::vector<RankStatus>& statuses, const std::vector<int>& missing,
                               const std::vector<int>& others) {
  const auto pick = [&](const std::vector<int>& among, const std::function<bool(const RankStatus&)>& rule) {
    std::vector<int> found;
    for (int rank : among) {
      const RankStatus* status = status_of(statuses, rank);
      if (status != nullptr && rule(*status)) found.push_back(rank);
    }
    return found;
  };
  std::vector<int> all;
  for (const RankStatus& status : statuses) all.push_back(status.report.rank);
  const std::vector<std::pair<const std::vector<int>*, std::function<bool(const RankStatus&)>>> rules = {
      {&missing, unresponsive},
      {&missing, [](const RankStatus& status) { return !waits(status); }},
      {&others, unresponsive},
      // Missing ranks wait elsewhere, so the cause is a rank for which they wait.
      {&all, unresponsive},
      {&all, [](const RankStatus& status) { return !waits(status) && status.report.position.phase != "done"; }},
      {&missing, [](const RankStatus&) { return true; }}};
  for (const auto& [among, rule] : rules)
    if (std::vector<int> found = pick(*among, rule); !found.empty()) return found;
  return {};
}

StallDiagnosis diagnose_wait(const Stall& stall, const std::vector<RankStatus>& statuses) {
  if (StallDiagnosis mismatch = collective_mismatch(statuses); !mismatch.message.empty()) return mismatch;
  std::vector<int> missing, others;
  for (int rank : stall.members) {
    const RankStatus* status = status_of(statuses, rank);
    if (rank == stall.rank || status == nullptr) continue;
    others.push_back(rank);
    const bool numbered = stall.number > 0;
    if (numbered ? last_call(*status, stall.group) < stall.number : !waits(*status) || stall.members.size() == 2)
      missing.push_back(rank);
  }
  StallDiagnosis diagnosis;
  diagnosis.ranks = stalled_ranks(statuses, missing, others);
  const std::string what = short_call(stall.call), waited = human_seconds(stall.seconds);
  const bool not_reached = !diagnosis.ranks.empty() && std::all_of(diagnosis.ranks.begin(), diagnosis.ranks.end(),
                                                                   [&](int rank) { return contains(missing, rank); });
  const std::string has = diagnosis.ranks.size() == 1 ? " has" : " have";
  if (not_reached)
    diagnosis.message = str(rank_list(diagnosis.ranks), has, " not reached ", what, " for ", waited);
  else if (!diagnosis.ranks.empty())
    diagnosis.message = str(rank_list(diagnosis.ranks), diagnosis.ranks.size() == 1 ? " keeps" : " keep",
                            " the others waiting: ", rank_list({stall.rank}), " has waited ", waited, " in ", what);
  else
    diagnosis.message = str(rank_list({stall.rank}), " has waited ", waited, " in ", what,
                            ", which all ranks have called: the transport between them is stuck");
  diagnosis.message += positions_of(diagnosis.ranks, statuses);
  return diagnosis;
}

StallDiagnosis diagnose_step(const Stall& stall, const std::vector<RankStatus>& statuses) {
  if (StallDiagnosis mismatch = collective_mismatch(statuses); !mismatch.message.empty()) return mismatch;
  StallDiagnosis diagnosis;
  diagnosis.ranks = stalled_ranks(statuses, {}, {});
  if (diagnosis.ranks.empty()) diagnosis.ranks = {stall.rank};
  const RankStatus* status = status_of(statuses, diagnosis.ranks.front());
  diagnosis.message = str(rank_list(diagnosis.ranks), diagnosis.ranks.size() == 1 ? " has" : " have", " been in ",
                          status != nullptr ? position_text(*status) : "one position", " for ",
                          human_seconds(status != nullptr ? status->report.age : stall.seconds), ", longer than ",
                          human_seconds(stall.limit), " (launch.step_timeout)");
  return diagnosis;
}

StallDiagnosis diagnose_set_up(const Stall& stall, const std::vector<RankStatus>& statuses) {
  StallDiagnosis diagnosis;
  diagnosis.kind = Failure::rendezvous;
  diagnosis.ranks = {stall.rank};
  const RankStatus* status = status_of(statuses, stall.rank);
  const std::string phase = status != nullptr ? status->report.position.phase : "";
  diagnosis.message =
      str(rank_list(diagnosis.ranks), " has been ", phase.empty() ? starting_phase : phase,
          reads_files(phase) ? " without progress" : "", " for ", human_seconds(stall.seconds),
          " before its first step, longer than ", human_seconds(stall.limit),
          " (launch.rendezvous); if it only needs longer, type: --set launch.rendezvous=", std::ceil(4 * stall.limit));
  return diagnosis;
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
  return (ranks.size() == 1 ? "rank " : "ranks ") + ranges({ranks.begin(), ranks.end()});
}

StallDiagnosis collective_mismatch(const std::vector<RankStatus>& statuses) {
  using Callers = std::pair<std::vector<int>, std::string>;  // ranks, and the collective that they called
  std::map<std::pair<std::string, int64_t>, std::map<uint64_t, Callers>> calls;
  for (const RankStatus& status : statuses)
    for (const RankCall& call : status.report.calls) {
      Callers& callers = calls[{call.group, call.number}][call.hash];
      callers.first.push_back(status.report.rank);
      callers.second = call.call;
    }
  StallDiagnosis diagnosis;
  for (const auto& [which, callers_by_hash] : calls) {
    if (callers_by_hash.size() < 2) continue;
    diagnosis.kind = Failure::disagreement;
    diagnosis.message =
        str("the ranks called different operations as call ", which.second, " of group ", which.first, ": ");
    std::vector<Callers> in_order;
    for (const auto& [hash, callers] : callers_by_hash) in_order.push_back(callers);
    std::sort(in_order.begin(), in_order.end());
    for (size_t i = 0; i < in_order.size(); ++i) {
      diagnosis.message += str(i == 0 ? "" : "; ", rank_list(in_order[i].first), ": ", in_order[i].second);
      // One rank against several others.
      if (in_order.size() == 2 && in_order[i].first.size() == 1 && in_order[1 - i].first.size() > 1)
        diagnosis.ranks = in_order[i].first;
    }
    return diagnosis;
  }
  return diagnosis;
}

StallDiagnosis diagnose(const Stall& stall, const std::vector<RankStatus>& statuses) {
  if (stall.kind == Stall::Kind::collective) return diagnose_wait(stall, statuses);
  if (stall.kind == Stall::Kind::step) return diagnose_step(stall, statuses);
  if (stall.kind == Stall::Kind::set_up) return diagnose_set_up(stall, statuses);
  StallDiagnosis diagnosis;
  diagnosis.ranks = {stall.rank};
  const RankStatus* status = status_of(statuses, stall.rank);
  diagnosis.message = stall.message;
  if (status != nullptr && status->known) diagnosis.message += str("; it was in ", position_text(*status));
  diagnosis.message += status != nullptr && status->suspended ? "; its process is stopped by a signal or a debugger"
                                                              : "; it is stopped, or its host is overloaded or gone";
  return diagnosis;
}

std::string stall_report(const std::vector<RankStatus>& statuses, const StallDiagnosis& diagnosis,
                         const std::vector<ThreadStack>& stacks) {
  struct Line {
    std::vector<int> ranks;
    const RankStatus* longest;
    bool stalled;
  };
  std::map<std::string, Line> lines;
  for (const RankStatus& status : statuses) {
    const bool stalled = contains(diagnosis.ranks, status.report.rank);
    const std::string key =
        str(stalled ? "0" : "1", status.host, '\n', position_text(status), '\n', unresponsive(status));
    auto [found, fresh] = lines.try_emplace(key, Line{{}, &status, stalled});
    found->second.ranks.push_back(status.report.rank);
    if (status.report.age > found->second.longest->report.age) found->second.longest = &status;
  }
  std::vector<std::vector<std::string>> cells{{"rank", "host", "where", "for", ""}};
  for (const auto& [key, line] : lines)
    cells.push_back({ranges({line.ranks.begin(), line.ranks.end()}), line.longest->host, position_text(*line.longest),
                     line.longest->known ? human_seconds(line.longest->report.age) : "",
                     remark(*line.longest, diagnosis)});
  std::string text = "where the ranks are:\n  ";
  for (const char c : text_table(cells, {3})) {
    text += c;
    if (c == '\n') text += "  ";
  }
  text.resize(text.find_last_not_of(" \n") + 1);
  if (stacks.empty()) return text;
  text += "\n  stacks, innermost first:";
  for (size_t i = 0; i < diagnosis.ranks.size() && i < 2; ++i)
    text += stalled_rank_stacks(diagnosis.ranks[i], statuses, stacks);
  return text + other_stacks(diagnosis, stacks);
}

Json stall_json(const std::vector<RankStatus>& statuses, const StallDiagnosis& diagnosis,
                const std::vector<ThreadStack>& stacks) {
  Json ranks = Json::array(), threads = Json::array();
  for (const RankStatus& status : statuses) {
    const RankPosition& position = status.report.position;
    ranks.push_back({{"rank", status.report.rank},
                     {"host", status.host},
                     {"phase", status.known ? Json(position.phase) : Json()},
                     {"step", position.step >= 0 ? Json(position.step) : Json()},
                     {"collective", waits(status) ? Json(position.collective) : Json()},
                     {"seconds", status.known ? Json(status.report.age) : Json()},
                     {"answered", status.answered},
                     {"stopped", status.suspended},
                     {"to_blame", contains(diagnosis.ranks, status.report.rank)}});
  }
  for (const ThreadStack& stack : stacks) {
    const bool stalled = contains(diagnosis.ranks, stack.rank) || stack.rank < 0;
    threads.push_back({{"rank", stack.rank >= 0 ? Json(stack.rank) : Json()},
                       {"process", stack.process},
                       {"thread", stack.name},
                       {"state", stack.state},
                       {"frames", readable_stack(stack.frames, stalled ? stalled_frames : other_frames)}});
  }
  return {{"ranks", ranks}, {"stacks", threads}};
}

}  // namespace convoy
