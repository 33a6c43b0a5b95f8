#include "launch/machine/environment.h"

#include <netdb.h>
#include <unistd.h>
#include <cctype>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <vector>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/config/node.h"
#include "core/files/limits.h"
#include "launch/machine/host_lists.h"

extern char** environ;

namespace convoy {

// --- Role of this host among the nodes of a job ---

namespace {

// The variables of one platform; "" if it has none for a value.
struct NodePlatform {
  std::string name;
  std::string nodes_variable, node_variable, host_variable, port_variable, ranks_variable;
  bool first_of_list = false;  // the host is the first of a list
};

const std::vector<NodePlatform>& node_platforms() {
  static const std::vector<NodePlatform> all{
      {"Kubeflow", "PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_NPROC_PER_NODE"},
      {"SkyPilot", "SKYPILOT_NUM_NODES", "SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS", "", "", true},
      {"this environment", "NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", ""}};
  return all;
}

constexpr char index_variable[] = "JOB_COMPLETION_INDEX";

std::string value_in(const Variables& variables, const std::string& name) {
  const auto found = variables.find(name);
  return name.empty() || found == variables.end() ? "" : found->second;
}

int count_in(const std::string& name, const std::string& text, int least) {
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || value < least || value > std::numeric_limits<int>::max())
    throw Error(Failure::config, "environment: ", name, "=", printable(text), " is no number from ", least,
                " on; unset it, or correct it");
  return static_cast<int>(value);
}

uint16_t port_in(const std::string& what, const std::string& text, Failure kind) {
  char* end = nullptr;
  const long port = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || port < 1 || port > 65535)
    throw Error(kind, what, ": ", printable(text), " is no port; ports are 1 to 65535");
  return static_cast<uint16_t>(port);
}

// HOST, HOST:PORT, or [ADDRESS]:PORT for IPv6.
void read_rendezvous_option(const std::string& text, NodeRole& role) {
  const auto refuse = [&] {
    throw Error(Failure::command_line, "--rendezvous ", printable(text),
                ": write HOST or HOST:PORT, where HOST is node 0; an IPv6 address is in brackets, [fd00::5]:29500");
  };
  std::string port;
  if (!text.empty() && text.front() == '[') {
    const size_t end = text.find(']');
    if (end == std::string::npos || (end + 1 < text.size() && text[end + 1] != ':')) refuse();
    role.host = text.substr(1, end - 1);
    if (end + 1 < text.size()) port = text.substr(end + 2);
    if (end + 1 < text.size() && port.empty()) refuse();
  } else {
    const size_t colon = text.find(':');
    if (colon != std::string::npos && text.find(':', colon + 1) != std::string::npos) refuse();
    role.host = text.substr(0, colon);
    if (colon != std::string::npos) port = text.substr(colon + 1);
    if (colon != std::string::npos && port.empty()) refuse();
  }
  if (role.host.empty() || role.host.front() == '-') refuse();
  if (!port.empty()) role.port = port_in("--rendezvous", port, Failure::command_line);
}

// "2", or the range "2:2" of an elastic launcher.
int nodes_in(const std::string& name, const std::string& text) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos) return count_in(name, text, 1);
  if (text.substr(0, colon) != text.substr(colon + 1))
    throw Error(Failure::config, "environment: ", name, "=", printable(text),
                " is a range; the number of nodes is fixed, so set ", name, "=", printable(text.substr(colon + 1)));
  return count_in(name, text.substr(colon + 1), 1);
}

std::vector<std::string> words_of(const std::string& list) {
  std::istringstream words(list);
  return {std::istream_iterator<std::string>(words), std::istream_iterator<std::string>()};
}

// Node 0 of an Indexed Job: its pods are NAME-INDEX.SERVICE…, so the name of this host names the others.
std::string first_pod(const std::string& full_name, int index) {
  const size_t dot = full_name.find('.');
  const std::string pod = full_name.substr(0, dot), ending = "-" + std::to_string(index);
  if (pod.size() <= ending.size() || pod.compare(pod.size() - ending.size(), ending.size(), ending) != 0) return "";
  return pod.substr(0, pod.size() - ending.size()) + "-0" + (dot == std::string::npos ? "" : full_name.substr(dot));
}

