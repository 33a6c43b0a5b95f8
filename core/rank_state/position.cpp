// JSON of positions and stacks.
#include "core/rank_state/position.h"

#include <algorithm>

#include "core/files/limits.h"

namespace convoy {

namespace {

double age_of(double time) { return std::max(unix_seconds() - time, 0.0); }

}  // namespace

RankReport report_of(int rank, const CollectiveRecords& records) {
  const RankPosition position = records.position();
  return {rank, position, age_of(position.seconds), records.calls()};
}

std::optional<RankReport> read_report(int rank, const std::string& state_file) {
  const auto position = read_state_file(state_file);
  if (!position) return std::nullopt;
  return RankReport{rank, *position, age_of(position->seconds), read_collective_records(state_file)};
}

Json to_json(const RankReport& report) {
  const RankPosition& position = report.position;
  return {{"rank", report.rank},   {"phase", position.phase},
          {"step", position.step}, {"collective", position.collective},
          {"age", report.age},     {"calls", report.calls}};
}

RankReport report_from_json(const Json& json) {
  RankReport report;
  report.rank = json.at("rank").get<int>();
  report.age = json.at("age").get<double>();
  report.position.phase = json.at("phase").get<std::string>();
  report.position.step = json.at("step").get<int64_t>();
  report.position.collective = json.at("collective").get<std::string>();
  report.calls = json.at("calls").get<std::vector<RankCall>>();
  return report;
}

}  // namespace convoy
