// The options model.init_from and model.freeze: where initial values come from, and which of them stay. Without
// LibTorch.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/name_pattern.h"
#include "core/base/options.h"

namespace convoy {

struct InitFrom {
  std::string path;
  bool strict = true;  // every tensor of the model and of the files must match
  // Changes names in the files by each pair, in order, before they are compared. A name that becomes empty is left out.
  std::vector<std::pair<NamePattern, std::string>> rename;

  std::string renamed(std::string name) const;
};

// Returns the options that all models have: init_from and freeze.
std::vector<Option> common_model_options();

// model.freeze: parameters whose names it finds keep their initial values. nullopt if it is not set. ConfigError for a
// wrong pattern.
std::optional<NamePattern> frozen_names(const Options& model);

// Reads model.init_from; nullopt if it is not set. ConfigError for a wrong pattern.
std::optional<InitFrom> init_from(const Options& model);

// Checks the path before ranks start. ConfigError at model.init_from.path.
void check_init_from(const Options& model, const std::string& resume);

}  // namespace convoy
