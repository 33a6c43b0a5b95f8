// Lookup, lock, parse, write whole and rename.
#include "core/data/column_cache.h"

#include <ATen/ops/aminmax.h>
#include <fcntl.h>
#include <malloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <vector>

#include "core/checkpoint/safetensors.h"
#include "core/data/residence.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/lock_holder.h"
#include "core/log.h"

namespace convoy {
namespace {

constexpr const char* version = "2";  // of what parsers make of the same bytes

// How long to wait for another rank that parses the same file: less than the default of launch.rendezvous, after which nobody
// would say why. A program that is not convoy's may hold the lock for ever.
constexpr double rank_seconds = 240, stranger_seconds = 5;

std::string hash_of(const std::string& text) { return hash_hex(text.data(), text.size()); }

std::string hash_of(const Columns& columns) {
  Hasher hasher;
  for (const auto& [name, tensor] : columns) {
    hasher.add(name.data(), name.size());
    hasher.add(tensor.const_data_ptr(), tensor.nbytes());
  }
  return hasher.hex();
}

using Facts = std::map<std::string, std::string>;

std::optional<Columns> read_cache(const std::string& path, const Facts& wanted, const Sound& sound) {
  if (!std::filesystem::exists(path)) return std::nullopt;
  try {
    const SafetensorsFile file(path);
    if (!file.only_ours()) {
      log::info(str(path, ": is not used as a cache, since it belongs to another user or others may write it"));
      return std::nullopt;
    }
    Facts facts = file.metadata();
    const std::string contents = facts["contents"];
    facts.erase("contents");
    if (facts != wanted) return std::nullopt;
    Columns columns;
    for (const auto& name : file.names()) columns[name] = file.tensor(name);
    if (hash_of(columns) != contents || !sound(columns)) return std::nullopt;
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
  namespace fs = std::filesystem;
  try {
    fs::remove_all(temporary);  // of a process that was killed
    // In a folder of our own nobody can open the file while its mode still follows the umask.
    if (mkdir(temporary.c_str(), 0700) != 0)
      throw Error(Failure::io, str("cannot create ", temporary, ": ", std::strerror(errno)));
    write_safetensors(temporary + "/columns", entries, facts);
    fs::permissions(temporary + "/columns", fs::perms::group_write | fs::perms::others_write, fs::perm_options::remove);
    fs::rename(temporary + "/columns", path);
    fs::remove(temporary);
  } catch (const std::exception& failure) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    log::warning(str("no cache of the data, which will be parsed at each start: ", failure.what()));
  }
}

bool may_write(const std::string& folder) { return access(folder.c_str(), W_OK | X_OK) == 0; }

bool is_of_another_user(const std::string& path) {
  struct stat facts {};
  return lstat(path.c_str(), &facts) == 0 && facts.st_uid != geteuid() && facts.st_uid != 0;
}

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
  if (!installed && may_write(whole.parent_path()) && !is_of_another_user(places.paths[0]))
    places.writable = places.paths[0];
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

std::optional<Columns> mapped(const std::string& source, const std::vector<std::string>& paths, const Facts& facts,
                              const Sound& sound) {
  for (const std::string& path : paths)
    if (auto found = read_cache(path, facts, sound)) {
      tell_mapped(source, path, bytes_of(*found));
      return found;
    }
  return std::nullopt;
}

bool locked(const MappedFile& guard) {
  if (guard.lock(stranger_seconds)) return true;
  const std::string holder = lock_holder_text(guard.path());
  if (held_by_rank(guard.path()) && guard.lock(rank_seconds - stranger_seconds)) return true;
  log::warning(
      str(guard.path(), ": ", holder, " holds the lock (flock) of this file; it is parsed without waiting any longer"));
  return false;
}

// Under a lock that one process holds at a time: what another has made meanwhile, else what is made now, as a mapping of
// the cache that it is written to.
Columns built(const std::string& what, const Places& places, const Facts& facts, const MappedFile& guard,
              const std::function<Columns()>& make, const Sound& sound) {
  const bool alone = locked(guard);
  if (auto found = mapped(what, places.paths, facts, sound)) return std::move(*found);
  Columns columns = make();
  // Under the lock the temporary has one name, so that what a killed process left is overwritten.
  const std::string& path = places.writable;
  write_cache(path, alone ? path + ".partial" : str(path, ".partial.", getpid()), facts, columns);
  if (auto written = mapped(what, {path}, facts, sound)) {
    columns.clear();
    malloc_trim(0);  // what parsing took would else stay with this process
    return std::move(*written);
  }
  tell_in_memory(what, bytes_of(columns), "its cache could not be written");
  return columns;
}

// A file to lock where there is no source. It stays: another process may be waiting for it.
bool make_lock_file(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (file >= 0) close(file);
  return file >= 0;
}

}  // namespace

Columns cached_columns(const MappedFile& source, const std::string& how, const std::function<Columns()>& parse,
                       const Sound& sound) {
  const Facts facts{{"convoy_cache", version}, {"source", source.hash()}, {"how", how}};
  const Places places = places_of(source.path());
  if (auto found = mapped(source.path(), places.paths, facts, sound)) return std::move(*found);
  if (places.writable.empty()) {
    Columns columns = parse();
    log::warning(str("no cache of ", source.path(),
                     ", since neither its folder nor ~/.cache/convoy may be written: it is parsed at each start"));
    tell_in_memory(source.path(), bytes_of(columns), "there is no cache to map");
    return columns;
  }
  const MappedFile guard(source.path());  // of its own, so that the lock ends here
  return built(source.path(), places, facts, guard, parse, sound);
}

Columns made_columns(const std::string& folder, const std::string& name, const std::string& how,
                     const std::function<Columns()>& make, const Sound& sound) {
  const Facts facts{{"convoy_cache", version}, {"source", name}, {"how", how}};
  Places places;
  places.writable = str(folder, "/", name, "-", hash_of(how), ".cache.safetensors");
  places.paths = {places.writable};
  if (auto found = mapped(name, places.paths, facts, sound)) return std::move(*found);
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  const std::string lock = places.writable + ".lock";
  if (failure || !make_lock_file(lock)) {
    Columns columns = make();
    log::warning(str("no cache of ", name, ", since ", folder, " may not be written: it is made at each start"));
    tell_in_memory(name, bytes_of(columns), "there is no cache to map");
    return columns;
  }
  return built(name, places, facts, MappedFile(lock), make, sound);
}

bool has_column(const Columns& columns, const std::string& name, at::ScalarType dtype, at::IntArrayRef shape) {
  const auto found = columns.find(name);
  if (found == columns.end() || found->second.scalar_type() != dtype) return false;
  const at::IntArrayRef sizes = found->second.sizes();
  return std::equal(sizes.begin(), sizes.end(), shape.begin(), shape.end(),
                    [](int64_t size, int64_t wanted) { return wanted < 0 || size == wanted; });
}

bool all_below(const at::Tensor& numbers, int64_t end) {
  if (numbers.numel() == 0) return true;
  const auto [least, most] = at::aminmax(numbers);
  return least.item().toLong() >= 0 && most.item().toLong() < end;
}

}  // namespace convoy
