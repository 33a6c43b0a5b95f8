// One gang as the `convoy` that serves its control channel sees it: who joined, who ended and how, what ended the job
// first, and what ranks reported. Every launcher uses it alike; who starts and kills processes is told through callbacks.
//
// Threads: all in the event loop's; what the channel's threads tell is posted there.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/config/run_config.h"
#include "core/control/channel.h"
#include "launch/event_loop.h"
#include "launch/rank_process.h"
#include "launch/stall_watch.h"
#include "launch/stop_requests.h"

namespace convoy {

// A remote `convoy`, one rank's parent, as it reports itself (topic gang_topic::join).
struct Join {
  int process = 0;
  Json host;  // to_json(Host): only what it may use
};

// Between agents and the one who serves, beside core/control/protocol.h.
namespace gang_topic {
inline constexpr char join[] = "join";            // {process, host, size, size_from, config}
inline constexpr char ended[] = "ended";          // {process, code, signal, lack, made}; made: its convoy killed it
inline constexpr char signalled[] = "signalled";  // {signal}: TERM or INT reached this convoy
inline constexpr char verdict[] = "verdict";      // key: exit code of the job, set when everything is written
}  // namespace gang_topic

struct GangRequest {
  std::string job;                    // id; "" for a random one
  std::string address = "127.0.0.1";  // interface to serve on
  int processes = 0;                  // each is one rank where agents join
  bool joins = false;                 // agents start the processes; else the caller does
  bool resumes = true;                // a stop leaves a checkpoint that the same command goes on from
  LaunchConfig launch;
  Json config = {};  // without_marks; what agents that read one themselves must have read; null: not compared
};

struct GangEvents {
  std::function<void(const std::vector<Join>&)> on_joined;  // all agents are there: publish the job now
  std::function<void(const Abort&)> on_failure;             // end your processes
  std::function<void(int rank, const std::string& host, const std::string& line)> on_line;
  std::function<void(const std::string& topic, const Json& body)> on_report;  // progress, metrics
  std::function<void()> on_first_step;
  std::function<void(const std::string& text)> on_notice = nullptr;  // late ranks, and the table of a stall
  std::function<void(int signal)> on_stop = nullptr;                 // asked to stop: no rank has heard of it yet
  std::function<void()> on_saved = nullptr;                          // all ranks have stopped and saved; they still run
};

// What came of it.
struct GangOutcome {
  int exit_code = 0;
  std::optional<Abort> cause;    // of a failure, or of a stop
  Json result = Json::object();  // rank 0's
  std::map<int, Json> ranks;     // info and result of each rank
  Json stall;                    // null, or where all ranks were when the job stalled (hang_json)
};

class Gang {
 public:
  Gang(EventLoop& loop, const GangRequest& request, GangEvents events);
  ~Gang();
  Gang(const Gang&) = delete;
  Gang& operator=(const Gang&) = delete;

  ChannelAddress address() const { return server_->address(); }
  void publish(const Assigned& assigned);

  void add_local_agent(int process, const Json& host);  // the caller is itself one rank's parent
  void line(int process, const std::string& text);      // of a local process
  void ended(int process, const ProcessEnd& end);
  void fail(const Abort& reason);
  void stop(int signal);  // this process got it; asked again, it kills
  bool stopping() const { return stop_signal_ != 0; }
  bool failed() const { return cause_.has_value(); }
  bool joined() const;  // all agents are there
  bool over() const;    // every process has ended
  bool saved() const;   // all ranks have told that they stopped as asked: nothing that happens now is a failure

  GangOutcome outcome();
  void tell_verdict(int exit_code);
  bool agents_left() const;  // all agents elsewhere that joined have gone

 private:
  struct Member {
    bool joined = false;
    bool left = false;
    std::string host;
    Json topology;
    std::optional<ProcessEnd> end;
  };
  ChannelServerEvents server_events();
  void add_agent(int process, const Json& host);
  bool same_size(const Json& body);
  bool same_config(const Json& body);
  void posted(int participant, const std::string& topic, const Json& body);
  void left(int participant, bool orderly);
  void silent(int participant, double seconds);
  void stalled(const StallWatch::Found& found);
  std::string host_of(int rank) const;
  void request_stop(int signal);
  void aborted(Abort reason);
  void watch_results();
  void ended_by_agent(int process, const ProcessEnd& end);
  bool stopped_as_asked(const ProcessEnd& end) const;
  void ended_early(int process, const ProcessEnd& end);
  void check_ranks_started();
  bool has_results(int process) const;
  bool complete() const;  // all results are there
  void result_came();
  Abort stop_reason() const;
  int first_rank(int process) const;
  std::string label(int process) const;
  std::optional<Abort> told_failure(int process) const;
  int64_t step_of(int rank) const;
  std::string where_ranks_were(int process) const;
  int culprit_of(int process) const;
  std::string phase_of(int rank) const;
  std::chrono::milliseconds rendezvous() const;

  EventLoop& loop_;
  GangRequest request_;
  GangEvents events_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // tasks posted late must find out
  std::vector<Member> members_;
  std::optional<Assigned> assigned_;
  std::optional<Abort> cause_;
  std::optional<Abort> lost_;  // a lost peer: the cause only when no other comes
  int stop_signal_ = 0;
  bool ranks_stopped_ = false;  // by their results
  StopRequests requests_;       // to this process
  int undecided_ = 0;           // ends whose reason may still be on its way
  bool all_joined_ = false;
  std::map<int, Json> infos_, results_;
  std::optional<Json> result_;
  std::unique_ptr<ChannelServer> server_;
  std::shared_ptr<Channel> channel_;
  std::unique_ptr<StallWatch> stalls_;
  Json stall_;
};

}  // namespace convoy
