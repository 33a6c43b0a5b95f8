// TraceLog: slices of time that one rank records while its steps are traced. Thread-safe.
#pragma once
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace convoy {

inline int64_t steady_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Moments are nanoseconds of the steady clock.
struct TraceSlice {
  std::string lane;  // thread: "" for the rank's, "loader", "checkpoint"
  std::string name;
  const char* category = "";
  int64_t from = 0, to = 0;
  int64_t bytes = -1;  // -1: it moves none
};

class TraceLog {
 public:
  // Slices of one lane nest, or do not overlap.
  void add(TraceSlice slice) {
    std::lock_guard lock(mutex_);
    slices_.push_back(std::move(slice));
  }
  std::vector<TraceSlice> take() {
    std::lock_guard lock(mutex_);
    return std::move(slices_);
  }

 private:
  std::mutex mutex_;
  std::vector<TraceSlice> slices_;
};

}  // namespace convoy