class RoleReader {
 public:
  RoleReader(const NodeOptions& typed, const Variables& variables, const std::function<std::string()>& full_name)
      : typed_(typed), variables_(variables), full_name_(full_name) {}

  std::optional<NodeRole> role() {
    if (typed_.nodes > 0) take(nodes_, "--nodes", typed_.nodes);
    if (typed_.node >= 0) take(node_, "--node-rank", typed_.node);
    if (!typed_.rendezvous.empty()) read_rendezvous_option(typed_.rendezvous, role_);
    for (const NodePlatform& platform : node_platforms()) read_nodes(platform);
    for (const NodePlatform& platform : node_platforms()) read(platform);
    read_index();
    if (!nodes_.value) return missing_nodes();
    if (*nodes_.value > 1 && !node_.value) missing("--node-rank", "NODE_RANK", "the number of this node, from 0");
    if (node_.value && *node_.value >= *nodes_.value)
      throw Error(failure_of_source(node_.source), source_text(node_.source), "=", *node_.value, ": nodes are 0 to ",
                  *nodes_.value - 1, ", because ", nodes_.source, "=", *nodes_.value);
    role_.nodes = *nodes_.value;
    role_.from = nodes_.source;
    if (role_.nodes == 1) return role_.ranks > 0 ? std::optional<NodeRole>(role_) : std::nullopt;
    if (role_.host.empty()) missing("--rendezvous", "MASTER_ADDR", "the host of node 0");
    role_.node = *node_.value;
    return role_;
  }

 private:
  struct Number {
    std::optional<int> value;
    std::string source;  // option or variable
  };

  static bool is_option(const std::string& source) { return failure_of_source(source) == Failure::command_line; }
  static std::string source_text(const std::string& source) {
    return is_option(source) ? source : "environment: " + source;
  }

  // Options win over variables; two variables must agree.
  void take(Number& known, const std::string& source, int value) {
    if (!known.value) {
      known = {value, source};
    } else if (!is_option(known.source) && *known.value != value) {
      throw Error(Failure::config, "environment: ", source, "=", value, " contradicts ", known.source, "=",
                  *known.value, "; unset the one that does not describe this job, or type --nodes and --node-rank");
    }
  }

  void read_nodes(const NodePlatform& platform) {
    const std::string nodes = value_in(variables_, platform.nodes_variable);
    if (!nodes.empty()) take(nodes_, platform.nodes_variable, nodes_in(platform.nodes_variable, nodes));
  }

  void read(const NodePlatform& platform) {
    // Without a number of nodes the other variables may belong to a launcher of single ranks.
    if (!nodes_.value) return;
    const std::string node = value_in(variables_, platform.node_variable);
    if (!node.empty()) take(node_, platform.node_variable, count_in(platform.node_variable, node, 0));
    if (*nodes_.value > 1) {
      const std::string host = value_in(variables_, platform.host_variable);
      take_host(platform, platform.first_of_list ? first_of(platform, words_of(host)) : host);
      take_port(platform);
    }
    const std::string ranks = value_in(variables_, platform.ranks_variable);
    // These words leave the number to convoy.
    if (!ranks.empty() && ranks != "auto" && ranks != "gpu" && ranks != "cpu")
      role_.ranks = count_in(platform.ranks_variable, ranks, 1);
  }

  std::string first_of(const NodePlatform& platform, const std::vector<std::string>& hosts) const {
    if (hosts.empty()) return "";
    if (typed_.nodes == 0 && hosts.size() != static_cast<size_t>(*nodes_.value))
      throw Error(Failure::config, "environment: ", platform.host_variable, " has ",
                  counted(hosts.size(), "address", "addresses"), ", which contradicts ", nodes_.source, "=",
                  *nodes_.value, "; correct one of them, or type --nodes, --node-rank and --rendezvous");
    return hosts.front();
  }

  void take_host(const NodePlatform& platform, const std::string& host) {
    if (host.empty() || !typed_.rendezvous.empty()) return;
    if (role_.host.empty()) {
      role_.host = host;
      host_source_ = platform.host_variable;
    } else if (role_.host != host) {
      throw Error(Failure::config, "environment: ", platform.host_variable, " names ", printable(host), ", and ",
                  host_source_, " names ", printable(role_.host),
                  "; unset the one that does not describe this job, or type --rendezvous HOST:PORT");
    }
  }

