// Control channel: the TCP connections over which the processes of a job coordinate. It carries no tensors. Without
// LibTorch.
//
// It carries the rendezvous, the job id, heartbeats, progress, stop requests, failed saves and the first failure. The
// `convoy` process on rank 0's host serves it, never a rank. So it survives a stopped or dead rank. Every `convoy` and
// every rank process has one client.
// Call order: connect; then any operation from any thread, at any time, until destruction.
// Threads: thread-safe. Callbacks run one after the other on the channel's thread. They may use the channel, but must
// not wait for another callback. None runs after destruction.
// Errors: a wait throws CommError(rendezvous) at its time limit, with the key and the missing participants. After an
// abort it throws CommError(peer_lost) with the reason, but still returns values that are set already. Any operation
// throws CommError(peer_lost) once the server is gone; the `on_lost` callback has run by then.
// Limits: 64 MiB for a message; a larger value is Error(internal). The destructor returns when the server has read all
// posts, or after one second.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/json.h"

namespace convoy {

using Timeout = std::chrono::milliseconds;
// A time limit of the configuration, in seconds.
inline Timeout timeout_of(double seconds) { return Timeout(static_cast<int64_t>(seconds * 1000)); }

// Reason for the end of the job. The cause is the earliest reason, by the server's clock, that is not a `peer_lost`.
struct Abort {
  Failure kind = Failure::internal;
  int rank = -1;  // rank that failed; -1: no particular one
  int64_t step = -1;
  int signal = 0;  // signal that ended it; 0: none
  std::string host;
  std::string message;
};
Json to_json(const Abort& abort);
Abort abort_from_json(const Json& json);

class SupervisedChannel;

class Channel {
 public:
  virtual ~Channel() = default;
  // Returns this channel with the operations of supervision; null if it has none.
  virtual SupervisedChannel* supervised() { return nullptr; }

  virtual void set(const std::string& key, const std::string& value) = 0;  // values are bytes
  virtual std::string get(const std::string& key, Timeout timeout) = 0;    // waits until the key is set
  virtual std::optional<std::string> peek(const std::string& key) = 0;     // does not wait
  // Adds to a counter, kept as decimal text; returns its new value.
  virtual int64_t add(const std::string& key, int64_t delta) = 0;
  // Sets `desired` if the value equals `expected` ("" also matches an absent key). Returns the value after the call.
  virtual std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired) = 0;
  virtual bool erase(const std::string& key) = 0;

  // Calls back for the current value, and for each later one, of all keys that begin with `prefix`.
  virtual void watch(const std::string& prefix,
                     std::function<void(const std::string& key, const std::string& value)>) = 0;

  // Each of `count` participants gives a value under `name` (used once). Returns all values, by participant. At the
  // time limit the error lists the missing participants.
  virtual std::vector<std::string> agree(const std::string& name, int participant, int count, const std::string& value,
                                         Timeout timeout) = 0;

  // Each of `count` participants gives a number under `name` (used once), and does not wait. When all have given one,
  // the key `name` is set to the largest. A `get` of that key that reaches its time limit lists the missing ones.
  virtual void vote(const std::string& name, int participant, int count, int64_t value) = 0;

  // One-way message to the supervisor (progress, log lines, metrics, heartbeats). Never blocks, never throws;
  // delivered in order while connected. If the server reads too slowly (8 MiB pending), the oldest posts of topic
  // "progress" are dropped.
  virtual void post(const std::string& topic, const Json& body) = 0;

  // Ends the job for all participants. Keeps the first reason that is not a peer_lost. Idempotent; never throws.
  virtual void abort(const Abort& reason) = 0;
  // Returns the reason of the abort, if there was one.
  virtual std::optional<Abort> aborted() = 0;
  virtual void on_abort(std::function<void(const Abort&)>) = 0;  // may be added at any time; each is called once
  virtual void on_lost(std::function<void()>) = 0;               // the server is gone
};

// Address of a channel, and the secret that a joining process must present.
struct ChannelAddress {
  std::string host;  // numeric address, IPv4 or IPv6
  uint16_t port = 0;
  std::string job;     // job id
  std::string secret;  // random, hex
};
std::string to_string(const ChannelAddress& address);     // one line, for the environment or a file with mode 0600
ChannelAddress channel_address(const std::string& line);  // throws Error(rendezvous)

struct ChannelServerOptions {
  std::string interface_address = "127.0.0.1";  // the only interface to bind
  uint16_t port = 0;                            // 0: any free one
  std::string job;
  std::optional<std::string> secret = {};  // nothing: a random one
  Timeout heartbeat{60000};  // a participant without a heartbeat for this time H is lost; clients send one every H/4
};

// Events for the supervisor. All callbacks run on the server's event thread and may use a channel. Those of one
// participant come in order; on_leave is the last. on_abort is called once, and again if a cause replaces a peer_lost.
struct ChannelServerEvents {
  std::function<void(int participant, const std::string& topic, const Json& body)> on_post;
  std::function<void(int participant, const std::string& name, bool orderly)> on_leave;  // a connection ended
  std::function<void(const Abort&)> on_abort;
  // `seconds`: time since its last heartbeat.
  std::function<void(int participant, const std::string& name, double seconds)> on_stalled;
  std::function<void(const std::string& name, const std::string& why)> on_refused;  // the first few
};

class ChannelServer {
 public:
  virtual ~ChannelServer() = default;  // closes every connection
  virtual ChannelAddress address() const = 0;
};

