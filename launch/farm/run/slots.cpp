#include "launch/farm/run/farm.h"

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <map>

#include "core/base/text.h"
#include "core/control/channel.h"
#include "core/control/exit_codes.h"
#include "core/rank_state/summary.h"
#include "launch/farm/config/farm.h"
#include "launch/farm/run/local_launcher.h"
#include "launch/farm/run/supervisor.h"
#include "launch/job/job_supervisor.h"
#include "launch/job/rendezvous.h"
#include "launch/job/run_attempt.h"
#include "launch/machine/topology.h"
#include "launch/process/orphan_guard.h"

namespace convoy {
namespace {

using std::chrono::milliseconds;

// Topics between the farm's supervisor and the slot agents, in addition to job_topic::join and ::exit_code.
namespace farm_topic {
constexpr char commands[] = "farm/commands/";  // + SLOT/NUMBER: {start: launch spec} | {stop: job} | {kill: job}
constexpr char started[] = "farm/started";     // {job, pid}
constexpr char line[] = "farm/line";           // {job, line}
constexpr char ended[] = "farm/ended";         // {job, code, signal, used}
constexpr char samples[] = "farm/samples";     // [sample, …]
constexpr char over[] = "farm/over";           // {job, what}
constexpr char refused[] = "farm/refused";     // {job, exit_code, message}
}  // namespace farm_topic

std::string commands_of(int slot) { return str(farm_topic::commands, slot, "/"); }

// Slot 0 is this process; the others receive commands over the control channel.
class SlotLauncher : public PipelineLauncher {
 public:
  SlotLauncher(PipelineLauncher& local, Channel& channel) : local_(local), channel_(channel) {}

  void start(int slot, const LaunchSpec& spec) override {
    slots_[spec.job] = slot;
    if (slot == 0) return local_.start(slot, spec);
    send(slot, {{"start", spec}});
  }
  void ask_to_stop(int job) override {
    if (slots_.at(job) == 0) return local_.ask_to_stop(job);
    send(slots_.at(job), {{"stop", job}});
  }
  void kill(int job) override {
    if (slots_.at(job) == 0) return local_.kill(job);
    send(slots_.at(job), {{"kill", job}});
  }
  // Jobs whose last start was on this slot.
  std::vector<int> jobs_of(int slot) const {
    std::vector<int> jobs;
    for (const auto& [job, where] : slots_)
      if (where == slot) jobs.push_back(job);
    return jobs;
  }

 private:
  void send(int slot, const Json& command) {
    channel_.set(commands_of(slot) + std::to_string(number_++), command.dump());
  }

  PipelineLauncher& local_;
  Channel& channel_;
  std::map<int, int> slots_;  // by job: slot of its last start
  int64_t number_ = 0;
};

class SlotSupervisor {
 public:
  SlotSupervisor(EventLoop& loop, FarmRun& run)
      : loop_(loop), run_(run), tasks_(loop), joined_(static_cast<size_t>(run.as.size)) {
    // Constructed before the channel starts threads. Sends no events before the first start.
    local_ = std::make_unique<LocalLauncher>(loop, run.variables, events_);
  }
  ~SlotSupervisor() {
    launcher_.reset();
    local_.reset();
    supervisor_.reset();
    channel_.reset();
    server_.reset();
  }

  // The slots join in the farm's folder, so it exists before the checks on the cluster. Removes it for a farm that was
  // refused, unless it contains files.
  void remove_empty_folder() const {
    std::error_code none;
    if (created_folder_.empty()) return;
    std::filesystem::remove(created_folder_ + "/logs", none);
    std::filesystem::remove(created_folder_, none);
  }

