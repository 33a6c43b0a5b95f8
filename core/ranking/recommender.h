// Recommendations: lists of the best new items for users of a data set of interactions.
//
// Users come from a file, or are all users with an interaction, in the order of their numbers. A user's list leaves out
// all items of the user's interactions, held-out ones too, unless `include_seen`. Contexts come from the file of users,
// or from the user's last interaction (in time; without times, in the file).
// Memory in addition to model and data: 20 bytes per user, 4 per interaction, and up to 40 per line of the file of
// users; the terms of items, up to ItemRanking::default_cache; the rows and scores of one block of users.
// Threads: one caller. Failure: Error(command_line) for k, Error(corrupt_data) for a wrong line of the file of users,
// Error(training) for scores that are not numbers, and those of the writer.
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/data/formats/delimited.h"
#include "core/data/formats/input_files.h"
#include "core/data/preparation.h"
#include "core/data/readers/name_list.h"
#include "core/data/sets/interactions.h"
#include "core/files/output_file.h"
#include "core/ranking/item_ranking.h"
#include "core/ranking/pair_scorer.h"

namespace convoy {

struct RecommendOptions {
  std::string users;  // file; "": all users with an interaction
  int64_t k = 10;
  bool include_seen = false;
  std::string user_column = "user", item_column = "item";  // names of the columns, also in the file
  const PreparedInteractions* prepared = nullptr;          // preparation of contexts and features; null: none
};

struct RecommendReport {
  int64_t users = 0;                         // number of lists
  int64_t shorter = 0;                       // lists with fewer than k items: the user already has nearly all
  std::vector<std::string> ignored_columns;  // columns of the file of users that were not used
  bool contexts_from_file = false;           // false: from last interactions, if rows have contexts
};

// Limits of a block. A block of 2²⁴ pairs of a user and an item takes a few seconds.
constexpr int64_t users_together = 1024;
constexpr int64_t most_pairs_together = int64_t{1} << 24;  // a block has at least 16 users, also beyond it

struct RecommendProgress {
  int64_t users = 0, total_users = 0;  // users whose lists are written, and all users
  int64_t block_users = 0;             // users of the current block; 0: between blocks
  int64_t items = 0, total_items = 0;  // items scored for the current block, and all items
};

// Writes the lists to `out` (RecommendationWriter) and commits it. `progress` is called after each block of users, and
// within a block after each block of items.
RecommendReport recommend(const Interactions& all, PairScorer& scorer, const RecommendOptions& options, OutputFile& out,
                          const std::function<void(const RecommendProgress&)>& progress = nullptr);

// --- Files of `convoy recommend`: the lists of recommended items, and the users for whom they are made ---
//
// Lists are CSV, JSON lines, or .npy, by the ending of the file's name:
//   .csv    USER,rank,ITEM,score: one line for each item, best first
//   .jsonl  {"USER": id, "ITEM": [ids], "score": [numbers]}: one line for each user
//   .npy    one record for each user, fields USER, ITEM [k], score [k]; read with numpy.load, without pickle. The
//           elements after the last item have the id "" (−1 for numbers) and the score NaN
// USER and ITEM are the columns' names. Ids are those of the training file, or numbers if the data has no ids.
//
// Threads: one. Failure: as OutputFile.

struct RecommendationFormat {
  std::string user = "user", item = "item";  // names of the columns
  NameList user_names, item_names;           // empty: numbers
  int64_t users = 0;                         // number of lists
  int64_t k = 0;
  at::ScalarType dtype = at::kFloat;  // dtype of the scores
};

class RecommendationWriter {
 public:
  virtual ~RecommendationWriter() = default;

  // Writes one list for each row of `top`. users[r]: the number of the user of row r.
  virtual void write(const int64_t* users, const TopItems& top) = 0;
};

// --- UserFile ---

// UserFile: users to recommend for, optionally with contexts.
//
// CSV (tabs for names that end in .tsv, .inter or .user). If the first line contains the name of the user column, it is
// a header; otherwise each line is an id. The file has all context columns or none; other columns are ignored. A user
// may occur several times, with different contexts.
// Threads: one. Failure: Error(corrupt_data) with file and line; Error(io).
class UserFile {
 public:
  // `names`: ids by number; empty: ids are the numbers below `users`. `contexts`: names of the context columns.
  // `preparation`: that of these columns; it outlives the object. Null: contexts are numbers, and none may be missing.
  UserFile(const std::string& path, const std::string& user_column, const NameList& names, int64_t users,
           const std::vector<std::string>& contexts, const Preparation* preparation = nullptr);

  const std::vector<int32_t>& numbers() const { return numbers_; }  // number of the user, by line
  bool has_contexts() const { return !context_columns_.empty(); }
  const std::vector<std::string>& ignored() const { return ignored_; }
  // Returns the raw contexts of the next `lines` lines: float32 [lines, C]. Categories are numbers.
  at::Tensor next_contexts(int64_t lines);

 private:
  void read_header(const std::string& user_column, const std::vector<std::string>& contexts);
  void find_numbers(const NameList& names, int64_t users);
  DelimitedReader lines() const;         // starts after the header
  float context_of(size_t index) const;  // value of context column `index` in the current line

  MappedFile file_;
  char delimiter_;
  bool header_ = false, typed_ = false;
  size_t user_column_ = 0;
  std::vector<size_t> context_columns_;
  const Preparation* preparation_;
  std::vector<std::string> ignored_;
  std::vector<int32_t> numbers_;
  std::optional<DelimitedReader> reading_;  // reads the contexts
  std::optional<RawValues> raw_;            // turns their text into numbers
};

}  // namespace convoy
