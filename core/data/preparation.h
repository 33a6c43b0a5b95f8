// Preparation: how the columns of a file become the numbers that a model takes. Computed once, from the training
// split; stored in checkpoints, so that it applies to new rows too.
//
//   a column of numbers   (x − mean) / deviation (data.scale), or x; a missing number is filled with the mean
//   a column of words     one number for each category: 1 for the category of the row, else 0 (data.categorical)
//
// Raw rows are float: a word is the number of its category, a missing value is NaN.
// Threads: const after construction.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/options.h"
#include "core/data/contents.h"
#include "core/data/formats/delimited.h"

namespace convoy {

// data.scale, data.categorical, data.missing
struct PreparationOptions {
  bool scale = false;
  bool fill = false;  // data.missing: fill; else a missing value is an error
  std::vector<std::string> categorical;

  static PreparationOptions from(const Options& data);
  bool is_categorical(const std::string& column) const;
};

// The words of a column by their numbers, sorted as the classes of a table.
using ColumnWords = std::vector<std::string>;

struct PreparedColumn {
  std::string name;
  bool categorical = false;
  std::vector<std::string> categories;  // "": the value is missing
  double mean = 0, deviation = 1;
  bool scaled = false;  // (x − mean) / deviation
  bool fills = false;   // missing values are allowed, and become the mean

  int64_t width() const { return categorical ? int64_t(categories.size()) : 1; }
};

class Preparation {
 public:
  Preparation() = default;  // for rows without columns: changes nothing
  explicit Preparation(std::vector<PreparedColumn> columns);
  // Computes mean and deviation from `rows` of `raw` [N, columns], an array of any real dtype; null: from all rows. A
  // constant column keeps its deviation of 1. `words`: by column; empty: a column of numbers.
  Preparation(const std::vector<std::string>& names, const std::vector<ColumnWords>& words, const at::Tensor& raw,
              const std::vector<int64_t>* rows, const PreparationOptions& options);

  // True if prepared rows equal raw ones.
  bool is_identity() const { return identity_; }
  const std::vector<PreparedColumn>& columns() const { return columns_; }
  int64_t raw_width() const { return int64_t(columns_.size()); }
  int64_t width() const { return width_; }
  // from [rows, raw_width] → to [rows, width]. The two may be the same memory if the widths are equal. A category −1
  // gives zeros.
  void apply(const float* from, int64_t rows, float* to) const;
  // Error(config) unless the columns with words are those that are categorical here. `words`: as of the constructor.
  void check_words(const std::vector<ColumnWords>& words) const;
  at::Tensor applied(const at::Tensor& raw) const;  // float [N, raw_width] → [N, width]
  // A warning if unscaled columns differ so much that training suffers; "" else.
  std::string scale_hint() const;

 private:
  std::vector<PreparedColumn> columns_;
  std::vector<double> spreads_;  // deviations of the training rows, by column; empty if they are unknown
  int64_t width_ = 0;
  bool identity_ = true;
};

// By field of a batch: "features", "context", "item_features", "user_features".
using Preparations = std::map<std::string, Preparation>;
// The list "preparation" of DataContents, and back. Error(corrupt_data) for a list of another form.
NumberedNames stored_preparations(const Preparations& preparations);
Preparations preparations_of(const DataContents& contents);

// Numbers the words of a column in the order of their first appearance, while a file is read.
class WordNumbers {
 public:
  int64_t operator()(std::string_view word);
  // Sorts the words, by value if all are numbers, else by text; element i of the result is the new number of word i.
  std::vector<int64_t> sort();
  const ColumnWords& words() const { return words_; }

 private:
  std::unordered_map<std::string, int64_t> numbers_;
  ColumnWords words_;
};

// Most categories of a column, because each becomes an input of the model. Data sets throw Error(config) for more.
constexpr int64_t most_categories = 4096;

// The raw value of a field: a number, or NaN if the value is missing and `fill` is true.
float raw_number(const DelimitedReader& reader, size_t column, bool fill, const char* option);
// The word of a field of a categorical column; "" if it is missing and `fill` is true.
std::string_view raw_word(const DelimitedReader& reader, size_t column, bool fill);

// Reads fields as the raw values of a Preparation's columns.
class RawValues {
 public:
  explicit RawValues(const Preparation& preparation);
  // Returns the value of column `index` of the preparation in field `field`; a category is its number. nullopt: the
  // training data does not have this category.
  std::optional<float> read(const DelimitedReader& reader, size_t field, size_t index, const char* option) const;

 private:
  std::vector<PreparedColumn> columns_;
  std::vector<std::unordered_map<std::string, float>> numbers_;  // by column, of its categories
};

}  // namespace convoy
