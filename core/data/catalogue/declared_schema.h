// DeclaredSchema: the rows of a data set as far as its options determine them. So a model, loss or transform that does
// not match is refused before the start. Dataset::schema() is exact. Without LibTorch.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/ensemble_members.h"
#include "core/base/json.h"

namespace convoy {

struct DeclaredField {
  std::optional<std::vector<int64_t>> shape;  // shape of one row; nullopt: the files determine it
  bool classes = false;                       // ids or classes; otherwise numbers
  bool flat = false;                          // has one dimension of any length
};

struct DeclaredSchema {
  std::map<std::string, DeclaredField> fields;  // by name, as in Schema; empty: unknown
  std::string what;                             // "classes of features", for messages

  bool known() const { return !fields.empty(); }
  bool has(const std::string& name) const { return fields.count(name) != 0; }
  // Returns nullopt if there is no such field, or if only the files determine its shape.
  std::optional<std::vector<int64_t>> shape(const std::string& name) const;
};

// `name`: the data set. A plugin's data set has an empty schema.
DeclaredSchema declared_schema(const std::string& name, const Options& options);

// Limits above any machine's memory. They apply to products of sizes, so that no product overflows 64 bits.
constexpr double most_elements = 1099511627776.0;             // limit of a tensor of a model, and of a table of data
constexpr double most_batch_elements = 1024 * most_elements;  // one activation of a batch, all members together

double product_of(const std::vector<int64_t>& sizes);
// Throws ConfigError at the key if it gives `what` more than `most` elements.
void refuse_above(double most, const Options& options, const std::string& key, double elements, const char* what);

// Throws ConfigError at the size that makes a row or a table too large. Returns the number of elements of the largest
// tensor of a row; 1 for a plugin's data set.
double check_data_sizes(const std::string& name, const Options& options);

// Throws ConfigError at `data.transforms.N`, or at its option, if a transform does not match these rows.
void check_transforms(const Options& data, const DeclaredSchema& rows);

// Throws ConfigError at `loss` if its targets do not match these rows. `loss` has the option `name`.
void check_loss_rows(const Options& loss, const Options& data, const DeclaredSchema& rows);

// --- Shapes of arrays and tables from the headers of their files, before anything is loaded ---

using FileShape = std::optional<std::vector<int64_t>>;  // shape of one row's features; nullopt: no header has it

// Returns the shape of features of the data set `table`. `path`: the value of data.path or data.evaluate.path.
FileShape table_features_shape(const Options& options, const std::string& path);

// --- data.samples and data.seed: the rows of the training split to train on, and the seed of the sample ---

// With these keys a user trains one member of an ensemble alone, or one fold of a cross-validation.
std::vector<Option> samples_options();
// Throws ConfigError if the values contradict each other. `data`: a data set's options.
void check_samples(const Options& data);
// Returns the sample for a model with this seed; all rows if the options lack the keys.
MemberSample member_sample(const Options& data, uint64_t seed);
// Returns the value of `data.samples` with which a single model trains on these rows, without the seed.
Json samples_json(const MemberSample& sample);
// Returns the seed of all draws of a data set and its transforms: `data.seed`, or the run's.
uint64_t data_seed(const Options& data, uint64_t run_seed);

// Options that determine the held-out rows of a data set.
struct EvaluationSplit {
  bool holds_out = false;  // false also for separate files and plugins
  bool drawn = false;      // drawn by row number: a data set with other rows holds out other rows
  std::map<std::string, Json> options;
};
// `data`: the data set of a resolved configuration, maybe of an older version; `run_seed`: the run's seed.
EvaluationSplit evaluation_split(const Json& data, const Json& run_seed);

}  // namespace convoy
