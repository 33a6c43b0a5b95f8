// Options that all data sets of interactions share. Without LibTorch.
#pragma once
#include <vector>

#include "core/config/without_effect.h"
#include "core/describe.h"

namespace convoy {

inline std::vector<Option> ranking_options() {
  return {
      describe::integer("negatives", "items drawn for each positive, anew each epoch", 4).at_least(0).at_most(100000),
      describe::choice("ranking",
                       "of the held-out item: among drawn candidates, or among all items that are new to the user",
                       {"sampled", "full"}, "sampled"),
      describe::integer("candidates", "sampled ranking: distinct items that the user never touched", 99)
          .at_least(1)
          .at_most(1000000),
      describe::section("evaluate", "who is evaluated",
                        {describe::integer("users", "so many, drawn by the seed; all by default")
                             .at_least(1)
                             .at_most(2147483647)
                             .may_be_null()}),
  };
}

// Throws ConfigError where they contradict each other.
inline void check_ranking(const Options& options) {
  if (options.text("ranking") == "full")
    refuse_without_effect(
        options, "candidates",
        "is for ranking: sampled, and ranking is full: every new item is ranked; leave one of them out",
        {options.mark("ranking")});
}

}  // namespace convoy
