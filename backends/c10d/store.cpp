// c10d's Store over the control channel.
#include "backends/c10d/store.h"

namespace convoy {
namespace {

std::string text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }
std::vector<uint8_t> bytes(const std::string& text) { return {text.begin(), text.end()}; }

}  // namespace

ChannelBackedStore::ChannelBackedStore(std::shared_ptr<Channel> channel, std::string prefix,
                                       std::chrono::milliseconds timeout)
    : Store(timeout), channel_(std::move(channel)), prefix_(std::move(prefix)) {}

c10::intrusive_ptr<c10d::Store> ChannelBackedStore::clone() {
  return c10::make_intrusive<ChannelBackedStore>(channel_, prefix_, timeout_);
}

void ChannelBackedStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  channel_->set(prefix_ + key, text(value));
}

std::vector<uint8_t> ChannelBackedStore::compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                                    const std::vector<uint8_t>& desired) {
  return bytes(channel_->compare_set(prefix_ + key, text(expected), text(desired)));
}

std::vector<uint8_t> ChannelBackedStore::get(const std::string& key) { return bytes(waited(key, timeout_)); }

int64_t ChannelBackedStore::add(const std::string& key, int64_t value) { return channel_->add(prefix_ + key, value); }

bool ChannelBackedStore::deleteKey(const std::string& key) { return channel_->erase(prefix_ + key); }

bool ChannelBackedStore::check(const std::vector<std::string>& keys) {
  for (const auto& key : keys) {
    if (!channel_->peek(prefix_ + key)) return false;
  }
  return true;
}

// The channel does not count keys; c10d calls this only for debug output.
int64_t ChannelBackedStore::getNumKeys() { CONVOY_CHECK(false, "the control channel does not count its keys"); }

void ChannelBackedStore::wait(const std::vector<std::string>& keys) { wait(keys, timeout_); }

void ChannelBackedStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  auto deadline = std::chrono::steady_clock::now() + timeout;
  for (const auto& key : keys) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    waited(key, std::max(left, std::chrono::milliseconds(1)));
  }
}

std::string ChannelBackedStore::waited(const std::string& key, std::chrono::milliseconds timeout) {
  unset_key_ = key;
  std::string value = channel_->get(prefix_ + key, timeout);
  unset_key_.clear();
  return value;
}

}  // namespace convoy
