// JSON of positions and stacks.
#include "core/rank_state/position.h"

#include <algorithm>
#include <chrono>

namespace convoy {

namespace {

double seconds_since(double unix_seconds) {
  const auto now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return std::max(now - unix_seconds, 0.0);
}

}  // namespace

RankReport report_of(int rank, const CollectiveRecords& records) {
  const RankPosition position = records.position();
  return {rank, position, seconds_since(position.seconds), records.calls()};
}

std::optional<RankReport> read_report(int rank, const std::string& state_file) {
  const auto position = read_state_file(state_file);
  if (!position) return std::nullopt;
  return RankReport{rank, *position, seconds_since(position->seconds), read_collective_records(state_file)};
}

Json to_json(const RankReport& report) {
  const RankPosition& position = report.position;
  Json calls = Json::array();
  for (const RankCall& call : report.calls)
    calls.push_back({{"group", valid_utf8(call.group)},
                     {"number", call.number},
                     {"hash", call.hash},
                     {"call", valid_utf8(call.call)}});
  return {{"rank", report.rank},   {"phase", valid_utf8(position.phase)},
          {"step", position.step}, {"collective", valid_utf8(position.collective)},
          {"age", report.age},     {"calls", calls}};
}

RankReport report_from_json(const Json& json) {
  RankReport report;
  report.rank = json.at("rank").get<int>();
  report.age = json.at("age").get<double>();
  report.position.phase = json.at("phase").get<std::string>();
  report.position.step = json.at("step").get<int64_t>();
  report.position.collective = json.at("collective").get<std::string>();
  for (const Json& call : json.at("calls"))
    report.calls.push_back({call.at("group").get<std::string>(), call.at("number").get<int64_t>(),
                            call.at("hash").get<uint64_t>(), call.at("call").get<std::string>()});
  return report;
}

Json to_json(const ThreadStack& stack) {
  Json frames = Json::array();
  for (const std::string& frame : stack.frames) frames.push_back(valid_utf8(frame));
  return {{"rank", stack.rank},
          {"process", stack.process},
          {"name", valid_utf8(stack.name)},
          {"state", std::string(1, stack.state)},
          {"frames", frames}};
}

ThreadStack stack_from_json(const Json& json) {
  ThreadStack stack;
  stack.rank = json.at("rank").get<int>();
  stack.process = json.at("process").get<int>();
  stack.name = json.at("name").get<std::string>();
  const auto state = json.at("state").get<std::string>();
  if (!state.empty()) stack.state = state.front();
  stack.frames = json.at("frames").get<std::vector<std::string>>();
  return stack;
}

}  // namespace convoy