// `participant`: the first rank of a rank process; -1 - index for a `convoy` process without ranks.
std::unique_ptr<ChannelServer> serve_channel(const ChannelServerOptions& options, ChannelServerEvents events);
// The server has another job or another secret, or does not take this participant.
class ChannelRefusal : public CommError {
 public:
  using CommError::CommError;
};
// Retries until `timeout`; a ChannelRefusal ends it.
std::shared_ptr<Channel> connect_channel(const ChannelAddress& address, int participant, const std::string& name,
                                         Timeout timeout);

// Compares in constant time, so that an attacker learns no prefix of a secret.
bool equal_secrets(const std::string& a, const std::string& b);

// Channel with the operations that supervision needs. Other implementations of Channel may lack them.
class SupervisedChannel : public Channel {
 public:
  SupervisedChannel* supervised() override { return this; }
  // Does the same as Channel::agree, but does not wait. A name can be reused after all have given a value. `done`
  // receives all values, by participant, on the channel's thread. It is not called after an abort or without a server.
  virtual void agree_later(const std::string& name, int participant, int count, const std::string& value,
                           std::function<void(const std::vector<std::string>&)> done) = 0;

  // Sets the content of heartbeats: a small object, posted to the supervisor with the topic protocol::heartbeat. A
  // heartbeat is not sent if `body` returns nothing. Runs on the channel's thread: it must not block, and not
  // hold a reference to the channel, whose end waits for this thread.
  virtual void on_heartbeat(std::function<std::optional<Json>()> body) = 0;

  // Steady clock of the server's host, in nanoseconds.
  virtual int64_t clock() = 0;

  // CPU time that the threads of the channel have used in this process.
  virtual double cpu_seconds() = 0;

  // For fault injection: nothing is sent any more, heartbeats included, as if the network failed in one direction. The
  // channel still receives.
  virtual void stop_sending() = 0;
};

// Estimates how far the server's steady clock is ahead of this host's, in nanoseconds, from the fastest of several
// requests, whose duration bounds the error. 0 if both may be one clock.
int64_t clock_offset(SupervisedChannel& channel);

// --- Protocol: keys and topics that `convoy` and the rank processes use on the control channel ---
//
// Environment of a rank process: CONVOY_CHANNEL is to_string(ChannelAddress). CONVOY_PROCESS is the index into
// JobPlan::processes. CONVOY_RANK is its first rank, with which it connects; a `convoy` process connects as -1 - rank.
// A program that joined as a rank adds CONVOY_JOINED, so that programs that it starts are independent runs.
// All other data comes over the channel, so that every launcher works in the same way.
namespace protocol {

inline constexpr char joined_variable[] = "CONVOY_JOINED";

// Keys (Channel::set / get).
inline constexpr char job[] = "job";              // to_bytes(RankAssignment), core/control/assignment.h
inline constexpr char data[] = "data";            // agreement: JSON {first, fingerprint, host, numbers} of each process
inline constexpr char rank_info[] = "rank/";      // + rank: JSON {host, pid, device, cores, threads}
inline constexpr char rank_result[] = "result/";  // + rank: JSON {wait_seconds, cpu_efficiency, data_*, …}
inline constexpr char result[] = "result";        // JSON: the part of summary.json that rank 0 makes
inline constexpr char stopped_early[] = "stopped";      // in the result: true if the ranks stopped on request
inline constexpr char paused[] = "paused";              // in the result: true if train.pause_after ended the training
inline constexpr char stop_request[] = "stop/request";  // set by the supervisor when all ranks should stop
inline constexpr char stop_at[] = "stop/at";            // vote of the ranks: the step before which all stop

// Topics (Channel::post).
inline constexpr char heartbeat[] = "heartbeat";  // content of a heartbeat
inline constexpr char progress[] = "progress";    // JSON of a Record plus {steps, epochs}: rank 0, a few times a second
inline constexpr char resources[] = "resources";  // JSON of resource_report: each rank, every few seconds
inline constexpr char metrics[] = "metrics";      // JSON of a Record: rank 0, at each evaluation
inline constexpr char log_line[] = "log";         // JSON {rank, host, line}
inline constexpr char signalled[] = "signalled";  // {signal, at_once}: a rank or an agent received a request to stop
inline constexpr char first_step[] = "first_step";  // JSON {seconds}: rank 0, when the first step is done

// Exit code of a rank process that only lost a peer; never the job's (core/control/exit_codes.h).
inline constexpr int peer_lost_exit = 111;

}  // namespace protocol

// Channel for participants in one process, with the semantics of the others. There is no server, so posts are dropped
// and nothing gets lost.
std::shared_ptr<Channel> make_local_channel();

// --- StopAgreement: all ranks stop after the same step, without a collective ---
//
// On a stop request, the channel thread of each rank names the step before which its rank will wait. When all ranks
// have named one, all stop at the largest. Ranks below it continue to it, so no collective lacks a peer.
class StopAgreement {
 public:
  StopAgreement(std::shared_ptr<Channel> channel, int rank, int size, Timeout timeout);
  ~StopAgreement();
  // Call it on the rank's thread before step `step` of its work (from 0, each once). A step is a training step, or a
  // batch of an evaluation, counted equally on all ranks. Returns true if all ranks stop before this step or have
  // stopped before an earlier one; false: run the step.
  bool stops_before(int64_t step);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace convoy