  void take_port(const NodePlatform& platform) {
    const std::string text = value_in(variables_, platform.port_variable);
    if (text.empty() || !typed_.rendezvous.empty()) return;
    const uint16_t port = port_in("environment: " + platform.port_variable, text, Failure::config);
    if (!port_source_.empty() && role_.port != port)
      throw Error(Failure::config, "environment: ", platform.port_variable, "=", port, " contradicts ", port_source_,
                  "=", role_.port, "; unset the one that does not describe this job, or type --rendezvous HOST:PORT");
    role_.port = port;
    port_source_ = platform.port_variable;
  }

  // JOB_COMPLETION_INDEX alone does not make the pods of a Job one run: they may be independent runs.
  void read_index() {
    const std::string index = value_in(variables_, index_variable);
    if (index.empty() || !nodes_.value) return;
    const int value = count_in(index_variable, index, 0);
    take(node_, index_variable, value);
    if (role_.host.empty()) role_.host = first_pod(full_name_(), value);
  }

  std::optional<NodeRole> missing_nodes() {
    if (typed_.any()) missing("--nodes", "NNODES", "the number of nodes");
    return std::nullopt;
  }

  [[noreturn]] void missing(const char* option, const char* variable, const char* what) const {
    const std::string given = nodes_.value ? nodes_.source : typed_.node >= 0 ? "--node-rank" : "--rendezvous";
    throw Error(failure_of_source(given), source_text(given), " is given, but not ", what, "; type ", option,
                ", or set the variable ", variable);
  }

  const NodeOptions& typed_;
  const Variables& variables_;
  const std::function<std::string()>& full_name_;
  NodeRole role_;
  Number nodes_, node_;
  std::string host_source_, port_source_;
};

}  // namespace

std::optional<NodeRole> node_role(const NodeOptions& typed, const Variables& variables,
                                  const std::function<std::string()>& full_name) {
  // Only a rank process has this variable: a `convoy` started in it is a separate run.
  if (!value_in(variables, "CONVOY_PROCESS").empty() && !typed.any()) return std::nullopt;
  return RoleReader(typed, variables, full_name).role();
}

std::string full_host_name() {
  const std::string name = host_name();
  addrinfo hints{};
  hints.ai_flags = AI_CANONNAME;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (name.find('.') != std::string::npos || getaddrinfo(name.c_str(), nullptr, &hints, &found) != 0) return name;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  return found->ai_canonname == nullptr ? name : found->ai_canonname;
}

// --- Launcher that started this process ---

namespace {

class Reader {
 public:
  explicit Reader(const Variables& variables) : variables_(variables) {}

  bool has(const std::string& name) const {
    auto found = variables_.find(name);
    return found != variables_.end() && !found->second.empty();
  }
  std::string text(const std::string& name) const { return has(name) ? variables_.at(name) : ""; }
  bool any(const std::vector<std::string>& names) const { return !those_set(names).empty(); }
  std::vector<std::string> those_set(const std::vector<std::string>& names) const {
    std::vector<std::string> there;
    for (const std::string& name : names)
      if (has(name)) there.push_back(name);
    return there;
  }

  int number(const std::string& name) const {
    const std::string value = text(name);
    char* end = nullptr;
    const long number = std::strtol(value.c_str(), &end, 10);
    if (value.empty() || *end != '\0' || number < 0 || number > std::numeric_limits<int>::max())
      throw Error(Failure::config, "environment: ", name, "=", value,
                  " is not a count; unset it, or start with the launcher");
    return static_cast<int>(number);
  }

  // Throws if some names of a set are present and others are not.
  void complete(const char* set, const std::vector<std::string>& names) const {
    const std::vector<std::string> there = those_set(names);
    std::vector<std::string> missing;
    for (const std::string& name : names)
      if (!has(name)) missing.push_back(name);
    if (!missing.empty())
      throw Error(Failure::config, "environment: ", join(there, ", "), " set, but not ", join(missing, ", "), ": ", set,
                  " sets all of them; set the missing ones, or `unset ", join(there, " "), "`");
  }

