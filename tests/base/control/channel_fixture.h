// Several participants of one channel, over each transport.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/base/text.h"
#include "core/control/channel.h"

namespace convoy::testing {

using namespace std::chrono_literals;

// Long enough for a loaded machine; no test waits for it unless it fails.
inline constexpr Timeout patience = 30s;

inline bool has_ipv6_loopback() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return false;
  bool found = false;
  for (ifaddrs* at = all; at != nullptr; at = at->ifa_next) {
    found = found || (at->ifa_addr != nullptr && at->ifa_addr->sa_family == AF_INET6 &&
                      IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<sockaddr_in6*>(at->ifa_addr)->sin6_addr));
  }
  freeifaddrs(all);
  return found;
}

inline ChannelServerOptions loopback(const std::string& address = "127.0.0.1") {
  ChannelServerOptions options;
  options.interface_address = address;
  options.job = "job-1";
  return options;
}

// Runs body(i) on n threads and waits for all; an exception fails the test.
template <class Body>
void on_threads(int n, Body body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < n; ++i) {
    threads.emplace_back([&body, i] {
      try {
        body(i);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "thread " << i << ": " << error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

// Collects the calls of callbacks, for threads that wait for a number of them.
template <class T>
class Seen {
 public:
  void add(T value) {
    std::lock_guard<std::mutex> lock(mutex_);
    values_.push_back(std::move(value));
    changed_.notify_all();
  }
  std::vector<T> wait_for(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, patience, [&] { return values_.size() >= count; }))
        << "saw " << values_.size() << " of " << count;
    return values_;
  }
  std::vector<T> now() {
    std::lock_guard<std::mutex> lock(mutex_);
    return values_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<T> values_;
};

// Returns kind and text of the exception of `body`.
struct Thrown {
  Failure kind = Failure::internal;
  int rank = -2;
  std::string message = "nothing was thrown";
};
template <class Body>
Thrown thrown(Body body) {
  try {
    body();
  } catch (const CommError& error) {
    return {error.kind(), error.rank(), error.what()};
  } catch (const Error& error) {
    return {error.kind(), -2, error.what()};
  }
  return {};
}

}  // namespace convoy::testing
