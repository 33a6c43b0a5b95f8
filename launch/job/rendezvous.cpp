#include "launch/job/rendezvous.h"

#include <sys/stat.h>
#include <unistd.h>
#include <cstdlib>
#include <set>
#include <utility>

#include "core/base/log.h"
#include "core/control/exit_codes.h"
#include "core/files/files.h"
#include "core/files/limits.h"
#include "launch/job/job_supervisor.h"
#include "launch/job/run_attempt.h"
#include "launch/machine/host_lists.h"

namespace convoy {
namespace {

constexpr size_t longest_address = 4096;

std::string path_of(const std::string& folder, const std::string& job) { return str(folder, "/.rendezvous-", job); }

std::string value_of(const Variables& variables, const char* name) {
  const auto found = variables.find(name);
  return found == variables.end() ? "" : found->second;
}

// Addresses in a URI of mpirun's daemons: "123.0;tcp://10.0.0.5,10.1.0.5:4711;tcp6://[fd00::5]:4712".
std::vector<std::string> addresses_in(const std::string& uri) {
  std::vector<std::string> found;
  for (size_t at = uri.find("://"); at != std::string::npos; at = uri.find("://", at + 1)) {
    const std::string part = uri.substr(at + 3, uri.find(';', at) - at - 3);
    for (std::string address : split(part.substr(0, part.rfind(':')), ',')) {
      if (!address.empty() && address.front() == '[') address = address.substr(1, address.find(']') - 1);
      found.push_back(address);
    }
  }
  return found;
}

// The interface that leads to all hosts; "" if hosts need different ones or if a host has no route.
std::string address_towards_all(const std::vector<std::string>& hosts) {
  std::set<std::string> sources;
  for (const std::string& host : hosts)
    if (!is_here(host)) sources.insert(address_towards(host));
  return sources.size() == 1 ? *sources.begin() : "";
}

// Address towards the other hosts according to the launcher's variables, or "".
std::string launcher_address(const LaunchedAs& as, const Variables& variables) {
  if (as.launcher == Launcher::slurm)
    return address_towards_all(hosts_in_list(value_of(variables, "SLURM_STEP_NODELIST")));
  if (as.launcher == Launcher::torchrun) {
    const std::string local = local_address_of(value_of(variables, "MASTER_ADDR"));
    return is_loopback(local) ? "" : local;
  }
  if (as.launcher != Launcher::open_mpi) return "";
  const std::vector<std::string> local = addresses_in(value_of(variables, "OMPI_MCA_orte_local_daemon_uri"));
  for (const std::string& other : addresses_in(value_of(variables, "OMPI_MCA_orte_hnp_uri"))) {
    const std::string source = address_towards(other);
    if (!source.empty()) return source;
  }
  std::vector<std::string> four;
  for (const std::string& address : local)
    if (address.find(':') == std::string::npos) four.push_back(address);
  return four.size() == 1 ? four.front() : "";
}

}  // namespace

RendezvousFile::RendezvousFile(const std::string& folder, const std::string& job, const ChannelAddress& address)
    : path_(path_of(folder, job)) {
  refuse_writable_by_others(folder);  // creates no file if it refuses
  try {
    make_private_folder(folder);
  } catch (const Error& error) {
    throw Error(Failure::output, error.what());
  }
  refuse_writable_by_others(folder);
  write_whole(path_, to_string(address) + "\n", false, 0600);
}

RendezvousFile::~RendezvousFile() { unlink(path_.c_str()); }

void remove_rendezvous(const std::string& folder, const std::string& job) { unlink(path_of(folder, job).c_str()); }

namespace {

// Nothing if the file does not exist. Error(refused) if another user owns it, or if others may read or write it.
std::optional<ChannelAddress> read_rendezvous(const std::string& folder, const std::string& job) {
  const std::string path = path_of(folder, job);
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) return std::nullopt;
  if (status.st_uid != geteuid() || (status.st_mode & 077) != 0)
    throw Error(Failure::refused, path, ": belongs to another user, or others can read it; remove it and start again");
  const std::string text = read_file_if_any(path, longest_address);
  return text.empty() ? std::nullopt : std::make_optional(channel_address(text.substr(0, text.find('\n'))));
}

}  // namespace

ServingAddress serving_address(const std::string& configured, const LaunchedAs& as, const Variables& variables) {
  if (!configured.empty()) return {configured_address(configured, interfaces_here()), ""};
  if (as.local_size == as.size) return {"127.0.0.1", ""};
  std::vector<Interface> usable;
  for (const Interface& i : interfaces_here())
    if (!i.loopback) usable.push_back(i);
  if (usable.empty()) return {"127.0.0.1", "this host has no network but its loopback: ranks elsewhere cannot join"};
  const std::string found = launcher_address(as, variables);
  if (!found.empty()) return {found, ""};
  std::string note;
  if (usable.size() > 1 && usable[1].address.find(':') == std::string::npos)
    note = str("the control channel listens on ", usable[0].address, ", the first of ", shown(usable),
               "; where other hosts cannot reach it, set launch.address to an address or a network (10.0.0.0/16)");
  return {usable.front().address, note};
}

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
