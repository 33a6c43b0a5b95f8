// Interactions from delimited text: a typed header (user_id:token <tab> item_id:token <tab> timestamp:float, as RecBole's
// .inter files have it), or CSV with declared columns.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/data/column_cache.h"
#include "core/data/interactions.h"

namespace convoy {

struct InteractionColumns {
  bool typed_header = false;  // name:type, with types token and float
  char delimiter = ',';
  bool header = true;  // without one, columns are called "1", "2", …
  std::string user = "user_id";
  std::string item = "item_id";
  std::string time;                                       // "": "timestamp" where the file has it
  std::vector<std::string> context;                       // numbers
  std::vector<std::string> item_features, user_features;  // numbers with one value per item, per user
  std::string weight;                                     // "": none

  // From data.format, delimiter, header, columns; `path` decides the format where it is auto.
  static InteractionColumns from(const Options& options, const std::string& path);
  std::string described() const;  // all of the above: part of a cache's key
};

// Throws Error(corrupt_data) with file:line:column, Error(config) for a column that is not there.
Interactions parse_interactions(const std::string& path, std::string_view text, const InteractionColumns& columns);

// The same by way of the cache beside the file.
Interactions read_interactions(const std::string& path, const InteractionColumns& columns);

// Joins the files' columns, by id, to those features that the interactions have. A file without a path adds nothing.
void add_features(Interactions& all, const FeatureFile& items, const FeatureFile& users);

}  // namespace convoy
