// Column cache: the parsed or decoded form of a file, in binary next to it: SOURCE.cache.safetensors.
//
// Location: next to the source. If that folder is not writable, or belongs to installed packages (below /usr), the
// user's cache folder: $XDG_CACHE_HOME/convoy, else ~/.cache/convoy. If no folder is writable there is no cache, and
// one warning.
// Validity: a cache belongs to the exact bytes of its source (their XXH3 hash) and to the options with which they were
// read (`how`). A hash protects its contents. It is used only if it belongs to this user or root, no other user may
// write it, and its columns pass the check. A stale or damaged cache, or one of a different version, is rebuilt. A
// cache of another user is left alone; the cache for this user is then in the user's cache folder.
// Several processes that start together parse once. All of them map the cache read-only, so it is in memory once per
// host.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/data/formats/input_files.h"
#include "core/data/preparation.h"

namespace convoy {

using Columns = std::map<std::string, at::Tensor>;  // CPU, contiguous; read-only

// True if the columns have the parser's form: complete, with their dtypes and shapes, all numbers within their ranges.
// Readers of the columns do not check again.
using ColumnCheck = std::function<bool(const Columns&)>;

// During its lifetime, this thread waits at most `seconds` for another rank that parses the same file. The limit must
// be less than launch.rendezvous, which would end the job with a message that does not name the lock.
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
                       const ColumnCheck& check);

// As cached_columns, for computed columns; the file is FOLDER/NAME-HASH.cache.safetensors. HASH is the hash of `how`,
// which describes every input of the columns. Creates the folder if needed.
Columns made_columns(const std::string& folder, const std::string& name, const std::string& how,
                     const std::function<Columns()>& make, const ColumnCheck& check);

// For a ColumnCheck: true if the column exists with this dtype and shape; −1 matches any size.
bool has_column(const Columns& columns, const std::string& name, at::ScalarType dtype, at::IntArrayRef shape);
// True if every element of an integer tensor is in [0, end).
bool all_below(const at::Tensor& numbers, int64_t end);

// The words of a table's columns (ColumnWords) as three columns of a cache: word_bytes, word_ends, word_column.
void add_words(Columns& columns, const std::vector<ColumnWords>& words);
// Returns the words by column of the table; no list if none are stored.
std::vector<ColumnWords> words_of(const Columns& columns, size_t width);
// For a ColumnCheck. `wanted`: words must be stored; else they must not be. True if this holds, and if the float table
// `values` [rows, width] has valid numbers in columns of words.
bool are_valid_words(const Columns& columns, bool wanted, const at::Tensor& values);

}  // namespace convoy
