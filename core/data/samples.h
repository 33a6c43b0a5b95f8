// `data.samples` and `data.seed`: which rows of the training split a model is trained on, and what draws them, as its user
// writes it. So that one member of an ensemble can be trained by itself, and one fold of a cross-validation. Without LibTorch.
#pragma once
#include <cstdint>
#include <vector>

#include "core/member_draw.h"
#include "core/options.h"

namespace convoy {

std::vector<Option> samples_options();
// Throws ConfigError where the values contradict each other. `data`: a data set's options.
void check_samples(const Options& data);
// What they choose for a model with this seed; all rows for options without the keys.
MemberDraw data_draw(const Options& data, uint64_t seed);
// Seed of all that a data set and its transforms draw: `data.seed`, or the run's.
uint64_t data_seed(const Options& data, uint64_t run_seed);

}  // namespace convoy
