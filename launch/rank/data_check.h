// Data check: all processes of a job train on the same data set. The process of rank 0 compares it with the checkpoint
// from which the run resumes, and decides. The other processes check that their data is equal, and follow.
//
// Each process calls it once, before it creates the model; it returns when all processes have read their data. With
// other numbers for users, items or classes, parameters would get other shapes or belong to other ids. Failure:
// ConfigError at data.path. Kinds: `config` for a checkpoint that train.resume names, `output` for a checkpoint in the
// run folder, `disagreement` for a host with other data.
#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/config/run_config.h"
#include "core/control/channel.h"
#include "core/data/dataset.h"
#include "core/rank_state/position.h"

namespace convoy {

// Keeps the state files of ranks that read data or a checkpoint fresh while their process makes progress.
//
// Progress is bytes read or new pages of memory. An endless loop makes no progress, so the supervisor reports it. The
// watch ends when all ranks have begun to train. Threads: starts one.

class FileProgress {
 public:
  struct Rank {
    std::string state_file;
    std::shared_ptr<const CollectiveRecords> records;  // of the same file
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

struct DataCheck {
  const RunConfig& config;
  std::string folder;  // of the run
  int process = 0, processes = 1;
  bool first = true;  // this process has rank 0
  std::string host;   // of this process
  Channel* channel = nullptr;
};

// Returns `data` itself, or the same rows with the checkpoint's numbers for ids and classes.
DatasetPtr check_data(const DatasetPtr& data, const DataCheck& check);

}  // namespace convoy