  int run() {
    serve();
    RunFolder folder;
    try {
      folder = open_run_folder(farm_folder(run_));
    } catch (const Error& error) {
      dismiss_agents(exit_code_of(error.kind()));
      throw;
    }
    if (folder.attempt == 0 && !folder.continued && !folder.already_done) created_folder_ = folder.path;
    // Written after the folder is open: open_run_folder() removes rendezvous files of killed runs.
    const RendezvousFile file(requested_folder(farm_folder(run_)), run_.as.job, server_->address());
    if (reported_done(folder)) return publish_when_joined(exit_code::done);
    joined_[0] = this_host({true, true});
    loop_.on_signal([this](int signal) { stop(signal); });
    if (stays_as_parent(run_.as.launcher)) parent_ = std::make_unique<ParentWatch>(loop_, [this] { launcher_gone(); });
    if (const auto code = wait_for_agents(folder)) return publish(*code);
    try {
      begin(std::move(folder));
    } catch (const Error& error) {
      publish(exit_code_of(error.kind()));
      throw;
    }
    loop_.run_until([this] { return supervisor_->over(); });
    loop_.on_signal([](int) {});
    return publish(supervisor_->finish());
  }

 private:
  void serve() {
    ChannelServerOptions options;
    const ServingAddress serving = serving_address(run_.launch.address, run_.as, run_.variables);
    options.interface_address = serving.address;
    options.job = run_.as.job;
    options.heartbeat = to_milliseconds(run_.launch.heartbeat);
    if (!serving.note.empty()) run_.warnings.push_back(serving.note);
    ChannelServerEvents events;
    events.on_post = [this](int participant, const std::string& topic, const Json& body) {
      tasks_.post([this, participant, topic, body] { posted(-1 - participant, topic, body); });
    };
    events.on_leave = [this](int participant, const std::string&, bool) {
      tasks_.post([this, participant] {
        left(-1 - participant, "disconnected without a reason: it was killed, or its host is down");
      });
    };
    events.on_stalled = [this](int participant, const std::string&, double seconds) {
      tasks_.post([this, participant, seconds] {
        left(-1 - participant, str("has sent no heartbeat for ", human_seconds(seconds)));
      });
    };
    events.on_abort = [](const Abort&) {};
    server_ = serve_channel(options, events);
    channel_ =
        connect_channel(server_->address(), -1 - run_.as.size, "convoy", to_milliseconds(run_.launch.rendezvous));
  }

  bool all_joined() const {
    return std::none_of(joined_.begin(), joined_.end(), [](const auto& host) { return !host; });
  }

  // Waits for all slots. Returns nothing once all have joined, else the exit code after writing the summary.
  std::optional<int> wait_for_agents(const RunFolder& folder) {
    loop_.run_until([this] { return stop_signal_ != 0 || launcher_gone_ || all_joined(); },
                    to_milliseconds(run_.launch.rendezvous));
    if (all_joined() && stop_signal_ == 0 && !launcher_gone_) return std::nullopt;
    std::vector<std::string> missing;
    for (size_t i = 0; i < joined_.size(); ++i)
      if (!joined_[i]) missing.push_back(std::to_string(i));
    FarmEnd end{exit_code::rendezvous, name_of(Failure::rendezvous),
                str("missing after ", human_seconds(run_.launch.rendezvous), " (launch.rendezvous): slot ",
                    join(missing, ", "), " of ", joined_.size(), "; look for them in the launcher's output")};
    if (stop_signal_ != 0)
      end = {exit_code::stopped, name_of(Failure::stopped), "asked to stop before anything started"};
    std::cerr << "convoy: " << end.message << "; " << folder.path << "/summary.json\n";
    write_summary(folder.path, farm_summary(run_, {}, folder.attempt, run_.as.size, 0, &end));
    return end.exit_code;
  }

  void begin(RunFolder folder) {
    std::vector<Host> agents;
    for (const auto& host : joined_) agents.push_back(*host);
    Cluster cluster = cluster_of(agents);
    refuse_all(check_requests(run_.farm, cluster, rank_program()));
    if (const auto mistake = metric_mistake(run_.farm, run_.metric_location, rank_program())) throw *mistake;
    supervisor_ = std::make_unique<FarmSupervisor>(loop_, run_, std::move(folder), std::move(cluster));
    events_ = supervisor_->events();
    launcher_ = std::make_unique<SlotLauncher>(*local_, *channel_);
    supervisor_->start(*launcher_);
  }

