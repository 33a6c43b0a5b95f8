#include "launch/farm/slots.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>

#include "core/control/channel.h"
#include "core/control/protocol.h"
#include "core/log.h"
#include "core/utf8.h"
#include "launch/exit_codes.h"
#include "launch/farm/claims.h"
#include "launch/farm/metric_check.h"
#include "launch/farm/supervisor.h"
#include "launch/gang.h"
#include "launch/parent_watch.h"
#include "launch/rendezvous.h"
#include "launch/session.h"
#include "launch/summary.h"
#include "launch/topology.h"

namespace convoy {
namespace {

using std::chrono::milliseconds;

// Between the one that serves and the slots' agents, beside gang_topic::join and ::verdict.
namespace farm_topic {
constexpr char orders[] = "farm/orders/";   // key, + slot + "/" + number: {start: order} | {stop: job} | {kill: job}
constexpr char started[] = "farm/started";  // {job, pid}
constexpr char line[] = "farm/line";        // {job, line}
constexpr char ended[] = "farm/ended";      // {job, code, signal, used}
constexpr char samples[] = "farm/samples";  // [sample, …]
constexpr char over[] = "farm/over";        // {job, what}
constexpr char refused[] = "farm/refused";  // {job, exit_code, message}
}  // namespace farm_topic

milliseconds to_milliseconds(double seconds) { return milliseconds(static_cast<int64_t>(seconds * 1000)); }

std::string orders_of(int slot) { return str(farm_topic::orders, slot, "/"); }

Json named(const ResourceSample& sample) {
  Json json = to_json(sample);
  json["pipeline"] = sample.pipeline;
  return json;
}

// Runs a task in the event loop, unless its owner is gone by then.
class Later {
 public:
  explicit Later(EventLoop& loop) : loop_(loop) {}
  ~Later() { *alive_ = false; }
  void operator()(std::function<void()> task) {
    loop_.post([alive = alive_, task = std::move(task)] {
      if (*alive) task();
    });
  }

 private:
  EventLoop& loop_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

// Slot 0 is this process's own; orders to the others go over the channel.
class SlotPlaces : public Places {
 public:
  SlotPlaces(Places& own, Channel& channel) : own_(own), channel_(channel) {}

  void start(int slot, const PipelineOrder& order) override {
    slots_[order.job] = slot;
    if (slot == 0) return own_.start(slot, order);
    send(slot, {{"start", to_json(order)}});
  }
  void ask_to_stop(int job) override {
    if (slots_.at(job) == 0) return own_.ask_to_stop(job);
    send(slots_.at(job), {{"stop", job}});
  }
  void kill(int job) override {
    if (slots_.at(job) == 0) return own_.kill(job);
    send(slots_.at(job), {{"kill", job}});
  }
  // That were last started there.
  std::vector<int> jobs_of(int slot) const {
    std::vector<int> jobs;
    for (const auto& [job, where] : slots_)
      if (where == slot) jobs.push_back(job);
    return jobs;
  }

 private:
  void send(int slot, const Json& order) { channel_.set(orders_of(slot) + std::to_string(number_++), order.dump()); }

  Places& own_;
  Channel& channel_;
  std::map<int, int> slots_;  // of each job that was ever started
  int64_t number_ = 0;
};

class FarmServer {
 public:
  FarmServer(EventLoop& loop, FarmRun& run)
      : loop_(loop), run_(run), later_(loop), joined_(static_cast<size_t>(run.as.size)) {
    // Before any thread of the channel's. Nothing happens in there until something is started.
    PlacesEvents later;
    later.on_started = [this](int job, pid_t pid) { events_.on_started(job, pid); };
    later.on_line = [this](int job, const std::string& line) { events_.on_line(job, line); };
    later.on_end = [this](int job, const ProcessEnd& end, const ResourceSample& used) {
      events_.on_end(job, end, used);
    };
    later.on_samples = [this](const std::vector<ResourceSample>& samples) {
      if (events_.on_samples) events_.on_samples(samples);
    };
    later.on_over_limit = [this](int job, const std::string& what) { events_.on_over_limit(job, what); };
    later.on_refused = [this](int job, int code, const std::string& message) {
      events_.on_refused(job, code, message);
    };
    own_ = make_local_places(loop, run.variables, later);
  }
  ~FarmServer() {
    places_.reset();
    own_.reset();
    supervisor_.reset();
    channel_.reset();
    server_.reset();
  }

