// Catalogue of data sets and transforms, without LibTorch.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/options.h"

namespace convoy {
const std::vector<Entry>& dataset_catalogue();
const std::vector<Entry>& transform_catalogue();
std::vector<Option> common_data_options();  // keys of every data set: transforms, prefetch, samples, seed

bool is_image(const std::filesystem::path& path);  // true for names that end in PNG's or JPEG's extension, in any case

// Throws ConfigError at the key of a missing or unreadable file or folder, with advice. `name` is the data set's name;
// data sets of plugins are not checked.
void check_data_files(const std::string& name, const Options& options);

}  // namespace convoy
