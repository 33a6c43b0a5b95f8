#include "api/file_progress.h"

#include <sys/resource.h>

#include <cstdint>
#include <fstream>
#include <utility>

namespace convoy {
namespace {

constexpr std::chrono::milliseconds interval{200};
// Least progress in one interval. Heartbeats and this thread read some 100 bytes per interval, which must not count.
constexpr int64_t least_bytes = 8 << 10;
constexpr int64_t least_pages = 4;

// Returns the bytes that this process has read by system calls.
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
    const int64_t bytes_before = std::exchange(bytes, bytes_read());
    const int64_t pages_before = std::exchange(pages, pages_touched());
    const bool moved = bytes - bytes_before >= least_bytes || pages - pages_before >= least_pages;
    for (const Rank& rank : ranks_) {
      const std::string phase = rank.records->position().phase;
      set_up |= is_set_up(phase);
      if (moved && reads_files(phase)) touch_state_file(rank.state_file);
    }
    if (!set_up) return;
  }
}

}  // namespace convoy
