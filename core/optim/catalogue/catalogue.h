// Catalogue of optimizers and learning-rate schedules, without LibTorch.
#pragma once
#include <string>
#include <vector>

#include "core/base/options.h"

namespace convoy {
const std::vector<Entry>& optimizer_catalogue();
const std::vector<Entry>& schedule_catalogue();

Entry sgd_entry();
Entry adagrad_entry();
Entry adam_entry();

// Obstacle to sparse embeddings with this optimizer and weight decay: the key of its option, and the reason. Empty:
// there is none.
struct SparseObstacle {
  std::string key;
  std::string reason;
};
SparseObstacle row_obstacle(const std::string& optimizer, const Options& options, double weight_decay);

}  // namespace convoy
