// `convoy run --join RUN`: asks the `convoy` that supervises RUN to add a rank, and waits until the rank takes part.
#include <iostream>
#include <optional>

#include "core/control/exit_codes.h"
#include "core/files/files.h"
#include "core/rank_state/summary.h"
#include "launch/cli/commands.h"
#include "launch/farm/run/farm.h"
#include "launch/job/join_requests.h"

namespace convoy {
namespace {

// Returns the summary of a run that may get a rank. Refuses others.
Json summary_of_running(const std::string& folder) {
  require_folder(folder, "give the run folder of a run, such as runs/gpt");
  const Json summary = read_summary(folder);
  if (!summary.contains("config"))
    throw Error(Failure::command_line, folder, ": is not the run folder of a run",
                summary.contains("pipelines") ? "; to add a pipeline to a farm, type `convoy add`"
                                              : "; `convoy runs` lists the runs in runs/");
  const LockOwner owner = lock_owner(folder);
  const std::string status = summary.value("status", "unfinished");
  if (!owner.held)
    throw Error(Failure::output, folder, ": no process runs it (status: ", status == "running" ? "unfinished" : status,
                "), so no rank can join; start it again with more --ranks");
  if (owner.pid < 0) throw Error(Failure::output, folder, ": runs on another host; type this command there");
  const Json launch = summary["config"].value("launch", Json::object());
  if (launch.value("min_ranks", 0) == 0)
    throw Error(Failure::config, folder, ": runs without launch.min_ranks, so its ranks cannot change; start it again ",
                "with --set launch.min_ranks=1");
  return summary;
}

}  // namespace

int join_command(const std::string& run) {
  const std::string folder = absolute_path(run);
  const Json summary = summary_of_running(folder);
  refuse_foreign(folder, "run");
  const double limit = summary["config"]["launch"].value("rendezvous", LaunchConfig().rendezvous) + 30;
  const std::string token = ask_to_join(folder);
  std::optional<JoinAnswer> answer;
  const Answer waited =
      wait_for_answer(folder, limit, [&] { return (answer = take_join_answer(folder, token)).has_value(); });
  withdraw_join(folder, token, !lock_owner(folder).held);
  if (waited == Answer::ended)
    throw Error(Failure::output, folder,
                ": the run ended before the rank took part; how it ended is in its summary.json");
  if (waited == Answer::late)
    throw Error(Failure::hang, folder, ": no answer within ", limit,
                " s; the process of the run may be stopped, or its host busy: see its output");
  if (answer->exit_code != exit_code::done) {
    std::cerr << run << ": no rank was added: " << answer->text << '\n';
    return answer->exit_code;
  }
  std::cout << run << ": " << answer->text << '\n';
  return exit_code::done;
}

}  // namespace convoy
