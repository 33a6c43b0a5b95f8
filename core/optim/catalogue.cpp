// Optimizers and schedules by name. One line each.
#include "core/optim/catalogue.h"

#include "core/optim/entries.h"

namespace convoy {

const std::vector<Entry>& optimizer_catalogue() {
  static const std::vector<Entry> entries{sgd_entry(), adam_entry(), adamw_entry(), adagrad_entry()};
  return entries;
}

const std::vector<Entry>& schedule_catalogue() {
  static const std::vector<Entry> entries{constant_entry(), linear_entry(), cosine_entry(), step_entry()};
  return entries;
}

}  // namespace convoy
