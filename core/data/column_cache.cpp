// Lookup, lock, parse, write whole and rename.
#include "core/data/column_cache.h"

#define XXH_INLINE_ALL
#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <vector>

#include "core/checkpoint/safetensors.h"
#include "core/data/residence.h"
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
    log::warning(str("no cache of the data, which will be parsed at each start: ", failure.what()));
  }
}

bool may_write(const std::string& folder) { return access(folder.c_str(), W_OK | X_OK) == 0; }

std::string users_folder() {
  const char* given = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if (given != nullptr && *given == '/') return str(given, "/convoy");
  return home != nullptr && *home == '/' ? str(home, "/.cache/convoy") : "";
}

// Where the cache may be, the best place first; `writable` says which of them, if any, takes a new one.
struct Places {
  std::vector<std::string> paths;
  std::string writable;
};

Places places_of(const std::string& source) {
  namespace fs = std::filesystem;
  constexpr char ending[] = ".cache.safetensors";
  Places places;
  const fs::path whole = fs::absolute(source).lexically_normal();
  places.paths.push_back(source + ending);
  const bool installed = whole.string().rfind("/usr/", 0) == 0 && whole.string().rfind("/usr/local/", 0) != 0;
  if (!installed && may_write(whole.parent_path())) places.writable = places.paths[0];
  const std::string own = users_folder();
  if (own.empty() || !places.writable.empty()) return places;
  // Of several sources of one name each has its own.
  places.paths.push_back(str(own, "/", hash_of(whole.string()), "-", whole.filename().string(), ending));
  std::error_code failure;
  fs::create_directories(own, failure);
  if (!failure && may_write(own)) places.writable = places.paths[1];
  return places;
}

int64_t bytes_of(const Columns& columns) {
  size_t bytes = 0;
  for (const auto& [name, tensor] : columns) bytes += tensor.nbytes();
  return static_cast<int64_t>(bytes);
}

std::optional<Columns> mapped(const std::string& source, const std::vector<std::string>& paths, const Facts& facts) {
  for (const std::string& path : paths)
    if (auto found = read_cache(path, facts)) {
      tell_mapped(source, path, bytes_of(*found));
      return found;
    }
  return std::nullopt;
}

// Under a lock that one process holds at a time: what another has made meanwhile, else what is made now, as a mapping of
// the cache that it is written to.
Columns built(const std::string& what, const Places& places, const Facts& facts, const MappedFile& guard,
              const std::function<Columns()>& make) {
  const bool locked = guard.lock(lock_seconds);
  if (auto found = mapped(what, places.paths, facts)) return std::move(*found);
  Columns columns = make();
  // Under the lock the temporary has one name, so that what a killed process left is overwritten.
  const std::string& path = places.writable;
  write_cache(path, locked ? path + ".partial" : str(path, ".partial.", getpid()), facts, columns);
  if (auto written = mapped(what, {path}, facts)) {
    columns.clear();
    malloc_trim(0);  // what parsing took would else stay with this process
    return std::move(*written);
  }
  tell_in_memory(what, bytes_of(columns), "its cache could not be written");
  return columns;
}

// A file to lock where there is no source. It stays: another process may be waiting for it.
bool make_lock_file(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CREAT | O_CLOEXEC, 0666);
  if (file >= 0) close(file);
  return file >= 0;
}

}  // namespace

Columns cached_columns(const MappedFile& source, const std::string& how, const std::function<Columns()>& parse) {
  const Facts facts{{"convoy_cache", version}, {"source", hash_of(source.text())}, {"how", how}};
  const Places places = places_of(source.path());
  if (auto found = mapped(source.path(), places.paths, facts)) return std::move(*found);
  if (places.writable.empty()) {
    Columns columns = parse();
    log::warning(str("no cache of ", source.path(),
                     ", since neither its folder nor ~/.cache/convoy may be written: it is parsed at each start"));
    tell_in_memory(source.path(), bytes_of(columns), "there is no cache to map");
    return columns;
  }
  const MappedFile guard(source.path());  // of its own, so that the lock ends here
  return built(source.path(), places, facts, guard, parse);
}

Columns made_columns(const std::string& folder, const std::string& name, const std::string& how,
                     const std::function<Columns()>& make) {
  const Facts facts{{"convoy_cache", version}, {"source", name}, {"how", how}};
  Places places;
  places.writable = str(folder, "/", name, "-", hash_of(std::string_view(how)), ".cache.safetensors");
  places.paths = {places.writable};
  if (auto found = mapped(name, places.paths, facts)) return std::move(*found);
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  const std::string lock = places.writable + ".lock";
  if (failure || !make_lock_file(lock)) {
    Columns columns = make();
    log::warning(str("no cache of ", name, ", since ", folder, " may not be written: it is made at each start"));
    tell_in_memory(name, bytes_of(columns), "there is no cache to map");
    return columns;
  }
  return built(name, places, facts, MappedFile(lock), make);
}

}  // namespace convoy
