// The data set that all processes of a job train: rank 0's process compares it with the checkpoint that the run goes on from, and
// decides; the others make sure that theirs is the same, and follow.
//
// Called once by each process, before a model is made; returns when all processes have read their data. With other numbers
// for users, items or classes the model would have another shape, or parameters that belong to somebody else. Failure:
// ConfigError at data.path, with the kind `config` for a checkpoint that train.resume names, `output` for one of the run's own
// folder, `disagreement` for a host with other data.
#pragma once
#include <string>

#include "core/config/run_config.h"
#include "core/control/channel.h"
#include "core/data/dataset.h"

namespace convoy {

struct DataAgreement {
  const RunConfig& config;
  std::string folder;  // of the run
  int process = 0, processes = 1;
  bool first = true;  // this process has rank 0
  std::string host;   // of this process
  Channel* channel = nullptr;
};

// `data` itself, or the same rows with the numbers of the checkpoint.
DatasetPtr agreed_data(const DatasetPtr& data, const DataAgreement& agreement);

}  // namespace convoy
