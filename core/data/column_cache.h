// What was parsed or decoded from a file, kept in binary beside it: SOURCE.cache.safetensors. Where that folder may not be
// written, or belongs to installed packages (below /usr), it is kept in the user's own: $XDG_CACHE_HOME/convoy, else
// ~/.cache/convoy.
//
// A cache belongs to the exact bytes of its source (their XXH3 hash) and to how they were read (`how`); its own contents
// are hashed too. A cache is used only if it belongs to this user or root, nobody else may write it, and its columns pass
// `sound`. One that is stale, damaged or of another version is rebuilt; one of another user stays, and this user's is kept
// in the user's own folder. Where no folder may be written there is none, said once. Several processes that come at the same time parse once, and all of them, the one that parsed included,
// map the cache read-only: it is in memory once. The log says so.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>

#include "core/data/mapped_file.h"

namespace convoy {

using Columns = std::map<std::string, at::Tensor>;  // CPU, contiguous; not to be written to

// Whether columns are such as the parser makes: all of them there, with their dtypes and shapes, and every number in its
// range. Whoever uses the columns relies on it.
using Sound = std::function<bool(const Columns&)>;

// While it lives, this thread waits at most `seconds` for another rank that parses the same file: less than
// launch.rendezvous, which would end the job without naming the lock.
class CacheLockLimit {
 public:
  explicit CacheLockLimit(double seconds);
  ~CacheLockLimit();
  CacheLockLimit(const CacheLockLimit&) = delete;
  CacheLockLimit& operator=(const CacheLockLimit&) = delete;

 private:
  const double outer_;
};

Columns cached_columns(const MappedFile& source, const std::string& how, const std::function<Columns()>& parse,
                       const Sound& sound);

// The same for what is computed and not read: kept as FOLDER/NAME-HASH.cache.safetensors, the hash being that of `how`, which
// tells all that the columns depend on. The folder is made where it is missing.
Columns made_columns(const std::string& folder, const std::string& name, const std::string& how,
                     const std::function<Columns()>& make, const Sound& sound);

// For `Sound`. False where there is no such column, or one of another dtype or shape; −1 stands for any size.
bool has_column(const Columns& columns, const std::string& name, at::ScalarType dtype, at::IntArrayRef shape);
// Every element of an integer tensor is in [0, end).
bool all_below(const at::Tensor& numbers, int64_t end);

}  // namespace convoy
