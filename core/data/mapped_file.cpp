// open, mmap, flock.
#include "core/data/mapped_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "core/error.h"

namespace convoy {

struct MappedFile::Mapping {
  int file = -1;
  void* data = nullptr;
  size_t size = 0;

  ~Mapping() {
    if (data != nullptr) munmap(data, size);
    if (file >= 0) close(file);
  }
};

namespace {

[[noreturn]] void fail(const std::string& path, const char* doing) {
  throw Error(Failure::io, str(path, ": cannot ", doing, ": ", std::strerror(errno)));
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path), mapping_(std::make_shared<Mapping>()) {
  mapping_->file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO must not hold us up
  if (mapping_->file < 0) fail(path, "open it");
  struct stat facts {};
  if (fstat(mapping_->file, &facts) != 0) fail(path, "examine it");
  if (!S_ISREG(facts.st_mode)) throw Error(Failure::io, str(path, ": is not a regular file"));
  mapping_->size = size_t(facts.st_size);
  if (mapping_->size == 0) return;
  void* data = mmap(nullptr, mapping_->size, PROT_READ, MAP_SHARED, mapping_->file, 0);
  if (data == MAP_FAILED) fail(path, "map it");
  mapping_->data = data;
}

std::string_view MappedFile::text() const {
  return {static_cast<const char*>(mapping_->data), mapping_->data == nullptr ? 0 : mapping_->size};
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

}  // namespace convoy
