// Keeps the state files of ranks that read data or a checkpoint fresh, as long as their process makes progress with it.
//
// Progress is bytes read, or new pages of memory (a mapped file, or what is made of it). An endless loop makes neither,
// so the supervisor sees it. Ends by itself when all ranks have begun to train. Threads: one of its own.
#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/control/call_notes.h"

namespace convoy {

class FileProgress {
 public:
  struct Rank {
    std::string state_file;
    std::shared_ptr<const CallNotes> notes;  // of the same file
  };
  explicit FileProgress(std::vector<Rank> ranks);
  ~FileProgress();
  FileProgress(const FileProgress&) = delete;
  FileProgress& operator=(const FileProgress&) = delete;

 private:
  void watch();

  const std::vector<Rank> ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace convoy
