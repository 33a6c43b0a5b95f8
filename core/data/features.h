// Features: columns of numbers that describe an item or a user, from a file with a line per id.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/data/column_cache.h"
#include "core/data/name_list.h"
#include "core/options.h"

namespace convoy {

struct FeatureFile {
  std::string option;         // "data.item_features", for messages
  std::string thing;          // "item"
  std::string path;           // "": none
  bool typed_header = false;  // name:type, as RecBole's .item and .user have it
  char delimiter = ',';
  bool header = true;
  std::string id;                    // its column
  std::vector<std::string> columns;  // empty: all others

  // From data.item_features (thing: item) or data.user_features (thing: user), a section of `data`.
  static FeatureFile from(const Options& data, const std::string& thing);
  std::string described() const;  // how it is read: part of a cache's key
};

struct Features {
  std::string path;  // for messages
  NameList ids;
  at::Tensor values;               // float32 [ids, columns]
  std::vector<std::string> names;  // of the columns
  std::string fingerprint;         // of the file's bytes
};

// Throws Error(corrupt_data) with file:line:column, for an id with two lines too, and Error(config) for a column
// that is not there.
Features parse_features(const FeatureFile& file, std::string_view text);
// The same by way of the cache beside the file.
Features read_features(const FeatureFile& file);

// The columns of all sources for these ids, in their order: float32 [ids, columns]. Throws Error(corrupt_data) for
// an id that a source does not have. Undefined where there are no sources.
at::Tensor features_of(const std::vector<Features>& sources, const NameList& ids, const std::string& thing);

// Rows of float32 [ids, columns] as byte strings, for the lists of a checkpoint; and back, undefined where there are no such
// rows.
NameList rows_as_bytes(const at::Tensor& features);
at::Tensor rows_from_bytes(const NameList& rows, int64_t columns);

// The names of all sources' columns, in that order. Throws Error(config) for one that two of them have.
std::vector<std::string> feature_names(const std::vector<Features>& sources);

// data.delimiter and the like: by default a tab under a typed header, else a comma.
char delimiter_from(const Options& options, bool typed);
// data.format and the like: whether the header says name:type. `path` ends in one of `typed_endings` where that is
// automatic.
bool typed_header_from(const Options& options, const std::string& path, const std::vector<std::string>& typed_endings);

}  // namespace convoy
