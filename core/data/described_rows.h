// What a data set's rows will be, as far as its options tell: so that a model, loss or transform that cannot take them is
// refused before anything starts. The class itself says it exactly, by its schema. Without LibTorch.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/options.h"

namespace convoy {

struct DescribedField {
  std::optional<std::vector<int64_t>> shape;  // of one row; nullopt: the files tell
  bool classes = false;                       // ids or classes; else numbers
  bool flat = false;                          // of one dimension, however many numbers it has
};

struct DescribedRows {
  std::map<std::string, DescribedField> fields;  // by name, as in Schema; empty: nothing is known
  std::string what;                              // "classes of features", for messages

  bool known() const { return !fields.empty(); }
  bool has(const std::string& name) const { return fields.count(name) != 0; }
  // nullopt where there is no such field, or where only the files tell.
  std::optional<std::vector<int64_t>> shape(const std::string& name) const;
};

// Of the data set `name`; nothing is known of one that a plugin brings.
DescribedRows described_rows(const std::string& name, const Options& options);

// More numbers than these no machine holds. Products of sizes are compared with them, so that none overflows 64 bits.
constexpr double most_row_elements = 2147483648.0;            // one row's features
constexpr double most_elements = 1099511627776.0;             // one tensor of a model, one table of data
constexpr double most_batch_elements = 1024 * most_elements;  // one activation of a batch, all members together
constexpr double most_tokens = 1024 * 1024 * most_elements;   // tokens of all rows

// Throws ConfigError at the size that makes a row or a table too large. Returns how many numbers the largest tensor
// of a row has, 1 for a data set that a plugin brings.
double check_data_sizes(const std::string& name, const Options& options);

// Throws ConfigError at `data.transforms.N`, or at the option of it that does not fit such rows.
void check_transforms(const Options& data, const DescribedRows& rows);

// Throws ConfigError at `loss` where its targets are not those of such rows. `loss` has the option `name`.
void check_loss_rows(const Options& loss, const Options& data, const DescribedRows& rows);

}  // namespace convoy
