// Features: columns of numbers that describe an item or a user, from a file with one line per id.
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/options.h"
#include "core/data/formats/npy_header.h"
#include "core/data/readers/column_cache.h"
#include "core/data/readers/name_list.h"

namespace convoy {

// ValuesPerId: the values of a file's columns for each id. The first row of an id sets them; later rows are compared
// with it.
class ValuesPerId {
 public:
  explicit ValuesPerId(size_t columns);

  // Adds a row of the id; a new id must be the next number, from 0. Returns the first column that differs from the id's
  // first row, or the number of columns. A column that differs for any id is no longer watched.
  size_t add(int32_t id, const float* row, int64_t line);
  // Adds the rows of a later chunk of the file; its id i is numbers[i] here. Returns false if a column differs.
  bool merge(const ValuesPerId& part, const std::vector<int32_t>& numbers);

  const std::vector<size_t>& watched() const { return watched_; }  // columns with one value per id, in order
  bool same_for_all(size_t column) const;                          // for a watched column
  at::Tensor values() const;                                       // float32 [ids, columns]

 private:
  void drop();  // stops watching all columns

  size_t columns_;
  std::vector<size_t> watched_;
  std::vector<float> values_;
  std::vector<int64_t> lines_;
};

struct FeatureFile : TextFormat {
  std::string option;                // "data.item_features", for messages
  std::string entity;                // "item"
  std::string path;                  // "": none
  std::string id;                    // column of ids
  std::vector<std::string> columns;  // columns to read; empty: all others
  bool fill = false;                 // missing values are allowed

  // Reads data.item_features (entity: item) or data.user_features (entity: user), a section of `data`.
  static FeatureFile from(const Options& data, const std::string& entity);
  std::string cache_key() const;  // text of all members
};

struct Features {
  std::string path;  // for messages
  NameList ids;
  at::Tensor values;               // float32 [ids, columns]
  std::vector<std::string> names;  // column names
  std::string fingerprint;         // fingerprint of the file's bytes
};

// Throws Error(corrupt_data) with file:line:column, also for an id with two lines; Error(config) for a missing column.
Features parse_features(const FeatureFile& file, std::string_view text);
// Uses the column cache.
Features read_features(const FeatureFile& file);

// Returns the columns of all sources for these ids, in their order: float32 [ids, columns]; undefined without sources.
// Throws Error(corrupt_data) for an id that a source lacks.
at::Tensor features_of(const std::vector<Features>& sources, const NameList& ids, const std::string& entity);

// Converts rows of float32 [ids, columns] to byte strings, for the lists of a checkpoint; and back, undefined if the
// sizes do not match.
NameList rows_as_bytes(const at::Tensor& features);
at::Tensor rows_from_bytes(const NameList& rows, int64_t columns);

// Returns the names of all sources' columns, in that order. Throws Error(config) for a name in two sources.
std::vector<std::string> feature_names(const std::vector<Features>& sources);

}  // namespace convoy
