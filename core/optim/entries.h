// The descriptions that the catalogue lists, and the options that every optimizer has. Without LibTorch.
#pragma once
#include <vector>

#include "core/options.h"

namespace convoy {

Entry sgd_entry();
Entry adagrad_entry();
Entry adam_entry();
Entry adamw_entry();
Entry constant_entry();
Entry linear_entry();
Entry cosine_entry();
Entry step_entry();

// lr, weight_decay, clip_norm, groups, schedule, with these defaults.
std::vector<Option> common_optimizer_options(double learning_rate, double weight_decay);
// What these options contradict each other in: a group that changes nothing. Throws ConfigError at its item.
void check_groups(const Options& optimizer);

}  // namespace convoy