 private:
  const Variables& variables_;
};

const std::vector<std::string> convoy_names{"CONVOY_RANK", "CONVOY_WORLD_SIZE", "CONVOY_LOCAL_RANK", "CONVOY_JOB"};
const std::vector<std::string> torchrun_names{"RANK", "WORLD_SIZE", "LOCAL_RANK"};
const std::vector<std::string> open_mpi_names{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                              "OMPI_COMM_WORLD_LOCAL_RANK"};
const std::vector<std::string> slurm_names{"SLURM_JOB_ID",  "SLURM_STEP_ID",        "SLURM_PROCID",
                                           "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"};

std::string file_safe(const std::string& text) {
  std::string safe;
  for (char c : text) safe += std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' ? c : '_';
  return safe;
}

LaunchedAs named(const Reader& read, Launcher launcher, const char* rank, const char* local_rank, const char* size) {
  LaunchedAs as;
  as.launcher = launcher;
  as.rank = read.number(rank);
  as.local_rank = read.number(local_rank);
  as.size = read.number(size);
  as.size_from = size;
  return as;
}

std::optional<LaunchedAs> convoy_variables(const Reader& read) {
  if (!read.any(convoy_names)) return std::nullopt;
  read.complete("convoy", convoy_names);
  LaunchedAs as = named(read, Launcher::convoy, "CONVOY_RANK", "CONVOY_LOCAL_RANK", "CONVOY_WORLD_SIZE");
  as.job = read.text("CONVOY_JOB");
  return as;
}

std::optional<LaunchedAs> torchrun(const Reader& read) {
  if (!read.any(torchrun_names)) return std::nullopt;
  // Kubeflow gives each node RANK and WORLD_SIZE in addition to PET_*, and no local rank.
  if (!read.has("LOCAL_RANK") && (read.has("PET_NNODES") || read.has("NNODES"))) return std::nullopt;
  read.complete("torchrun", {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"});
  LaunchedAs as = named(read, Launcher::torchrun, "RANK", "LOCAL_RANK", "WORLD_SIZE");
  if (read.has("LOCAL_WORLD_SIZE")) as.local_size = read.number("LOCAL_WORLD_SIZE");
  // A rendezvous on the loopback interface means one host.
  const std::string master = read.text("MASTER_ADDR");
  if (as.local_size == 0 && (master == "localhost" || master.rfind("127.", 0) == 0)) as.local_size = as.size;
  const int port = read.number("MASTER_PORT");
  if (port < 1 || port > 65535)
    throw Error(Failure::config, "environment: MASTER_PORT=", port, " is no port; ports are 1 to 65535");
  // torchrun's default run id is "none" for every job; the master's port distinguishes jobs.
  as.job = str(read.text("TORCHELASTIC_RUN_ID"), "-", master, "-", read.text("MASTER_PORT"), "-",
               read.text("TORCHELASTIC_RESTART_COUNT"));
  return as;
}

std::optional<LaunchedAs> open_mpi(const Reader& read) {
  if (!read.any(open_mpi_names)) return std::nullopt;
  read.complete("mpirun", open_mpi_names);
  LaunchedAs as =
      named(read, Launcher::open_mpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE");
  if (read.has("OMPI_COMM_WORLD_LOCAL_SIZE")) as.local_size = read.number("OMPI_COMM_WORLD_LOCAL_SIZE");
  for (const char* name : {"OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri"})
    if (as.job.empty()) as.job = read.text(name);
  as.pmi = true;
  return as;
}

// True for a task of the step of srun. Slurm gives step numbers from 0xfffffff0 on to the batch script, an interactive
// shell and the extern step, which are no ranks.
bool slurm_task(const Reader& read) {
  if (!read.has("SLURM_STEP_ID")) return false;
  const std::string value = read.text("SLURM_STEP_ID");
  char* end = nullptr;
  const unsigned long step = std::strtoul(value.c_str(), &end, 10);
  if (*end != '\0')
    throw Error(Failure::config, "environment: SLURM_STEP_ID=", value, " is no number; unset it, or start by srun");
  return step < 0xfffffff0UL;
}

std::optional<LaunchedAs> slurm(const Reader& read) {
  if (!slurm_task(read)) return std::nullopt;
  const char* size = read.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  read.complete("srun", {"SLURM_STEP_ID", "SLURM_PROCID", size, "SLURM_LOCALID"});
  LaunchedAs as = named(read, Launcher::slurm, "SLURM_PROCID", "SLURM_LOCALID", size);
  if (read.text("SLURM_STEP_NUM_NODES") == "1") as.local_size = as.size;
  const char* job = read.has("SLURM_JOB_ID") ? "SLURM_JOB_ID" : "SLURM_JOBID";
  as.job = str(read.text(job), ".", read.text("SLURM_STEP_ID"), ".", read.text("SLURM_RESTART_COUNT"));
  as.pmi = read.has("PMIX_RANK");
  return as;
}

void agree(const LaunchedAs& chosen, const char* chosen_rank, const Reader& read, const char* rank, const char* size) {
  auto fail = [&](const char* what, int ours, const char* other) {
    throw Error(Failure::config, "environment: ", what, "=", ours, " contradicts ", other, "=", read.text(other),
                ": two launchers name this process differently; unset the variables of the one that "
                "did not start it");
  };
  if (rank != nullptr && read.has(rank) && read.number(rank) != chosen.rank) fail(chosen_rank, chosen.rank, rank);
  if (size != nullptr && read.has(size) && read.number(size) != chosen.size)
    fail(chosen.size_from.c_str(), chosen.size, size);
}

void check_agreement(const LaunchedAs& as, const Reader& read) {
  const bool elastic = read.has("TORCHELASTIC_RUN_ID");
  switch (as.launcher) {
    case Launcher::torchrun:
      // A real torchrun may itself be a task of srun or mpirun, one per host; hand-made variables must agree.
      if (elastic) break;
      agree(as, "RANK", read, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
      if (slurm_task(read)) agree(as, "RANK", read, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS");
      break;
    case Launcher::open_mpi:
      // Slurm's variables are not compared: on other hosts they belong to mpirun's daemon.
      agree(as, "OMPI_COMM_WORLD_RANK", read, "PMIX_RANK", nullptr);
      break;
    case Launcher::slurm:
      agree(as, "SLURM_PROCID", read, "PMIX_RANK", nullptr);
      break;
    case Launcher::convoy:
      // If these variables are given to mpirun, every process gets the same rank. A task of srun may start several
      // ranks.
      agree(as, "CONVOY_RANK", read, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
      break;
    default:
      break;
  }
}

void check_ranges(const LaunchedAs& as) {
  if (as.size < 1 || as.rank >= as.size)
    throw Error(Failure::config, "environment: ", name_of(as.launcher), " gives rank ", as.rank, " of ", as.size, " (",
                as.size_from, "): a rank must be below the size");
  if (as.local_rank > as.rank || (as.local_size > 0 && (as.local_rank >= as.local_size || as.local_size > as.size)))
    throw Error(Failure::config, "environment: ", name_of(as.launcher), " gives local rank ", as.local_rank, " of ",
                as.local_size, " for rank ", as.rank, " of ", as.size, ": they contradict each other");
}

// The Slurm process for which the variables were made, if it is none of this run's ranks.
std::string slurm_origin(const Reader& read) {
  const std::string job = read.text("SLURM_JOB_ID");
  if (slurm_task(read))
    return str("task ", read.text("SLURM_PROCID"), " of step ", job, ".", read.text("SLURM_STEP_ID"),
               ", in which this was started");
  if (read.has("SLURM_PROCID")) return str("the batch script or shell of Slurm job ", job);
  return str("the allocation of Slurm job ", job);
}

std::vector<std::string> inherited_by(const LaunchedAs& as, const Reader& read) {
  std::vector<std::string> notes;
  auto note = [&](const std::vector<std::string>& names, const std::string& origin) {
    const std::vector<std::string> there = read.those_set(names);
    if (!there.empty()) notes.push_back(str("environment: inherited and ignored: ", join(there, ", "), ": ", origin));
  };
  const std::string chosen = str("; the ranks are those of ", name_of(as.launcher));
  const bool alone = as.launcher == Launcher::none;
  if (as.launcher != Launcher::slurm && read.has("SLURM_JOB_ID"))
    note(slurm_names,
         str("of ", slurm_origin(read),
             alone ? "; this command starts its ranks itself, and `srun convoy run …` starts them in the allocation"
                   : chosen));
  if (as.launcher == Launcher::convoy || as.launcher == Launcher::torchrun)
    note(open_mpi_names, str("of mpirun's rank, in which this was started", chosen));
  if (as.launcher == Launcher::convoy)
    note(torchrun_names, str("of torchrun's rank, in which this was started", chosen));
  return notes;
}

}  // namespace

const char* name_of(Launcher launcher) {
  static const char* const names[] = {"nothing", "CONVOY_*", "torchrun", "mpirun", "srun"};  // in the enum's order
  return names[static_cast<size_t>(launcher)];
}

LaunchedAs launched_as(const Variables& variables) {
  const Reader read(variables);
  // Only a rank process has this variable: a `convoy` started in it is a separate run.
  if (read.has("CONVOY_PROCESS")) {
    LaunchedAs nested = launched_as(without_ranks(variables));
    nested.inherited.insert(nested.inherited.begin(),
                            str("environment: inherited and ignored: CONVOY_PROCESS, CONVOY_RANK and its launcher's "
                                "variables: of rank ",
                                read.text("CONVOY_RANK"), " of another run, in which this one was started"));
    return nested;
  }
  LaunchedAs as;
  for (auto* source : {convoy_variables, torchrun, open_mpi, slurm})
    if (auto found = source(read)) {
      as = *found;
      break;
    }
  constexpr const char* how =
      "; start with mpirun or srun, or set CONVOY_RANK, CONVOY_LOCAL_RANK, CONVOY_WORLD_SIZE and CONVOY_JOB for each "
      "process";
  if (as.launcher == Launcher::none && read.has("PMIX_RANK"))
    throw Error(Failure::config, "environment: PMIX_RANK is set, but no variable gives the number of ranks", how);
  if (as.launcher == Launcher::none && read.has("PMI_RANK"))
    throw Error(Failure::config, "environment: PMI_RANK is set, by the launcher of an MPI that is not Open MPI", how);
  as.pmi = as.pmi || read.has("PMIX_RANK");
  as.channel = read.text("CONVOY_CHANNEL");
  if (as.launcher != Launcher::none) {
    check_agreement(as, read);
    check_ranges(as);
    as.job = file_safe(as.job);
  } else if (!as.channel.empty()) {
    throw Error(Failure::config,
                "environment: CONVOY_CHANNEL set without the rank of a launcher; only `convoy run` sets it; "
                "`unset CONVOY_CHANNEL`");
  }
  as.inherited = inherited_by(as, read);
  return as;
}

Variables current_variables() {
  Variables all;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) all[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return all;
}

Variables without_ranks(const Variables& variables) {
  static const char* const prefixes[] = {
      // Open MPI
      "OMPI_COMM_WORLD_", "OMPI_UNIVERSE_", "OMPI_APP_CTX", "OMPI_FIRST_", "OMPI_NUM_APP", "OMPI_FILE_", "OMPI_ARGV",
      "OMPI_COMMAND", "OMPI_MCA_ess_", "OMPI_MCA_pmix", "OMPI_MCA_orte_hnp", "OMPI_MCA_orte_local",
      "OMPI_MCA_orte_num_", "OMPI_MCA_orte_app", "OMPI_MCA_orte_ess", "OMPI_MCA_orte_bound", "OMPI_MCA_orte_jobfam",
      "OMPI_MCA_orte_precond", "OMPI_MCA_orte_launch", "OMPI_MCA_initial_wdir",
      // PMI, Slurm
      "PMIX_", "PMI_", "PMI2_", "SLURM_STEP", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_TASK_PID", "SLURM_GTIDS",
      "SLURM_NODEID", "SLURM_SRUN_", "SLURM_LAUNCH_", "SLURM_PMIX",
      // torchrun
      "TORCHELASTIC_"};
  static const char* const names[] = {
      // torchrun
      "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
      "ROLE_NAME", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
      // convoy
      "CONVOY_RANK", "CONVOY_WORLD_SIZE", "CONVOY_LOCAL_RANK", "CONVOY_JOB", "CONVOY_CHANNEL", "CONVOY_PROCESS",
      "CONVOY_SECRET"};
  Variables kept;
  for (const auto& variable : variables) {
    bool drop = false;
    for (const char* prefix : prefixes) drop = drop || begins_with(variable.first, prefix);
    for (const char* name : names) drop = drop || variable.first == name;
    if (!drop) kept.insert(variable);
  }
  return kept;
}

}  // namespace convoy
