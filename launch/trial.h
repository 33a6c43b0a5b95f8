// Which way a training goes where its configuration leaves that open (strategies/parts/members/catalogue.h): each way that is possible here is
// started for real, as ranks placed as they would be, and times a few of the training's steps; the fastest is kept.
//
// Ways that come to the same ranks, processes and cores are one. What was found stays in the run's folder (ways.json) and in
// summary.json (`ways`), so that a run that goes on keeps its way. A trial trains a model of its own and leaves nothing of it.
// Threads: the event loop's.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "launch/event_loop.h"
#include "launch/prepare.h"

namespace convoy {

// One way as it would be placed here.
struct TriedWay {
  std::string name;
  std::optional<Placed> placed;  // none: it is not tried
  std::string left_out;          // why; "" where it is tried
  double seconds = -1;           // a step; -1: not measured
};

// The ways of the configuration, each planned for this host, or why not. Empty: nothing is left open.
std::vector<TriedWay> planned_ways(const PreparedRun& run);

// The fastest of those that were measured; -1: none was.
int fastest_of(const std::vector<TriedWay>& ways);

// {taken, because, tried: [{way, ranks, processes, seconds_per_step or left_out}]}, as summary.json has it.
Json choice_json(const std::vector<TriedWay>& ways, const std::string& taken, const std::string& because);

// Puts the run's way into `placed`, by a trial where several are possible and the folder does not know better; says what was
// measured. An exit code where the command is to end now: it was asked to stop.
std::optional<int> settle_way(EventLoop& loop, const PreparedRun& run, const std::string& folder, Placed& placed);

// What there is to say of a run's way: what settle_way left in its folder, else why nothing was measured; null where nothing was
// left open.
Json choice_of(const PreparedRun& run, const std::string& folder, const Job& job);

}  // namespace convoy
