// ChannelBackedStore: the control channel as c10d's Store, by which Gloo and NCCL ranks find each other.
#pragma once
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "core/control/channel.h"

namespace convoy {

class ChannelBackedStore : public c10d::Store {
 public:
  // Keys begin with `prefix`; `timeout` is the limit of waits without one of their own.
  ChannelBackedStore(std::shared_ptr<Channel> channel, std::string prefix, std::chrono::milliseconds timeout);

  c10::intrusive_ptr<Store> clone() override;
  using Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  using Store::compareSet;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;

 private:
  std::shared_ptr<Channel> channel_;
  std::string prefix_;
};

}  // namespace convoy
