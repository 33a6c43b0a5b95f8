// Initial values of a model from files (model.init_from), under any strategy.
//
// Each rank writes the pieces that its strategy holds; from a mapped file it reads no others. A source is a checkpoint
// of convoy with canonical names, or has the names and layouts of Python (core/checkpoint/weight_names.h).
// Threads: load is collective, in the rank's thread. Failure: ConfigError at model.init_from, or at the option that
// contradicts config.json; Error(corrupt_data) naming the file. All ranks fail with the same cause.
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

// The tensors of the source for one tensor of the model.
struct WeightMatch {
  WeightName name;                  // with the names that the source has, before renaming
  std::vector<std::string> stored;  // the same, as they are in the files
};

struct WeightMatches {
  std::map<std::string, WeightMatch> found;  // by canonical name
  std::vector<std::string> missing;          // canonical names of the model that the source lacks
  std::vector<std::string> unused;           // names in the files that nothing takes
};

// Finds the tensors of the source for those of a model: canonical names and whole shapes. Error(config) for another
// shape, and for integers in place of real numbers.
WeightMatches match_weights(const WeightSource& source, const WeightNames& names, const InitFrom& wanted,
                            const std::map<std::string, std::vector<int64_t>>& model);

// Lines for the log: what was read, what stays random, what was not used. Equal lines of numbered blocks become one.
std::vector<std::string> match_lines(const WeightMatches& matches, const std::string& path);

// Collective: writes the parameters and buffers of the strategy, and what derives from them.
void load_initial_weights(const Context& context, Strategy& strategy, const WeightNames& names);

}  // namespace convoy
