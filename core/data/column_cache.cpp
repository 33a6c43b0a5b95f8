// Lookup, lock, parse, write whole and rename.
#include "core/data/column_cache.h"

#define XXH_INLINE_ALL
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <vector>

#include "core/checkpoint/safetensors.h"
#include "core/error.h"
#include "core/log.h"

namespace convoy {
namespace {

constexpr const char* version = "1";  // of what parsers make of the same bytes

// How long to wait for another process that may be parsing the same file.
constexpr double lock_seconds = 300;

std::string hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

std::string hash_of(std::string_view bytes) { return hex(XXH3_64bits(bytes.data(), bytes.size())); }

std::string hash_of(const Columns& columns) {
  uint64_t hash = 0;
  for (const auto& [name, tensor] : columns) {
    hash = XXH3_64bits_withSeed(name.data(), name.size(), hash);
    hash = XXH3_64bits_withSeed(tensor.const_data_ptr(), tensor.nbytes(), hash);
  }
  return hex(hash);
}

using Facts = std::map<std::string, std::string>;

std::optional<Columns> read_cache(const std::string& path, const Facts& wanted) {
  if (!std::filesystem::exists(path)) return std::nullopt;
  try {
    const SafetensorsFile file(path);
    Facts facts = file.metadata();
    const std::string contents = facts["contents"];
    facts.erase("contents");
    if (facts != wanted) return std::nullopt;
    Columns columns;
    for (const auto& name : file.names()) columns[name] = file.tensor(name);
    if (hash_of(columns) != contents) return std::nullopt;
    return columns;
  } catch (const Error&) {
    return std::nullopt;  // damaged: rebuilt
  }
}

void write_cache(const std::string& path, const std::string& temporary, Facts facts, const Columns& columns) {
  facts["contents"] = hash_of(columns);
  std::vector<std::pair<std::string, at::Tensor>> entries(columns.begin(), columns.end());
  // Wide elements first, so that all of them are aligned in the mapping.
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return a.second.element_size() > b.second.element_size(); });
  try {
    std::filesystem::remove(temporary);  // of a process that was killed
    write_safetensors(temporary, entries, facts);
    std::filesystem::rename(temporary, path);
  } catch (const std::exception& failure) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    log::warning(str("no cache of the data beside its source, which will be parsed at each start: ", failure.what()));
  }
}

}  // namespace

Columns cached_columns(const MappedFile& source, const std::string& how, const std::function<Columns()>& parse) {
  const std::string path = source.path() + ".cache.safetensors";
  const Facts facts{{"convoy_cache", version}, {"source", hash_of(source.text())}, {"how", how}};
  if (auto found = read_cache(path, facts)) return std::move(*found);

  const auto folder = std::filesystem::absolute(source.path()).parent_path();
  if (access(folder.c_str(), W_OK) != 0) {
    log::warning(
        str("no cache of ", source.path(), ", since its folder may not be written: it is parsed at each start"));
    return parse();
  }
  const MappedFile guard(source.path());  // of its own, so that the lock ends here
  const bool locked = guard.lock(lock_seconds);
  if (auto found = read_cache(path, facts)) return std::move(*found);
  Columns columns = parse();
  // Under the lock the temporary has one name, so that what a killed process left is overwritten.
  write_cache(path, locked ? path + ".partial" : str(path, ".partial.", getpid()), facts, columns);
  return columns;
}

}  // namespace convoy
