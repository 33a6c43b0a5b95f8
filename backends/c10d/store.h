// ChannelBackedStore: the control channel as c10d's Store, through which Gloo and NCCL ranks find each other.
#pragma once
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "backends/communicator/group.h"
#include "core/control/channel.h"

namespace convoy {

// Conversions to c10d's types: reduce operations, options and block lengths.

inline c10d::ReduceOp translate(ReduceOp op) {
  static constexpr c10d::ReduceOp::RedOpType known[] = {c10d::ReduceOp::SUM, c10d::ReduceOp::PRODUCT,
                                                        c10d::ReduceOp::MIN, c10d::ReduceOp::MAX};
  return known[size_t(op)];
}

// Time limit of c10d's threads. convoy's limit passes earlier and has the better message.
inline std::chrono::milliseconds c10d_limit(std::chrono::milliseconds limit) {
  return 2 * limit + std::chrono::seconds(10);
}
template <class Options>
Options c10d_options(const Call& call) {
  Options options;
  options.timeout = c10d_limit(call.timeout);
  return options;
}

inline std::vector<int64_t> lengths(const Offsets& bounds) {
  std::vector<int64_t> all(bounds.size() - 1);
  for (size_t i = 0; i < all.size(); ++i) all[i] = bounds[i + 1] - bounds[i];
  return all;
}

class ChannelBackedStore : public c10d::Store {
 public:
  // Keys get the prefix `prefix`; `timeout` is the default limit of waits.
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
  // The key for which a wait was in vain; "": none. Keys of a rendezvous end with the rank that should have set them.
  const std::string& unset_key() const { return unset_key_; }

 private:
  std::string waited(const std::string& key, std::chrono::milliseconds timeout);

  std::string unset_key_;
  std::shared_ptr<Channel> channel_;
  std::string prefix_;
};

}  // namespace convoy