  void posted(int slot, const std::string& topic, const Json& body) {
    if (topic == job_topic::join) {
      if (slot >= 0 && slot < static_cast<int>(joined_.size()))
        joined_[static_cast<size_t>(slot)] = body.at("host").get<Host>();
    } else if (topic == protocol::signalled) {
      // Every agent reports the same signal.
      if (stop_signal_ == 0) stop(body.at("signal").get<int>());
    } else if (!supervisor_) {
      return;
    } else if (topic == farm_topic::started) {
      events_.on_started(body.at("job").get<int>(), body.at("pid").get<pid_t>());
    } else if (topic == farm_topic::line) {
      events_.on_line(body.at("job").get<int>(), body.at("line").get<std::string>());
    } else if (topic == farm_topic::ended) {
      events_.on_end(body.at("job").get<int>(), {body.at("code").get<int>(), body.at("signal").get<int>()},
                     resource_sample(body.at("used")));
    } else if (topic == farm_topic::samples) {
      std::vector<ResourceSample> samples;
      for (const Json& sample : body) samples.push_back(resource_sample(sample));
      events_.on_samples(samples);
    } else if (topic == farm_topic::over) {
      events_.on_over_limit(body.at("job").get<int>(), body.at("what").get<std::string>());
    } else if (topic == farm_topic::refused) {
      events_.on_refused(body.at("job").get<int>(), body.at("exit_code").get<int>(),
                         body.at("message").get<std::string>());
    }
  }

  // A launcher ends the job with the first rank that fails. So all pipelines end here; the same command resumes them.
  void left(int slot, const std::string& why) {
    if (slot < 0 || slot >= static_cast<int>(joined_.size()) || !supervisor_ || published_) return;
    const std::string& host = joined_[static_cast<size_t>(slot)]->name;
    // A launcher that requests a stop also kills slots that end too slowly.
    if (stop_signal_ == 0) abort(str("the convoy of slot ", slot, " on ", host, " ", why), host);
    // No agent reports the ends of these jobs.
    for (int job : launcher_->jobs_of(slot)) events_.on_end(job, {0, SIGKILL}, {});
  }

  void abort(const std::string& why, const std::string& host = "") {
    supervisor_->abort({exit_code::rendezvous, name_of(Failure::rendezvous), why, host}, true);
  }

  void stop(int signal) {
    stop_signal_ = signal;
    if (supervisor_) supervisor_->stop(signal);
  }

  void launcher_gone() {
    launcher_gone_ = true;
    if (!supervisor_) return;
    if (stop_signal_ != 0) return supervisor_->stop(SIGQUIT);
    abort(str(name_of(run_.as.launcher), ", which started the slots, was killed or has ended"));
  }

  // Ends the other agents with `code`; mpirun does that itself.
  void dismiss_agents(int code) {
    if (run_.as.launcher == Launcher::open_mpi) return;
    try {
      const RendezvousFile file(requested_folder(farm_folder(run_)), run_.as.job, server_->address());
      publish_when_joined(code);
    } catch (const Error&) {
      // Without the file they fail with the same error, or by their time limit for the rendezvous.
    }
  }

  // Publishes the exit code of a farm that does not start, once all agents have joined. After an error it waits for
  // them for 5 s only; an agent that starts later then waits for its time limit.
  int publish_when_joined(int code) {
    joined_[0] = Host{};
    const milliseconds limit = code == exit_code::done ? to_milliseconds(run_.launch.rendezvous) : milliseconds(5000);
    loop_.run_until([this] { return all_joined() || stop_signal_ != 0 || launcher_gone_; }, limit);
    return publish(code);
  }

  int publish(int code) {
    published_ = true;
    channel_->set(job_topic::exit_code, std::to_string(code));
    // Gives the agents a moment to receive it before the channel closes.
    loop_.run_until([] { return false; }, milliseconds(300));
    return code;
  }