  // What the machines have against a farm is known only once its slots have met in its folder: of one that was not to start
  // nothing is left. A folder that somebody has put things into stays.
  void leave_no_empty_folder() const {
    std::error_code none;
    if (fresh_.empty()) return;
    std::filesystem::remove(fresh_ + "/logs", none);
    std::filesystem::remove(fresh_, none);
  }

  int run() {
    serve();
    RunFolder folder;
    try {
      folder = open_run_folder(farm_folder(run_));
    } catch (const Error& error) {
      send_away(exit_code_of(error.kind()));
      throw;
    }
    if (folder.attempt == 0 && !folder.continued && !folder.already_done) fresh_ = folder.path;
    // Not before: opening the folder sweeps those that killed runs have left.
    const RendezvousFile file(requested_folder(farm_folder(run_)), run_.as.job, server_->address());
    if (folder.already_done) {
      for (const std::string& note : folder.notes) std::puts(terminal_safe(note).c_str());
      return tell_all(exit_code::done);
    }
    joined_[0] = this_host({true, true});
    loop_.on_signal([this](int signal) { stop(signal); });
    if (stays_as_parent(run_.as.launcher)) parent_ = std::make_unique<ParentWatch>(loop_, [this] { launcher_gone(); });
    if (const auto code = wait_for_agents(folder)) return tell(*code);
    try {
      begin(std::move(folder));
    } catch (const Error& error) {
      tell(exit_code_of(error.kind()));
      throw;
    }
    loop_.run_until([this] { return supervisor_->over(); });
    loop_.on_signal([](int) {});
    return tell(supervisor_->finish());
  }

 private:
  void serve() {
    ChannelServerOptions options;
    const ServingAddress serving = serving_address(run_.address, run_.as, run_.variables);
    options.interface_address = serving.address;
    options.job = run_.as.job;
    options.heartbeat = to_milliseconds(run_.heartbeat);
    if (!serving.note.empty()) run_.warnings.push_back(serving.note);
    ChannelServerEvents events;
    events.on_post = [this](int participant, const std::string& topic, const Json& body) {
      later_([this, participant, topic, body] { posted(-1 - participant, topic, body); });
    };
    events.on_leave = [this](int participant, const std::string&, bool) {
      later_([this, participant] {
        left(-1 - participant, "went away without a word: it was killed, or its host is gone");
      });
    };
    events.on_silent = [this](int participant, const std::string&, double seconds) {
      later_([this, participant, seconds] {
        left(-1 - participant, str("has sent no heartbeat for ", human_seconds(seconds)));
      });
    };
    events.on_abort = [](const Abort&) {};
    server_ = serve_channel(options, events);
    channel_ = connect_channel(server_->address(), -1 - run_.as.size, "convoy", to_milliseconds(run_.rendezvous));
  }

  bool all_joined() const {
    return std::none_of(joined_.begin(), joined_.end(), [](const auto& host) { return !host; });
  }

