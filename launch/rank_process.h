// What a `convoy-rank` is started with, under every launcher.
#pragma once
#include <string>

#include "core/plan.h"
#include "launch/process.h"

namespace convoy {

// As the one who serves gives it to ranks and agents, under protocol::job.
struct Assigned {
  Job job;
  std::string folder;  // absolute
  int attempt = 0;
  double started = 0;                    // unix seconds
  bool passive = false;                  // cores are shared: waiting threads must not spin
  Json snapshots;                        // null, or what `convoy verify` asks of the ranks (launch/rank/snapshots.h)
  std::vector<std::string> faults = {};  // of --inject, as written
  Json bench = {};  // null, or what `convoy bench` asks of them instead of training (launch/rank/bench.h)
};
Json to_json(const Assigned& assigned);
Assigned assigned_from_json(const Json& json);

// Path of the rank program, which stands beside `convoy`; throws CannotExecute, so that it is said before rendezvous.
std::string rank_program();

ProcessStart rank_process(const std::string& program, const Assigned& assigned, int process, const std::string& channel,
                          Variables environment);

}  // namespace convoy
