// The control channel: how the processes of one job agree, beside the data path. Without LibTorch.
//
// Role: rendezvous, job id, heartbeats, progress, "all ranks stop after step n", "the save failed", first failure.
// Served by the `convoy` process of rank 0's host (never by a rank, so that a stopped or dead rank takes nothing with
// it); every `convoy` and every rank process holds one client.
// Call order: connect; then any operation from any thread, any time, until destruction.
// Threads: thread-safe; callbacks run one after the other on the channel's own thread. They may use the channel but must
// not wait for what another callback brings. None runs after destruction.
// Failure: waiting operations throw CommError(rendezvous) when their time passes, naming the key and who is missing, and
// CommError(peer_lost) with the reason once somebody has called abort (what is there already is still given);
// any operation throws CommError(peer_lost) once the server is gone, and the `on_lost` callback has run by then.
// Limits: a message of 64 MiB; a larger value is Error(internal). The destructor returns when the server has read all
// that was posted, or after a second.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/options.h"

namespace convoy {

using Timeout = std::chrono::milliseconds;

// What ended, or ends, the job. The earliest by the server's clock that is not a `peer_lost` is the cause.
struct Abort {
  Failure kind = Failure::internal;
  int rank = -1;  // the culprit; -1: none in particular
  int64_t step = -1;
  int signal = 0;  // when a signal ended it
  std::string host;
  std::string message;
};
Json to_json(const Abort& abort);
Abort abort_from_json(const Json& json);

class Channel {
 public:
  virtual ~Channel() = default;

  virtual void set(const std::string& key, const std::string& value) = 0;  // values are bytes
  virtual std::string get(const std::string& key, Timeout timeout) = 0;    // waits until it is set
  virtual std::optional<std::string> peek(const std::string& key) = 0;     // does not wait
  virtual int64_t add(const std::string& key, int64_t delta) = 0;          // counter kept as decimal text; new value
  // Sets `desired` if the value equals `expected` ("" also matches an absent key); returns the value now there.
  virtual std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired) = 0;
  virtual bool erase(const std::string& key) = 0;

  // Calls back for the value there now and each later one of keys that begin with `prefix`.
  virtual void watch(const std::string& prefix,
                     std::function<void(const std::string& key, const std::string& value)>) = 0;

  // Every one of `count` participants gives a value under `name` (used once); returns all, by participant. On timeout the
  // message lists who is missing.
  virtual std::vector<std::string> agree(const std::string& name, int participant, int count, const std::string& value,
                                         Timeout timeout) = 0;

  // One-way message to whoever serves (progress, log lines, metrics, heartbeats); never blocks, never throws; delivered
  // in order while connected. Where the server reads too slowly (8 MiB), the oldest of topic "progress" are dropped.
  virtual void post(const std::string& topic, const Json& body) = 0;

  // Tells all participants to end. The first one that is not a peer_lost wins; idempotent; never throws.
  virtual void abort(const Abort& reason) = 0;
  // The reason, once somebody has called abort.
  virtual std::optional<Abort> aborted() = 0;
  virtual void on_abort(std::function<void(const Abort&)>) = 0;  // may be added any time; called once each
  virtual void on_lost(std::function<void()>) = 0;               // the server is gone
};

// Where a channel is served and what a joiner must show.
struct ChannelAddress {
  std::string host;  // numeric address, IPv4 or IPv6
  uint16_t port = 0;
  std::string job;     // job id
  std::string secret;  // random, hex
};
std::string to_string(const ChannelAddress& address);     // one line, for environment or a 0600 file
ChannelAddress channel_address(const std::string& line);  // throws Error(rendezvous)

struct ChannelServerOptions {
  std::string interface_address = "127.0.0.1";  // bound to this one only
  uint16_t port = 0;                            // 0: any free one
  std::string job;
  Timeout heartbeat{60000};  // H: silence after which a participant counts as lost; clients beat at H/4
};

// What the one who serves is told. All callbacks come from the server's own thread, apart from the one that serves, so
// they may use a channel. Those of one participant come in order: its on_leave is the last. on_abort comes once, and
// once more when a cause replaces a peer_lost.
struct ChannelServerEvents {
  std::function<void(int participant, const std::string& topic, const Json& body)> on_post;
  std::function<void(int participant, const std::string& name, bool orderly)> on_leave;  // a connection ended
  std::function<void(const Abort&)> on_abort;
  std::function<void(int participant, const std::string& name, double silent_seconds)> on_silent;  // H passed
};

class ChannelServer {
 public:
  virtual ~ChannelServer() = default;  // closes every connection
  virtual ChannelAddress address() const = 0;
};

// `participant` is the rank for rank processes' first rank, or -1 - index for `convoy` processes that are no ranks.
std::unique_ptr<ChannelServer> serve_channel(const ChannelServerOptions& options, ChannelServerEvents events);
// Retries until `timeout`; a server of another job or with another secret is refused by name, never merged.
std::shared_ptr<Channel> connect_channel(const ChannelAddress& address, int participant, const std::string& name,
                                         Timeout timeout);
// All participants in one process (ranks as threads, tests): the same semantics without a socket.
std::shared_ptr<Channel> make_local_channel();

// A random secret or job id: 128 bits as hex.
std::string random_token();

}  // namespace convoy
