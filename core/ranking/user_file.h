// UserFile: users to recommend for, optionally with contexts.
//
// CSV (tabs for names that end in .tsv, .inter or .user). If the first line has the name of the user column, it has the
// names of all columns; otherwise each line is an id. Columns that are no context are ignored. A user may occur again,
// with another context.
// Threads: one. Failure: Error(corrupt_data) with file and line; Error(io).
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

namespace convoy {

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
