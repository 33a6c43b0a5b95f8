// DataContents: identifies the data that a model was trained on, and maps the numbers in its rows to names. Stored in
// checkpoints.
//
// Users, items, classes and tokens are numbers in a batch. The files determine these numbers, by first appearance or by
// sorted names. Parameters depend on them, so a run that resumes from a checkpoint must use the checkpoint's numbers.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/data/readers/name_list.h"

namespace convoy {

// A fingerprint has two parts: the hash of the files' names and sizes (earlier versions), and the hash of their
// content.

std::string with_content(const std::string& names_and_sizes, const std::string& content);

// A stored fingerprint with the first part alone matches any content.
bool same_fingerprint(const std::string& stored, const std::string& now);

struct NumberedNames {
  NameList names;      // by number
  bool whole = false;  // true: new data must have all of them (columns); false: some may be missing (users)
};

struct DataContents {
  std::string fingerprint;  // XXH3-128 of the data's bytes, independent of their location; "": the data set has none
  int64_t rows = 0;
  std::map<std::string, NumberedNames> lists;  // plural: users, items, context_columns, item_feature_columns,
                                               // user_feature_columns, classes, columns, tokens; tokenizer: for
                                               // each file its name, then its contents
};

// Combines the hashes of several files, in order.
std::string combined_fingerprint(const std::vector<std::string>& parts);

struct DataChange {
  std::vector<std::string> unknown;  // names without a stored number: "user '17' is not in the checkpoint"
  std::vector<std::string> other;    // all other differences: "120 rows, there are 100 in the checkpoint"
  bool renumber = false;             // the numbers differ from the stored ones

  bool none() const { return unknown.empty() && other.empty(); }
  std::string text() const;  // all differences, joined by commas
};

// If the bytes are equal, `other` is empty: only names and their numbers can differ. Otherwise `other` is not empty.
DataChange data_change(const DataContents& stored, const DataContents& now);

}  // namespace convoy
