// GlooAcceptFilter: only peers that present the device's key can connect to a gloo device, and only until its group is
// connected.
//
// gloo accepts any connection on its listener and trusts the 8 bytes that the connection sends. It has no hook. So
// gloo_accept_filter.cpp defines `accept`, `connect` and `epoll_ctl` for the whole process, in place of libc's:
//   epoll_ctl  When gloo registers the listener of a filtered device, an epoll set of ours replaces the listener. The
//              set contains the listener and the unverified connections, which have not presented the key yet.
//   accept     On that set, returns a connection that has presented the key, or "none yet".
//   connect    To a filtered listener of a peer, presents that listener's key first and waits for the answer.
// All other calls reach libc unchanged. Each group has one random key per rank, which the control channel distributes.
// The key crosses the network in plain text, like the data: convoy needs a trusted network. A challenge would need a
// cryptography library and would not protect the data.
//
// Threads: create, close and destroy a filter in one thread; gloo's own thread accepts at the same time.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "backends/c10d/store.h"

namespace convoy {

class GlooAcceptFilter {
 public:
  // Creates a device on the interface `address`; "" lets gloo choose.
  explicit GlooAcceptFilter(const std::string& address);
  ~GlooAcceptFilter();
  GlooAcceptFilter(const GlooAcceptFilter&) = delete;
  GlooAcceptFilter& operator=(const GlooAcceptFilter&) = delete;

  const std::shared_ptr<::gloo::transport::Device>& device() const { return device_; }
  std::string connection_key() const;  // address and key, for peers (GlooConnectionKeys)
  void close();                        // closes the listener and drops all unverified connections

  class Listener;

 private:
  std::shared_ptr<Listener> listener_;
  std::shared_ptr<::gloo::transport::Device> device_;
};

// Connection keys of peers. Until forget(), this process presents them when it connects to these peers.
class GlooConnectionKeys {
 public:
  explicit GlooConnectionKeys(std::chrono::milliseconds limit) : end_(std::chrono::steady_clock::now() + limit) {}
  ~GlooConnectionKeys() { forget(); }
  GlooConnectionKeys(const GlooConnectionKeys&) = delete;
  GlooConnectionKeys& operator=(const GlooConnectionKeys&) = delete;
  void add(const std::string& connection_key);
  void forget();

 private:
  const std::chrono::steady_clock::time_point end_;  // connections fail from this time on
  std::vector<std::string> addresses_;
};

// The store of a group's rendezvous. Each value that a rank sets includes its connection key.
class KeyedStore final : public ChannelBackedStore {
 public:
  KeyedStore(std::shared_ptr<Channel> channel, const std::string& prefix, std::chrono::milliseconds timeout,
             std::string connection_key, std::shared_ptr<GlooConnectionKeys> peers);
  using Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> get(const std::string& key) override;

 private:
  const std::string connection_key_;
  const std::shared_ptr<GlooConnectionKeys> peers_;
};

}  // namespace convoy
