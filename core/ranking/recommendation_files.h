// Files of `convoy recommend`: the lists of recommended items, and the users for whom they are made.
//
// Lists are CSV, JSON lines, or .npy, by the ending of the file's name:
//   .csv    USER,rank,ITEM,score: one line for each item, best first
//   .jsonl  {"USER": id, "ITEM": [ids], "score": [numbers]}: one line for each user
//   .npy    one record for each user, fields USER, ITEM [k], score [k]; read with numpy.load, without pickle. The
//           elements after the last item have the id "" (−1 for numbers) and the score NaN
// USER and ITEM are the columns' names. Ids are those of the training file; of data without ids, numbers.
//
// Threads: one. Failure: as OutputFile.
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/data/formats/delimited.h"
#include "core/data/formats/input_files.h"
#include "core/data/preparation.h"
#include "core/data/readers/name_list.h"
#include "core/files/output_file.h"
#include "core/ranking/item_ranking.h"

namespace convoy {

struct RecommendationFormat {
  std::string user = "user", item = "item";  // names of the columns
  NameList user_names, item_names;           // empty: numbers
  int64_t users = 0;                         // number of lists
  int64_t k = 0;
  at::ScalarType dtype = at::kFloat;  // of the scores
};

class RecommendationWriter {
 public:
  virtual ~RecommendationWriter() = default;

  // The lists of these users (numbers), one for each row of `top`.
  virtual void write(const int64_t* users, const TopItems& top) = 0;
};

// The caller commits `out` after the last list. Error(command_line) if the name of `out` has another ending.
std::unique_ptr<RecommendationWriter> make_recommendation_writer(OutputFile& out, RecommendationFormat format);

// UserFile: users to recommend for, optionally with contexts.
//
// CSV (tabs for names that end in .tsv, .inter or .user). If the first line has the name of the user column, it has the
// names of all columns; otherwise each line is an id. Columns that are no context are ignored. A user may occur again,
// with another context.
// Threads: one. Failure: Error(corrupt_data) with file and line; Error(io).
class UserFile {
 public:
  // `names`: ids by number; empty: ids are the numbers below `users`. `contexts`: names of the context columns.
  // `preparation`: of these columns; it outlives the object. Null: all are numbers, and none may be missing.
  UserFile(const std::string& path, const std::string& user_column, const NameList& names, int64_t users,
           const std::vector<std::string>& contexts, const Preparation* preparation = nullptr);

  const std::vector<int32_t>& numbers() const { return numbers_; }  // of each line's user
  bool has_contexts() const { return !context_columns_.empty(); }
  const std::vector<std::string>& ignored() const { return ignored_; }
  // Returns the raw contexts of the next `lines` lines: [lines, C]. A category is its number.
  at::Tensor next_contexts(int64_t lines);

 private:
  void read_header(const std::string& user_column, const std::vector<std::string>& contexts);
  void find_numbers(const NameList& names, int64_t users);
  DelimitedReader lines() const;         // after the header
  float context_of(size_t index) const;  // of the current line

  MappedFile file_;
  char delimiter_;
  bool header_ = false, typed_ = false;
  size_t user_column_ = 0;
  std::vector<size_t> context_columns_;
  const Preparation* preparation_;
  std::vector<std::string> ignored_;
  std::vector<int32_t> numbers_;
  std::optional<DelimitedReader> reading_;  // contexts
  std::optional<RawValues> raw_;            // values of contexts
};

}  // namespace convoy
