// Who may connect to a gloo device: only peers that show the device's key, and nobody once the group is connected.
//
// gloo accepts any connection on its listener, keeps it, and believes the 8 bytes that it sends. It has no hook, so
// gloo_door.cpp defines `accept`, `connect` and `epoll_ctl` for the whole process, in front of libc's:
//   epoll_ctl  when gloo registers the listener of a door's device, an epoll set of ours takes the listener's place.
//              The set holds the listener and the strangers: connections that have not shown the key yet;
//   accept     on that set gives gloo a connection that has shown the key, else "none yet";
//   connect    to the listener of a peer's door shows that door's key first, and waits for its answer.
// All other calls go to libc unchanged. The key is random, for one group of one rank, and travels over the control
// channel. It crosses the network in plain text, as the data does: convoy needs a network that can be trusted. A
// challenge would need a library of cryptography that nothing else here needs, and would not protect the data.
//
// Threads: create, close and destroy a door in one thread; gloo's own thread accepts meanwhile.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "backends/c10d_store.h"

namespace convoy {

class GlooDoor {
 public:
  // Makes a device on the interface `address`; "" for gloo's choice.
  explicit GlooDoor(const std::string& address);
  ~GlooDoor();
  GlooDoor(const GlooDoor&) = delete;
  GlooDoor& operator=(const GlooDoor&) = delete;

  const std::shared_ptr<::gloo::transport::Device>& device() const { return device_; }
  std::string invitation() const;  // address and key, for peers (GlooInvitations)
  void close();                    // ends the listener and drops all strangers

  class Listener;

 private:
  std::shared_ptr<Listener> listener_;
  std::shared_ptr<::gloo::transport::Device> device_;
};

// Until they are forgotten, connections of this process to the peers' doors show their keys.
class GlooInvitations {
 public:
  explicit GlooInvitations(std::chrono::milliseconds limit) : end_(std::chrono::steady_clock::now() + limit) {}
  ~GlooInvitations() { forget(); }
  GlooInvitations(const GlooInvitations&) = delete;
  GlooInvitations& operator=(const GlooInvitations&) = delete;
  void add(const std::string& invitation);
  void forget();

 private:
  const std::chrono::steady_clock::time_point end_;  // connections fail from then on
  std::vector<std::string> addresses_;
};

// The store by which a group's ranks find each other; each value that a rank sets carries the invitation to its door.
class InvitingStore final : public ChannelBackedStore {
 public:
  InvitingStore(std::shared_ptr<Channel> channel, const std::string& prefix, std::chrono::milliseconds timeout,
                std::string invitation, std::shared_ptr<GlooInvitations> peers);
  using Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> get(const std::string& key) override;

 private:
  const std::string invitation_;
  const std::shared_ptr<GlooInvitations> peers_;
};

}  // namespace convoy
