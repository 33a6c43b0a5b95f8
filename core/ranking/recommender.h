// Recommender: lists of the best new items for users of a data set of interactions.
//
// Users come from a file, or are all users with an interaction, in the order of their numbers. A user's list leaves out
// all items of the user's interactions, held-out ones too. Contexts come from the file of users, or from the user's
// last interaction (in time; without times, in the file).
// Memory besides model and data: 12 bytes per user, 4 per interaction, 24 per line of the file of users; the terms of
// items up to ItemRanking::default_cache; blocks of users_together users and of scores.
// Threads: one caller. Failure: Error(command_line) for k, Error(corrupt_data) for a wrong line of the file of users,
// Error(training) for scores that are not numbers, and those of the writer.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/data/sets/interactions.h"
#include "core/files/output_file.h"
#include "core/ranking/pair_scorer.h"

namespace convoy {

struct RecommendOptions {
  std::string users;  // file; "": all users with an interaction
  int64_t k = 10;
  bool include_seen = false;
  std::string user_column = "user", item_column = "item";  // names of the columns, also in the file
  const PreparedInteractions* prepared = nullptr;          // of contexts and features; null: they are used as they are
};

struct RecommendReport {
  int64_t users = 0;                         // lists
  int64_t shorter = 0;                       // lists with fewer than k items: the user already has nearly all
  std::vector<std::string> ignored_columns;  // of the file of users
  bool contexts_from_file = false;           // else from last interactions, if rows have contexts
};

constexpr int64_t users_together = 1024;
constexpr int64_t most_pairs_together = int64_t{1} << 24;  // of a block, at most; a few seconds of work

struct RecommendProgress {
  int64_t users = 0, total_users = 0;  // lists that are done, and all
  int64_t block_users = 0;             // users of the block in work; 0: between blocks
  int64_t items = 0, total_items = 0;  // scored for these users, and all
};

// Writes the lists to `out` and commits it (core/ranking/recommendation_files.h). `progress` is called after each block
// of users, and within a block after each block of items.
RecommendReport recommend(const Interactions& all, PairScorer& scorer, const RecommendOptions& options, OutputFile& out,
                          const std::function<void(const RecommendProgress&)>& progress = nullptr);

}  // namespace convoy