  EventLoop& loop_;
  FarmRun& run_;
  OwnedTasks tasks_;
  std::vector<std::optional<Host>> joined_;  // by slot
  std::unique_ptr<ParentWatch> parent_;
  std::unique_ptr<ChannelServer> server_;
  std::shared_ptr<Channel> channel_;
  std::unique_ptr<FarmSupervisor> supervisor_;
  LauncherEvents events_;
  std::unique_ptr<PipelineLauncher> local_;
  std::unique_ptr<SlotLauncher> launcher_;
  int stop_signal_ = 0;
  bool launcher_gone_ = false, published_ = false;
  std::string created_folder_;  // folder that this farm created, else ""
};

class SlotAgent : public SupervisedAgent {
 public:
  SlotAgent(EventLoop& loop, const FarmRun& run, const Host& host)
      : SupervisedAgent(loop, host,
                        {run.as, requested_folder(farm_folder(run)), run.launch.rendezvous, str("slot ", run.as.rank)}),
        events_(events()),
        launcher_(loop, run.variables, events_) {}

 private:
  LauncherEvents events() {
    LauncherEvents events;
    events.on_started = [this](int job, pid_t pid) {
      channel_->post(farm_topic::started, {{"job", job}, {"pid", pid}});
    };
    events.on_refused = [this](int job, int code, const std::string& message) {
      channel_->post(farm_topic::refused, {{"job", job}, {"exit_code", code}, {"message", message}});
    };
    events.on_line = [this](int job, const std::string& line) {
      channel_->post(farm_topic::line, {{"job", job}, {"line", line}});
    };
    events.on_end = [this](int job, const ProcessEnd& end, const ResourceSample& used) {
      channel_->post(farm_topic::ended,
                     {{"job", job}, {"code", end.code}, {"signal", end.signal}, {"used", to_json(used)}});
    };
    events.on_samples = [this](const std::vector<ResourceSample>& samples) {
      Json all = Json::array();
      for (const ResourceSample& sample : samples) all.push_back(to_json(sample));
      channel_->post(farm_topic::samples, all);
    };
    events.on_over_limit = [this](int job, const std::string& what) {
      channel_->post(farm_topic::over, {{"job", job}, {"what", what}});
    };
    return events;
  }

  std::shared_ptr<Channel> connect(const ChannelAddress& address) override {
    return connect_channel(address, -1 - search_.as.rank, "convoy of " + search_.who, milliseconds(500));
  }

  void join() override {
    channel_->watch(commands_of(search_.as.rank), [this](const std::string& key, const std::string& value) {
      tasks_.post([this, key, value] {
        channel_->erase(key);
        execute(Json::parse(value));
      });
    });
    channel_->post(job_topic::join, {{"process", search_.as.rank}, {"host", host_}});
  }

  void execute(const Json& command) {
    if (code_) return;
    if (command.contains("stop")) return launcher_.ask_to_stop(command["stop"].get<int>());
    if (command.contains("kill")) return launcher_.kill(command["kill"].get<int>());
    launcher_.start(search_.as.rank, command.at("start").get<LaunchSpec>());
  }

  void signalled(int signal) override {
    if (channel_) return channel_->post(protocol::signalled, {{"signal", signal}});
    code_ = exit_code::stopped;
  }
  void launcher_gone() override { job_ended(exit_code::rendezvous); }
  void supervisor_gone() override { job_ended(exit_code::rendezvous); }
  void job_ended(int code) override {
    if (!code_) code_ = code;
    launcher_.kill_all();
  }
  bool idle() const override { return launcher_.idle(); }

  const LauncherEvents events_;
  LocalLauncher launcher_;
};

}  // namespace

int run_in_slots(FarmRun& run) {
  EventLoop loop;
  if (run.as.rank != 0) return SlotAgent(loop, run, this_host({true, true})).run();
  SlotSupervisor server(loop, run);
  try {
    return server.run();
  } catch (const Error&) {
    server.remove_empty_folder();
    throw;
  }
}

}  // namespace convoy
