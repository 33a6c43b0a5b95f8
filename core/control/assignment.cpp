#include "core/control/assignment.h"

#include "core/control/addresses.h"

namespace convoy {

Json to_json(const RankAssignment& assignment) {
  return {{"job", to_json(assignment.job)},    {"folder", assignment.folder},   {"attempt", assignment.attempt},
          {"started", assignment.started},     {"passive", assignment.passive}, {"snapshots", assignment.snapshots},
          {"inject", Json(assignment.faults)}, {"bench", assignment.bench},     {"use", assignment.use}};
}

RankAssignment rank_assignment_from_json(const Json& json) {
  return {job_from_json(json.at("job")), json.at("folder"), json.at("attempt"), json.at("started"), json.at("passive"),
          json.at("snapshots"),          json.at("inject"), json.at("bench"),   json.at("use")};
}

ProcessAssignment read_assignment(Channel& channel, int process, const std::string& host, Timeout timeout) {
  ProcessAssignment assignment{rank_assignment_from_json(Json::parse(channel.get(protocol::job, timeout))), 0, ""};
  assignment.process = process;
  CONVOY_CHECK(process >= 0 && process < static_cast<int>(assignment.job.processes.size()), "process ", process, " of ",
               assignment.job.processes.size());
  assignment.data_address = data_address(assignment.job.config.launch.address, host);
  return assignment;
}

}  // namespace convoy
