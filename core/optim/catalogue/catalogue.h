// Catalogue of optimizers and learning-rate schedules, and the typed options of an optimizer. Without LibTorch.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/base/name_pattern.h"
#include "core/base/options.h"
#include "core/config/run_config.h"

namespace convoy {
const std::vector<Entry>& optimizer_catalogue();
const std::vector<Entry>& schedule_catalogue();

// Parameters whose name matches. If a value is empty, the optimizer's value applies.
struct OptimizerGroup {
  NamePattern match;
  std::optional<double> learning_rate, weight_decay;
};

// Values of an optimizer's section. Options that an optimizer does not have keep the values below.
struct OptimizerOptions {
  std::string name;
  double learning_rate = 0;
  double weight_decay = 0;
  double clip_norm = 0;  // 0: no clipping
  std::vector<OptimizerGroup> groups = {};

  double momentum = 0;  // sgd
  bool nesterov = false;
  double beta1 = 0, beta2 = 0;  // adam, adamw
  double eps = 0;               // adam, adamw, adagrad
  bool decoupled = false;       // AdamW's weight decay

  bool lazy = false;                        // sparse embeddings: rows without gradient do not change
  std::optional<bool> exact_catch_up = {};  // applies missed updates one by one; none: only in fp64 on the CPU
  int moments = 2;                          // tensors of a parameter's size
  // Returns the index of the first group that matches, if there is one.
  std::optional<size_t> group_of(const std::string& parameter) const;
};
OptimizerOptions optimizer_options(const Component& optimizer);

// Obstacle to sparse embeddings with this optimizer and the weight decay of the table: the key of its option, and the
// reason. Empty: there is none.
struct SparseObstacle {
  std::string key;
  std::string reason;
};
SparseObstacle row_obstacle(const OptimizerOptions& optimizer, double weight_decay);

}  // namespace convoy
