#include "core/data/readers/column_cache.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/tensor.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/log.h"
#include "core/config/run_config.h"
#include "core/data/readers/name_list.h"
#include "core/data/rows.h"
#include "core/files/files.h"
#include "core/files/limits.h"
#include "core/tensors/safetensors.h"

namespace convoy {
namespace {

constexpr const char* version = "2";  // version of the parsers' output for equal bytes

// Another program may hold the lock for ever.
constexpr double foreign_lock_seconds = 5;
thread_local double rank_lock_seconds = LaunchConfig().rendezvous / 2;  // set by the innermost CacheLockLimit

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

std::optional<Columns> read_cache(const std::string& path, const Facts& wanted, const ColumnCheck& check) {
  std::error_code none;  // no exception if the folder cannot be searched: then there is no cache
  if (!std::filesystem::exists(path, none)) return std::nullopt;
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
    if (hash_of(columns) != contents || !check(columns)) return std::nullopt;
    return columns;
  } catch (const Error&) {
    return std::nullopt;  // damaged: rebuild it
  }
}

[[noreturn]] void fail(const std::string& what) { throw Error(Failure::io, what, ": ", error_text(errno)); }

// A temporary folder next to a cache, for one writer; other users cannot open files in it. Its name is random, so that
// no other user can prepare it. Its writer holds a lock on it: a folder without a lock was left by a killed writer.
class WritersFolder {
 public:
  explicit WritersFolder(const std::filesystem::path& cache) : target_(cache.filename().string()) {
    parent_ = Descriptor(open(parent_of(cache).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!parent_.valid()) fail("cannot open " + parent_of(cache));
    const std::string prefix = str(".", target_, ".partial.");
    for (const std::string& name : names_in(parent_of(cache)))
      if (name.rfind(prefix, 0) == 0 || name == target_ + ".partial") remove_if_stale(name);  // files of old versions
    name_ = prefix + random_token();
    if (mkdirat(parent_.get(), name_.c_str(), 0700) != 0) fail("cannot create " + name_);
    folder_ = open_folder(name_);
    if (!folder_.valid() || flock(folder_.get(), LOCK_EX | LOCK_NB) != 0) {
      const int cause = errno;
      unlinkat(parent_.get(), name_.c_str(), AT_REMOVEDIR);
      errno = cause;
      fail("cannot lock " + name_);
    }
  }
  ~WritersFolder() { remove(folder_.get(), name_); }
  WritersFolder(const WritersFolder&) = delete;
  WritersFolder& operator=(const WritersFolder&) = delete;

  // A path to the file through the open folder, which stays valid if the folder is moved.
  std::string file() const { return str("/proc/self/fd/", folder_.get(), "/", inside); }
  void publish() {
    struct stat status {};
    if (fstatat(folder_.get(), inside, &status, AT_SYMLINK_NOFOLLOW) != 0 ||
        fchmodat(folder_.get(), inside, status.st_mode & ~mode_t{S_IWGRP | S_IWOTH} & mode_t{0777}, 0) != 0 ||
        renameat(folder_.get(), inside, parent_.get(), target_.c_str()) != 0)
      fail("cannot rename a new file to " + target_);
  }

 private:
  static constexpr const char* inside = "columns";

  static std::string parent_of(const std::filesystem::path& path) {
    return path.has_parent_path() ? path.parent_path().string() : ".";
  }
  Descriptor open_folder(const std::string& name) const {
    return Descriptor(openat(parent_.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  }
  void remove(int folder, const std::string& name) const {
    unlinkat(folder, inside, 0);
    unlinkat(parent_.get(), name.c_str(), AT_REMOVEDIR);
  }
  void remove_if_stale(const std::string& name) const {
    const Descriptor folder = open_folder(name);
    if (!folder.valid() && (errno == ENOTDIR || errno == ELOOP)) unlinkat(parent_.get(), name.c_str(), 0);
    if (folder.valid() && flock(folder.get(), LOCK_EX | LOCK_NB) == 0) remove(folder.get(), name);
  }

  const std::string target_;
  std::string name_;
  Descriptor parent_, folder_;
};

void write_cache(const std::string& path, Facts facts, const Columns& columns) {
  facts["contents"] = hash_of(columns);
  std::vector<std::pair<std::string, at::Tensor>> entries(columns.begin(), columns.end());
  // Wide elements first, so that all of them are aligned in the mapping.
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return a.second.element_size() > b.second.element_size(); });
  try {
    WritersFolder folder(path);
    write_safetensors(folder.file(), entries, facts);
    folder.publish();
  } catch (const std::exception& failure) {
    log::warning(str("no cache of the data, which will be parsed at each start: ", path, ": ", failure.what()));
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

// Possible locations of a cache, the preferred one first. `writable`: where to write a new one; "": nowhere.
struct CacheLocations {
  std::vector<std::string> paths;
  std::string writable;
};

CacheLocations cache_locations(const std::string& source) {
  namespace fs = std::filesystem;
  constexpr char ending[] = ".cache.safetensors";
  CacheLocations locations;
  std::error_code failure;
  const fs::path whole = fs::absolute(source, failure).lexically_normal();  // fails in a deleted working directory
  locations.paths.push_back(source + ending);
  const bool installed = whole.string().rfind("/usr/", 0) == 0 && whole.string().rfind("/usr/local/", 0) != 0;
  if (!installed && may_write(whole.parent_path()) && !is_of_another_user(locations.paths[0]))
    locations.writable = locations.paths[0];
  const std::string user_folder = users_folder();
  if (user_folder.empty() || !locations.writable.empty() || failure) return locations;
  // The hash of the path separates sources of equal names.
  locations.paths.push_back(str(user_folder, "/", hash_of(whole.string()), "-", whole.filename().string(), ending));
  fs::create_directories(user_folder, failure);
  if (!failure && may_write(user_folder)) locations.writable = locations.paths[1];
  return locations;
}

int64_t bytes_of(const Columns& columns) {
  size_t bytes = 0;
  for (const auto& [name, tensor] : columns) bytes += tensor.nbytes();
  return static_cast<int64_t>(bytes);
}

std::optional<Columns> map_cache(const std::string& source, const std::vector<std::string>& paths, const Facts& facts,
                                 const ColumnCheck& check) {
  for (const std::string& path : paths)
    if (auto found = read_cache(path, facts, check)) {
      log_mapped(source, path, bytes_of(*found));
      return found;
    }
  return std::nullopt;
}

void lock(const MappedFile& guard) {
  const double first_wait = std::min(foreign_lock_seconds, rank_lock_seconds);
  if (guard.lock(first_wait)) return;
  const std::string owner = lock_owner_text(guard.path());
  if (locked_by_rank(guard.path())) {
    log::info(str(guard.path(), ": ", owner, " holds the lock (flock) of this file and parses it; waiting for ",
                  human_seconds(rank_lock_seconds), " at most, half of launch.rendezvous"));
    if (guard.lock(rank_lock_seconds - first_wait)) return;
  }
  log::warning(
      str(guard.path(), ": ", owner, " holds the lock (flock) of this file; it is parsed without waiting any longer"));
}

// Runs under a lock that one process holds at a time. Maps the cache that another process has made meanwhile, else
// makes it. Returns a mapping of the cache.
Columns build_cache(const std::string& what, const CacheLocations& locations, const Facts& facts,
                    const MappedFile& guard, const std::function<Columns()>& make, const ColumnCheck& check) {
  lock(guard);
  if (auto found = map_cache(what, locations.paths, facts, check)) return std::move(*found);
  Columns columns = make();
  const std::string& path = locations.writable;
  write_cache(path, facts, columns);
  if (auto written = map_cache(what, {path}, facts, check)) {
    columns.clear();
    return_free_memory();  // that of parsing
    return std::move(*written);
  }
  log_in_memory(what, bytes_of(columns), "its cache could not be written");
  return columns;
}

// A file to lock if there is no source file. It stays, because another process may be waiting for it.
bool make_lock_file(const std::string& path) {
  // O_NONBLOCK: a FIFO at this path must not block.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0644));
  struct stat status {};
  return file.valid() && fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode);
}

}  // namespace

CacheLockLimit::CacheLockLimit(double seconds) : outer_(std::exchange(rank_lock_seconds, seconds)) {}
CacheLockLimit::~CacheLockLimit() { rank_lock_seconds = outer_; }

Columns cached_columns(const MappedFile& source, const std::string& how, const std::function<Columns()>& parse,
                       const ColumnCheck& check) {
  const Facts facts{{"convoy_cache", version}, {"source", source.hash()}, {"how", how}};
  const CacheLocations locations = cache_locations(source.path());
  if (auto found = map_cache(source.path(), locations.paths, facts, check)) return std::move(*found);
  if (locations.writable.empty()) {
    Columns columns = parse();
    log::warning(str("no cache of ", source.path(),
                     ", since neither its folder nor ~/.cache/convoy may be written: it is parsed at each start"));
    log_in_memory(source.path(), bytes_of(columns), "there is no cache to map");
    return columns;
  }
  const MappedFile guard(source.path());  // a separate mapping, so that the lock ends with this function
  return build_cache(source.path(), locations, facts, guard, parse, check);
}

Columns made_columns(const std::string& folder, const std::string& name, const std::string& how,
                     const std::function<Columns()>& make, const ColumnCheck& check) {
  const Facts facts{{"convoy_cache", version}, {"source", name}, {"how", how}};
  CacheLocations locations;
  locations.writable = str(folder, "/", name, "-", hash_of(how), ".cache.safetensors");
  locations.paths = {locations.writable};
  if (auto found = map_cache(name, locations.paths, facts, check)) return std::move(*found);
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  const std::string lock = locations.writable + ".lock";
  if (failure || !make_lock_file(lock)) {
    Columns columns = make();
    log::warning(str("no cache of ", name, ", since ", folder, " may not be written: it is made at each start"));
    log_in_memory(name, bytes_of(columns), "there is no cache to map");
    return columns;
  }
  return build_cache(name, locations, facts, MappedFile(lock), make, check);
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

void add_words(Columns& columns, const std::vector<ColumnWords>& words) {
  std::vector<std::string> all;
  std::vector<int64_t> column_of;
  for (size_t column = 0; column < words.size(); ++column)
    for (const std::string& word : words[column]) {
      all.push_back(word);
      column_of.push_back(int64_t(column));
    }
  const NameList list(all);
  columns["word_bytes"] = list.bytes();
  columns["word_ends"] = list.ends();
  columns["word_column"] = at::tensor(column_of, at::kLong);
}

std::vector<ColumnWords> words_of(const Columns& columns, size_t width) {
  if (columns.count("word_column") == 0) return {};
  std::vector<ColumnWords> words(width);
  const NameList all(columns.at("word_bytes"), columns.at("word_ends"));
  const auto* column = columns.at("word_column").const_data_ptr<int64_t>();
  for (int64_t i = 0; i < all.size(); ++i) words[size_t(column[i])].emplace_back(all[i]);
  return words;
}

bool are_valid_words(const Columns& columns, bool wanted, const at::Tensor& values) {
  if (!wanted) return columns.count("word_column") == 0;
  if (!has_column(columns, "word_bytes", at::kByte, {-1}) || !has_column(columns, "word_ends", at::kLong, {-1}) ||
      !has_column(columns, "word_column", at::kLong, {columns.at("word_ends").numel()}) ||
      !all_below(columns.at("word_column"), values.size(1)))
    return false;
  const std::vector<ColumnWords> words = words_of(columns, size_t(values.size(1)));
  const float* value = values.const_data_ptr<float>();
  for (int64_t row = 0; row < values.size(0); ++row)
    for (const ColumnWords& column : words) {
      const float number = *value++;
      if (!column.empty() && !(number >= 0 && number < float(column.size()))) return false;
    }
  return true;
}

}  // namespace convoy
