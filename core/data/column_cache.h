// What was parsed from a text file, kept in binary beside it: SOURCE.cache.safetensors.
//
// A cache belongs to the exact bytes of its source (their XXH3 hash) and to how they were read (`how`); its own contents
// are hashed too. One that is stale, damaged or of another version is rebuilt; in a folder that may not be written there
// is none, said once. Several processes that come at the same time parse once and then share the mapped cache.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>

#include "core/data/mapped_file.h"

namespace convoy {

using Columns = std::map<std::string, at::Tensor>;  // CPU, contiguous; not to be written to

Columns cached_columns(const MappedFile& source, const std::string& how, const std::function<Columns()>& parse);

}  // namespace convoy
