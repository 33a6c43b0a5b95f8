// `convoy run` started alone: all ranks are children of this process.
#include <cstdio>

#include "core/utf8.h"
#include "launch/agent.h"
#include "launch/exit_codes.h"
#include "launch/networks.h"
#include "launch/run_modes.h"
#include "launch/session.h"
#include "launch/ways.h"

namespace convoy {

namespace {

Ending one_attempt(EventLoop& loop, const PreparedRun& run, const Placed& placed, Attempts& attempts) {
  GangRequest request;
  request.processes = static_cast<int>(placed.job.processes.size());
  request.launch = run.config.launch;
  if (!request.launch.address.empty()) request.address = configured_address(request.launch.address, interfaces_here());

  std::unique_ptr<Session> session;
  Agent agent(loop, {[&](int process, const std::string& line) { session->gang().line(process, line); },
                     [&](int process, const ProcessEnd& end) { session->gang().ended(process, end); }});
  Session::Actions actions;
  actions.on_failure = [&](const Abort& cause) {
    const double grace = cause.kind == Failure::stopped ? 0 : run.config.launch.failure_grace;
    agent.kill_after(std::chrono::milliseconds(static_cast<int64_t>(grace * 1000)));
  };
  session = std::make_unique<Session>(loop, run, attempts, request, actions);
  loop.on_signal([&](int signal) { session->stop(signal); });

  try {
    session->begin(placed);
    const std::string channel = to_string(session->gang().address());
    const Variables variables = without_ranks(run.variables);
    for (int process = 0; process < request.processes; ++process)
      agent.start(process, rank_process(run.rank_program, session->assigned(), process, channel, variables));
  } catch (const Error& error) {
    session->not_begun(error);
    throw;
  }
  loop.run_until([&] { return session->gang().over() && agent.idle(); });
  loop.on_signal([](int) {});
  return session->finish();
}

}  // namespace

int run_here(EventLoop& loop, const PreparedRun& run, const Placed& placed) {
  RunFolder folder = open_run_folder(folder_request(run));
  if (folder.already_done) {
    for (const std::string& note : folder.notes) std::puts(terminal_safe(note).c_str());
    return exit_code::done;
  }
  Placed taken = placed;
  keep_way(run, folder.path, taken);
  Attempts attempts(std::move(folder), restart_rules(run));
  return make_attempts(loop, [&] { return one_attempt(loop, run, taken, attempts); });
}

}  // namespace convoy
