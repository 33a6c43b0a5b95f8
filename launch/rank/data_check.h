// Data check: all processes of a job train on the same data set. The process of rank 0 compares it with the checkpoint
// from which the run resumes, and decides. The other processes check that their data is equal, and follow.
//
// Each process calls it once, before it creates the model; it returns when all processes have read their data. A
// process that joins a running job waits for no other. With other numbers for users, items or classes, parameters would
// get other shapes or belong to other ids. Failure: ConfigError at data.path. Kinds: `config` for a checkpoint that
// train.resume names, `output` for a checkpoint in the run folder, `disagreement` for a host with other data.
#pragma once
#include <string>

#include "core/config/run_config.h"
#include "core/control/channel.h"
#include "core/data/dataset.h"

namespace convoy {

struct DataCheck {
  const RunConfig& config;
  std::string folder;  // of the run
  int process = 0, processes = 1;
  bool first = true;  // this process has rank 0
  std::string host;   // of this process
  Channel* channel = nullptr;
  Json decided = {};   // protocol::checked_data of the job that this process joins; null: the processes decide
  bool trains = true;  // false: a command uses the trained run, and other data is the user's intention
};

// Returns `data` itself, or the same rows with the checkpoint's numbers for ids and classes.
DatasetPtr check_data(const DatasetPtr& data, const DataCheck& check);

}  // namespace convoy
