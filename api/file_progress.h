// Keeps the state files of ranks that read data or a checkpoint fresh while their process makes progress.
//
// Progress is bytes read or new pages of memory. An endless loop makes no progress, so the supervisor reports it. The
// watch ends when all ranks have begun to train. Threads: starts one.
#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/rank_state/position.h"

namespace convoy {

class FileProgress {
 public:
  struct Rank {
    std::string state_file;
    std::shared_ptr<const CollectiveRecords> records;  // records of the same file
  };
  explicit FileProgress(std::vector<Rank> ranks);
  ~FileProgress();

 private:
  void watch();

  const std::vector<Rank> ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace convoy
