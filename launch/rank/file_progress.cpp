#include "launch/rank/file_progress.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <tuple>
#include <utility>

#include "core/control/phases.h"
#include "core/control/position.h"

namespace convoy {
namespace {

constexpr std::chrono::milliseconds interval{200};
// Heartbeats alone cause less between two looks.
constexpr int64_t least_bytes = 64 << 10;
constexpr int64_t least_pages = 16;

// Bytes that this process has read by system calls.
int64_t bytes_read() {
  std::ifstream file("/proc/self/io");
  std::string key;
  int64_t bytes = 0;
  file >> key >> bytes;  // "rchar: 123"
  return bytes;
}

int64_t pages_touched() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt + usage.ru_majflt;
}

}  // namespace

FileProgress::FileProgress(std::vector<Rank> ranks) : ranks_(std::move(ranks)), thread_([this] { watch(); }) {}

FileProgress::~FileProgress() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void FileProgress::watch() {
  int64_t bytes = bytes_read(), pages = pages_touched();
  std::unique_lock<std::mutex> lock(mutex_);
  while (!changed_.wait_for(lock, interval, [this] { return over_; })) {
    bool set_up = false;
    const int64_t bytes_now = bytes_read(), pages_now = pages_touched();
    const bool moved = bytes_now - bytes >= least_bytes || pages_now - pages >= least_pages;
    if (moved) std::tie(bytes, pages) = std::pair(bytes_now, pages_now);
    for (const Rank& rank : ranks_) {
      const std::string phase = rank.notes->position().phase;
      set_up |= is_set_up(phase);
      if (moved && reads_files(phase)) touch_state_file(rank.state_file);
    }
    if (!set_up) return;
  }
}

}  // namespace convoy
