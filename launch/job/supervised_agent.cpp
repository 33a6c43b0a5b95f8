#include "launch/job/supervised_agent.h"

#include <cstdlib>
#include <utility>

#include "core/base/log.h"
#include "launch/job/job_supervisor.h"
#include "launch/job/rendezvous.h"
#include "launch/job/run_attempt.h"
#include "launch/machine/networks.h"
#include "launch/process/exit_codes.h"

namespace convoy {

SupervisedAgent::SupervisedAgent(EventLoop& loop, const Host& host, Search search)
    : loop_(loop), host_(host), search_(std::move(search)), tasks_(loop) {}

int SupervisedAgent::run() {
  loop_.on_signal([this](int signal) { signalled(signal); });
  if (stays_as_parent(search_.as.launcher)) parent_ = std::make_unique<ParentWatch>(loop_, [this] { launcher_gone(); });
  look_for_supervisor();
  loop_.run_until([this] { return code_.has_value() && idle(); });
  return *code_;
}

// Retries until the time limit for rendezvous: the file may be missing, or belong to a job that was killed.
void SupervisedAgent::look_for_supervisor() {
  if (code_) return;
  const LaunchedAs& as = search_.as;
  std::string problem =
      str("no ", search_.folder, "/.rendezvous-", as.job, " appeared; do all ranks share the folder of --output?");
  try {
    const auto address = as.channel.empty() ? read_rendezvous(search_.folder, as.job) : channel_address(as.channel);
    if (address) {
      problem = str("the supervisor does not answer on ", address->host, " port ", address->port, "; ", host_.name,
                    " has ", shown(interfaces_here()), "; launch.address names another address or network");
      channel_ = connect(*address);
      address_ = to_string(*address);
      channel_->on_lost([this] { tasks_.post([this] { supervisor_gone(); }); });
      channel_->watch(job_topic::exit_code, [this](const std::string&, const std::string& value) {
        tasks_.post([this, value] { job_ended(std::atoi(value.c_str())); });
      });
      return join();
    }
  } catch (const CommError& error) {
    problem = error.what();  // not served yet, no longer served, or another job's
  } catch (const Error& error) {
    if (error.kind() != Failure::rendezvous) throw;
    problem = error.what();
  }
  const double waited = seconds_since(started_);
  if (waited > search_.limit) {
    log::error(str(here(), ": after ", human_seconds(search_.limit), " (launch.rendezvous): ", problem));
    code_ = exit_code::rendezvous;
    return;
  }
  loop_.after(std::chrono::milliseconds(waited < 5 ? 10 : 100), [this] { look_for_supervisor(); });
}

}  // namespace convoy
