#include "launch/farm/farm.h"

#include <cstdio>
#include <iostream>
#include <map>

#include "core/inject/fault.h"
#include "core/text.h"
#include "core/utf8.h"
#include "launch/exit_codes.h"
#include "launch/farm/claims.h"
#include "launch/farm/metric_check.h"
#include "launch/farm/slots.h"
#include "launch/farm/supervisor.h"
#include "launch/mps.h"
#include "launch/topology.h"

namespace convoy {
namespace {

void refuse_what_is_for_one_run(const FarmRun& run) {
  if (!run.arguments.hosts.empty())
    throw Error(
        Failure::command_line,
        "--hosts is for one run; a farm over several hosts is started inside one mpirun or srun, whose ranks are its "
        "slots");
  if (run.arguments.ranks > 0)
    throw Error(Failure::command_line, "--ranks is for one run; give the pipelines launch.ranks, or max_parallel");
  for (const std::string& fault : run.arguments.faults) {
    const size_t slash = fault.find('/');
    std::vector<std::string> names;
    bool known = false;
    for (const Pipeline& pipeline : run.farm.pipelines) {
      names.push_back(pipeline.name);
      known = known || pipeline.name == fault.substr(0, slash);
    }
    if (slash == std::string::npos || !known)
      throw Error(Failure::command_line, str("--inject ", fault, ": of which pipeline? Write NAME/FAULT, such as ",
                                             names.front(), "/kill@step=50"));
    faults_from_texts({fault.substr(slash + 1)});
  }
}

// Of the GPUs that pipelines have a `share` of.
void tell_shared_gpus(FarmRun& run) {
  std::map<int, std::vector<std::string>> sharers;
  for (const Pipeline& pipeline : run.farm.pipelines)
    for (const int gpu : pipeline.terms.gpu_list) sharers[gpu].push_back(pipeline.name);
  for (const auto& [gpu, names] : sharers)
    if (names.size() > 1)
      run.warnings.push_back(
          shared_gpu_note(gpu, host_name(), "pipelines " + join(names, ", "), mps_folder(run.variables)));
}

int run_alone(FarmRun& run) {
  Yard yard = yard_of(this_host({true, false}));
  std::vector<ConfigError> mistakes = run.mistakes;
  for (const ConfigError& mistake : check_claims(run.farm, yard, rank_program())) mistakes.push_back(mistake);
  refuse_all(mistakes);
  if (const auto mistake = metric_mistake(run.farm, run.metric_mark, rank_program())) throw *mistake;
  tell_shared_gpus(run);
  RunFolder folder = open_run_folder(farm_folder(run));
  if (folder.already_done) {
    for (const std::string& note : folder.notes) std::puts(terminal_safe(note).c_str());
    return exit_code::done;
  }
  EventLoop loop;
  FarmSupervisor supervisor(loop, run, std::move(folder), std::move(yard));
  const auto places = make_local_places(loop, run.variables, supervisor.events());
  loop.on_signal([&](int signal) { supervisor.stop(signal); });
  supervisor.start(*places);
  loop.run_until([&] { return supervisor.over(); });
  loop.on_signal([](int) {});
  return supervisor.finish();
}

}  // namespace

FolderRequest farm_folder(const FarmRun& run) {
  FolderRequest request;
  request.output = run.arguments.output;
  request.name = run.name;
  request.resume = "auto";
  request.resolved = run.resolved;
  request.grows = run.grows;
  return request;
}

int run_farm(FarmRun run) {
  if (run.mistakes.empty()) refuse_what_is_for_one_run(run);
  if (run.as.launcher == Launcher::none) return run_alone(run);
  if (!run.mistakes.empty()) {
    // Of the machines nothing is known before the slots have met, which they will not.
    for (const ConfigError& mistake : check_anywhere(run.farm, rank_program())) run.mistakes.push_back(mistake);
    refuse_all(run.mistakes);
  }
  return run_in_slots(run);
}

}  // namespace convoy
