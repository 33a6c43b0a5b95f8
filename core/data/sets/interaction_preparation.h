// Preparation of interactions: scaled or categorical context columns, and scaled features of items and users.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/data/preparation.h"

namespace convoy {

struct Interactions;  // core/data/sets/interactions.h

struct PreparedInteractions {
  PreparationOptions options;
  Preparation context;                      // applied when rows are gathered
  Preparation item, user;                   // applied once
  at::Tensor item_features, user_features;  // prepared: float32 [items, F], [users, U]; undefined if there are none

  PreparedInteractions() = default;
  // Means and deviations of context columns are those of the rows `train`, of features those of all ids. With `stored`
  // they are the checkpoint's. Logs a hint if context columns should be scaled.
  PreparedInteractions(const Interactions& all, const std::vector<int32_t>& train, PreparationOptions options,
                       const Preparations* stored = nullptr);

  int64_t contexts() const { return context.width(); }
  Preparations preparations() const;
};

// Numbers the words of the context columns as the stored preparation does. Error(corrupt_data) for a word that it does
// not have.
void number_context_words(Interactions& all, const Preparation& stored);

}  // namespace convoy