  // Nothing once all slots are there; else the exit code, and the summary says why.
  std::optional<int> wait_for_agents(const RunFolder& folder) {
    bool late = false;
    const auto timer = loop_.after(to_milliseconds(run_.rendezvous), [&late] { late = true; });
    loop_.run_until([&] { return late || stop_signal_ != 0 || gone_ || all_joined(); });
    loop_.cancel(timer);
    if (all_joined() && stop_signal_ == 0 && !gone_) return std::nullopt;
    std::vector<std::string> missing;
    for (size_t i = 0; i < joined_.size(); ++i)
      if (!joined_[i]) missing.push_back(std::to_string(i));
    FarmEnd end{exit_code::rendezvous, name_of(Failure::rendezvous),
                str("missing after ", human_seconds(run_.rendezvous), " (launch.rendezvous): slot ",
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
    Yard yard = yard_of(agents);
    refuse_all(check_claims(run_.farm, yard, rank_program()));
    if (const auto mistake = metric_mistake(run_.farm, run_.metric_mark, rank_program())) throw *mistake;
    supervisor_ = std::make_unique<FarmSupervisor>(loop_, run_, std::move(folder), std::move(yard));
    events_ = supervisor_->events();
    places_ = std::make_unique<SlotPlaces>(*own_, *channel_);
    supervisor_->start(*places_);
  }

  void posted(int slot, const std::string& topic, const Json& body) {
    if (topic == gang_topic::join) {
      if (slot >= 0 && slot < static_cast<int>(joined_.size()))
        joined_[static_cast<size_t>(slot)] = host_from_json(body.at("host"));
    } else if (topic == gang_topic::signalled) {
      // Every agent tells of the same request.
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

  // Launchers end the job with the first rank that fails: what runs is ended here, and goes on with the next submission.
  void left(int slot, const std::string& why) {
    if (slot < 0 || slot >= static_cast<int>(joined_.size()) || !supervisor_ || told_) return;
    const std::string& host = joined_[static_cast<size_t>(slot)]->name;
    // The launcher that asked to stop kills those that it does not find quick enough.
    if (stop_signal_ == 0) give_up(str("the convoy of slot ", slot, " on ", host, " ", why), host);
    // Nobody is left there to tell of their ends.
    for (int job : places_->jobs_of(slot)) events_.on_end(job, {0, SIGKILL}, {});
  }

  void give_up(const std::string& why, const std::string& host = "") {
    supervisor_->give_up({exit_code::rendezvous, name_of(Failure::rendezvous), why, host}, true);
  }

  void stop(int signal) {
    stop_signal_ = signal;
    if (supervisor_) supervisor_->stop(signal);
  }

  void launcher_gone() {
    gone_ = true;
    if (!supervisor_) return;
    if (stop_signal_ != 0) return supervisor_->stop(SIGQUIT);
    give_up(str(name_of(run_.as.launcher), ", which started the slots, was killed or has ended"));
  }

  // The others are to end with `code`. mpirun ends them by itself where one fails.
  void send_away(int code) {
    if (run_.as.launcher == Launcher::open_mpi) return;
    try {
      const RendezvousFile file(requested_folder(farm_folder(run_)), run_.as.job, server_->address());
      tell_all(code);
    } catch (const Error&) {
      // Where no file can be written they meet the same error themselves, or their limit for the rendezvous.
    }
  }

  // As there is nothing to do.
  int tell_all(int code) {
    joined_[0] = Host{};
    bool late = false;
    const auto timer = loop_.after(milliseconds(5000), [&late] { late = true; });
    loop_.run_until([&] { return late || all_joined(); });
    loop_.cancel(timer);
    return tell(code);
  }

  int tell(int code) {
    told_ = true;
    channel_->set(gang_topic::verdict, std::to_string(code));
    // They leave once they have heard it; a moment is enough where they do not.
    bool late = false;
    loop_.after(milliseconds(300), [&late] { late = true; });
    loop_.run_until([&late] { return late; });
    return code;
  }

  EventLoop& loop_;
  FarmRun& run_;
  Later later_;
  std::vector<std::optional<Host>> joined_;  // by slot
  std::unique_ptr<ParentWatch> parent_;
  std::unique_ptr<ChannelServer> server_;
  std::shared_ptr<Channel> channel_;
  std::unique_ptr<FarmSupervisor> supervisor_;
  PlacesEvents events_;
  std::unique_ptr<Places> own_;
  std::unique_ptr<SlotPlaces> places_;
  int stop_signal_ = 0;
  bool gone_ = false, told_ = false;
  std::string fresh_;  // the folder that this farm made
};

class FarmAgent {
 public:
  FarmAgent(EventLoop& loop, const FarmRun& run)
      : loop_(loop), run_(run), later_(loop), host_(this_host({true, true})) {}
  ~FarmAgent() {
    workplace_.reset();
    channel_.reset();
  }

  int run() {
    WorkplaceEvents events;
    events.on_line = [this](int job, const std::string& line) {
      channel_->post(farm_topic::line, {{"job", job}, {"line", line}});
    };
    events.on_end = [this](int job, const ProcessEnd& end, const ResourceSample& used) {
      channel_->post(farm_topic::ended,
                     {{"job", job}, {"code", end.code}, {"signal", end.signal}, {"used", named(used)}});
    };
    events.on_samples = [this](const std::vector<ResourceSample>& samples) {
      Json all = Json::array();
      for (const ResourceSample& sample : samples) all.push_back(named(sample));
      channel_->post(farm_topic::samples, all);
    };
    events.on_over_limit = [this](int job, const std::string& what) {
      channel_->post(farm_topic::over, {{"job", job}, {"what", what}});
    };
    workplace_ = std::make_unique<Workplace>(loop_, run_.variables, events);
    loop_.on_signal([this](int signal) {
      if (channel_) return channel_->post(gang_topic::signalled, {{"signal", signal}});
      code_ = exit_code::stopped;
    });
    if (stays_as_parent(run_.as.launcher))
      parent_ = std::make_unique<ParentWatch>(loop_, [this] { gone(exit_code::rendezvous); });
    look_for_server();
    loop_.run_until([this] { return code_.has_value() && workplace_->idle(); });
    return *code_;
  }

 private:
  void look_for_server() {
    if (code_) return;
    try {
      const auto address = read_rendezvous(requested_folder(farm_folder(run_)), run_.as.job);
      if (address) {
        auto channel =
            connect_channel(*address, -1 - run_.as.rank, str("convoy of slot ", run_.as.rank), milliseconds(500));
        return join(std::move(channel));
      }
    } catch (const CommError&) {  // not yet, no longer, or another job's
    } catch (const Error& error) {
      if (error.kind() != Failure::rendezvous) throw;
    }
    if (seconds_since(started_) > run_.rendezvous) {
      log::error(str("slot ", run_.as.rank, " on ", host_.name, ": after ", human_seconds(run_.rendezvous),
                     " (launch.rendezvous) the convoy of slot 0 cannot be found through ",
                     requested_folder(farm_folder(run_)), "; do all slots share that folder?"));
      code_ = exit_code::rendezvous;
      return;
    }
    loop_.after(milliseconds(seconds_since(started_) < 5 ? 20 : 100), [this] { look_for_server(); });
  }

  void join(std::shared_ptr<Channel> channel) {
    channel_ = std::move(channel);
    channel_->on_lost([this] { later_([this] { gone(exit_code::rendezvous); }); });
    channel_->watch(gang_topic::verdict, [this](const std::string&, const std::string& value) {
      later_([this, value] { gone(std::atoi(value.c_str())); });
    });
    channel_->watch(orders_of(run_.as.rank), [this](const std::string& key, const std::string& value) {
      later_([this, key, value] {
        channel_->erase(key);
        obey(Json::parse(value));
      });
    });
    channel_->post(gang_topic::join, {{"process", run_.as.rank}, {"host", to_json(host_)}});
  }

  void obey(const Json& order) {
    if (code_) return;
    if (order.contains("stop")) return workplace_->ask_to_stop(order["stop"].get<int>());
    if (order.contains("kill")) return workplace_->kill(order["kill"].get<int>());
    const PipelineOrder pipeline = order_from_json(order.at("start"));
    const auto refuse = [&](int code, const Error& error) {
      channel_->post(farm_topic::refused, {{"job", pipeline.job}, {"exit_code", code}, {"message", error.what()}});
    };
    try {
      const pid_t pid = workplace_->start(pipeline);
      channel_->post(farm_topic::started, {{"job", pipeline.job}, {"pid", pid}});
    } catch (const CannotExecute& error) {
      refuse(error.code(), error);
    } catch (const Error& error) {
      refuse(exit_code_of(error.kind()), error);
    }
  }

  void gone(int code) {
    if (!code_) code_ = code;
    workplace_->kill_all();
  }

  EventLoop& loop_;
  const FarmRun& run_;
  Later later_;
  const Host host_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::unique_ptr<ParentWatch> parent_;
  std::shared_ptr<Channel> channel_;
  std::unique_ptr<Workplace> workplace_;
  std::optional<int> code_;
};

}  // namespace

int run_in_slots(FarmRun& run) {
  EventLoop loop;
  if (run.as.rank != 0) return FarmAgent(loop, run).run();
  FarmServer server(loop, run);
  try {
    return server.run();
  } catch (const Error&) {
    server.leave_no_empty_folder();
    throw;
  }
}

}  // namespace convoy
