// Initial values of a model from files (model.init_from), under any strategy.
//
// Each rank fills the pieces that its strategy holds, and reads only these from the mapped files. A source is a
// checkpoint of convoy with canonical names, or has the names and layouts of Python (core/checkpoint/weight_names.h).
// Threads: load is collective, in the rank's thread. Failure: ConfigError at model.init_from, or at the option that
// contradicts config.json; Error(corrupt_data) naming the file. If rank 0 refuses the values, other ranks throw
// CommError(peer_lost).
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint/weight_names.h"
#include "core/checkpoint/weight_source.h"
#include "core/config/init_from.h"
#include "core/context.h"
#include "core/strategy.h"

namespace convoy {

// Tensors of the source for one tensor of the model.
struct WeightMatch {
  WeightName name;                  // names in the source, before renaming
  std::vector<std::string> stored;  // the same names, as they are in the files
};

struct WeightMatches {
  std::map<std::string, WeightMatch> found;  // by canonical name
  std::vector<std::string> missing;          // tensors of the model that the source lacks, by canonical name
  std::vector<std::string> unused;           // names in the files that no tensor of the model uses
  std::vector<std::string> idle_renames;     // patterns of `rename` that match no name
};

// Finds the tensors of the source for each tensor of a model. `model`: shape of the whole tensor by canonical name.
// Error(config) for a different shape, and for integers in place of real numbers.
WeightMatches match_weights(const WeightSource& source, const WeightNames& names, const InitFrom& wanted,
                            const std::map<std::string, std::vector<int64_t>>& model);

// Returns lines for the log: tensors that were read, stay random, or were not used. Equal lines of numbered blocks
// become one.
std::vector<std::string> match_lines(const WeightMatches& matches, const std::string& path);

// Collective. Writes the parameters and buffers of the strategy, and all values that derive from them.
void load_initial_weights(const Context& context, Strategy& strategy, const WeightNames& names);

}  // namespace convoy
