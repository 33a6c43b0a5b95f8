#include "core/data/formats/input_files.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <thread>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/files/limits.h"

namespace convoy {

struct MappedFile::Mapping {
  int file = -1;
  void* data = nullptr;
  size_t size = 0;
  std::once_flag hashed, sampled;
  std::string hash, fingerprint;

  ~Mapping() {
    if (data != nullptr) munmap(data, size);
    if (file >= 0) close(file);
  }
};

namespace {

[[noreturn]] void refuse_file(const std::string& path, const char* doing) {
  throw Error(Failure::io, path, ": cannot ", doing, ": ", error_text(errno));
}

std::string hash_of_samples(std::string_view text) {
  constexpr size_t pieces = 1024, piece = 1 << 20;
  Hasher hasher;
  const uint64_t size = text.size();
  hasher.add(&size, sizeof size);
  for (size_t i = 0; i < pieces; ++i) hasher.add(text.data() + (text.size() - piece) / (pieces - 1) * i, piece);
  hasher.add(text.data() + text.size() - piece, piece);
  return hasher.hex();
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path), mapping_(std::make_shared<Mapping>()) {
  mapping_->file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // O_NONBLOCK: a FIFO must not block
  if (mapping_->file < 0) refuse_file(path, "open it");
  struct stat facts {};
  if (fstat(mapping_->file, &facts) != 0) refuse_file(path, "examine it");
  if (!S_ISREG(facts.st_mode)) throw Error(Failure::io, path, ": is not a regular file");
  mapping_->size = size_t(facts.st_size);
  if (mapping_->size == 0) return;
  void* data = mmap(nullptr, mapping_->size, PROT_READ, MAP_SHARED, mapping_->file, 0);
  if (data == MAP_FAILED) refuse_file(path, "map it");
  mapping_->data = data;
}

std::string_view MappedFile::text() const {
  return {static_cast<const char*>(mapping_->data), mapping_->data == nullptr ? 0 : mapping_->size};
}

void MappedFile::forget(size_t begin, size_t end) const {
  constexpr size_t page = 4096;
  begin = begin / page * page;  // the bytes before it in its first page were read earlier
  end = end / page * page;
  if (mapping_->data != nullptr && begin < end)
    madvise(static_cast<char*>(mapping_->data) + begin, end - begin, MADV_DONTNEED);
}

const std::string& MappedFile::hash() const {
  std::call_once(mapping_->hashed, [this] { mapping_->hash = hash_hex(text().data(), text().size()); });
  return mapping_->hash;
}

const std::string& MappedFile::fingerprint() const {
  constexpr size_t whole = size_t{1} << 30;
  if (text().size() <= whole) return hash();
  std::call_once(mapping_->sampled, [this] { mapping_->fingerprint = hash_of_samples(text()); });
  return mapping_->fingerprint;
}

bool MappedFile::lock(double seconds) const {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (flock(mapping_->file, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return false;
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

std::vector<std::string> files_of(const std::string& path) {
  std::error_code none;
  if (path.find_first_of("*?[{") == std::string::npos || std::filesystem::exists(path, none)) return {path};
  glob_t found{};
  std::vector<std::string> files;
  if (glob(path.c_str(), GLOB_BRACE, nullptr, &found) == 0)
    for (size_t i = 0; i < found.gl_pathc; ++i)
      if (std::filesystem::is_regular_file(found.gl_pathv[i], none)) files.emplace_back(found.gl_pathv[i]);
  globfree(&found);
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  if (files.empty()) throw Error(Failure::config, path, ": no file matches");
  return files;
}

}  // namespace convoy
