// Reads interactions from delimited text: RecBole's .inter files with a typed header (user_id:token <tab> item_id:token
// <tab> timestamp:float), or CSV with declared columns.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/data/formats/npy_header.h"
#include "core/data/readers/column_cache.h"
#include "core/data/sets/interactions.h"

namespace convoy {

struct InteractionColumns : TextFormat {
  std::string user = "user_id";
  std::string item = "item_id";
  std::string time;                                       // "": "timestamp" if the file has it
  std::vector<std::string> context;                       // numbers
  std::vector<std::string> item_features, user_features;  // numbers with one value per item, per user
  std::string weight;                                     // "": none
  PreparationOptions prepare;

  // Reads data.format, delimiter, header, columns; `path` determines the format if it is auto.
  static InteractionColumns from(const Options& options, const std::string& path);
  std::string cache_key() const;  // text of all members
};

// Throws Error(corrupt_data) with file:line:column; Error(config) for a missing column.
Interactions parse_interactions(const std::string& path, std::string_view text, const InteractionColumns& columns);

// Uses the column cache. `path` may be a pattern of several files (core/data/formats/input_files.h).
Interactions read_interactions(const std::string& path, const InteractionColumns& columns);

// Form of the column cache (column_cache.h).
Columns columns_of(const Interactions& all);
bool are_valid_columns(const Columns& columns, const InteractionColumns& how);

// One table of the interactions of several files (joined_files.cpp).
Interactions joined_interactions(std::vector<Interactions> parts, const std::vector<std::string>& paths);

// Joins the files' columns to the features of the interactions, by id. Ignores a file without a path.
void add_features(Interactions& all, const FeatureFile& items, const FeatureFile& users);

}  // namespace convoy
