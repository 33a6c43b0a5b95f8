// DataContents: which data a model was trained on, and what the numbers in its rows stand for. Kept in checkpoints.
//
// Users, items, classes and tokens are numbers in a batch; the numbers come from the files, by first appearance or by sorted
// names. Parameters follow these numbers, so a run that goes on from a checkpoint must use the checkpoint's numbers.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/data/name_list.h"

namespace convoy {

struct NumberedNames {
  NameList names;      // by number
  bool whole = false;  // new data must have all of them, as of columns; else some may be missing, as of users
};

struct DataContents {
  std::string fingerprint;  // XXH3-128 of the data's bytes, wherever they lie; "": the data set gives none
  int64_t rows = 0;
  std::map<std::string, NumberedNames> lists;  // plural: users, items, context_columns, item_feature_columns,
                                               // user_feature_columns, classes, columns, tokens
};

// Hash of the parts' hashes, in order.
std::string combined_fingerprint(const std::vector<std::string>& parts);

struct DataChange {
  std::vector<std::string> unknown;  // what the stored numbers cannot express: "user '17' is not in the checkpoint"
  std::vector<std::string> other;    // everything else that differs: "120 rows, there are 100 in the checkpoint"
  bool renumber = false;             // the numbers differ from the stored ones

  bool none() const { return unknown.empty() && other.empty(); }
  std::string text() const;  // all of it, joined by commas
};

// Data with equal bytes differs at most in its numbers; for all other data `other` says something.
DataChange data_change(const DataContents& stored, const DataContents& now);

}  // namespace convoy
