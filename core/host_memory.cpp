#include "core/host_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <utility>

#include "core/text.h"

namespace convoy {
namespace {

constexpr int64_t header_bytes = 4096;  // begins with a token, by which a mapping is known to be the right one
constexpr size_t token_bytes = 32;

void* map(const Descriptor& file, int64_t bytes) {
  if (file.get() < 0) return nullptr;
  void* memory = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

std::string new_token() {
  std::string token = random_token();
  token.resize(token_bytes, '0');
  return token;
}

// Where the others find it, and by what they know it.
std::string told_of(const Descriptor& file, const std::string& token) {
  return str("/proc/", getpid(), "/fd/", file.get(), " ", token);
}

// None where it could not be made.
void* make(const Descriptor& file, int64_t bytes, const std::string& token, const std::function<void(char*)>& prepare) {
  if (file.get() < 0 || ftruncate(file.get(), bytes) != 0) return nullptr;
  void* memory = map(file, bytes);
  if (memory == nullptr) return nullptr;
  std::memcpy(memory, token.data(), token_bytes);
  if (prepare) prepare(static_cast<char*>(memory) + header_bytes);
  return memory;
}

void* open_told(const std::string& told, int64_t bytes) {
  const size_t space = told.find(' ');
  if (space == std::string::npos) return nullptr;
  // Another container's process of that number has another file there, or none.
  const Descriptor file(open(told.substr(0, space).c_str(), O_RDWR | O_CLOEXEC));
  void* memory = lseek(file.get(), 0, SEEK_END) == bytes ? map(file, bytes) : nullptr;
  if (memory == nullptr || std::memcmp(memory, told.data() + space + 1, token_bytes) == 0) return memory;
  munmap(memory, static_cast<size_t>(bytes));
  return nullptr;
}

}  // namespace

std::string this_kernel() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

std::shared_ptr<HostMemory> HostMemory::meet(Channel& channel, const std::string& label, int participant, int count,
                                             int64_t bytes, Timeout timeout, bool willing,
                                             const std::function<void(char*)>& prepare, Words* words) {
  const std::string prefix = "host-memory/" + label;
  const auto kernels = channel.agree(prefix + "/kernel", participant, count, willing ? this_kernel() : "", timeout);
  if (kernels.front().empty() ||
      std::any_of(kernels.begin(), kernels.end(), [&](const auto& one) { return one != kernels.front(); }))
    return nullptr;
  const int64_t all = header_bytes + bytes;
  const std::string token = new_token();
  const Descriptor made(participant == 0 ? memfd_create("convoy", MFD_CLOEXEC) : -1);  // open until all have it
  void* memory = nullptr;
  if (participant == 0) {
    memory = make(made, all, token, prepare);
    channel.set(prefix + "/file", memory == nullptr ? "" : told_of(made, token));
  } else {
    memory = open_told(channel.get(prefix + "/file", timeout), all);
  }
  std::shared_ptr<HostMemory> shared;
  if (memory != nullptr) shared.reset(new HostMemory(memory, bytes));
  const std::string own = words == nullptr ? "" : words->own;
  auto have = channel.agree(prefix + "/mapped", participant, count, (shared ? "+" : "-") + own, timeout);
  if (std::any_of(have.begin(), have.end(), [](const auto& one) { return one.front() == '-'; })) return nullptr;
  for (std::string& one : have) one.erase(0, 1);
  if (words != nullptr) words->all = std::move(have);
  return shared;
}

std::shared_ptr<HostMemory> HostMemory::first_come(Channel& channel, const std::string& label, int64_t bytes) {
  const int64_t all = header_bytes + bytes;
  const std::string token = new_token();
  Descriptor file(memfd_create("convoy", MFD_CLOEXEC));
  void* const made = make(file, all, token, {});
  if (made == nullptr) return nullptr;
  const std::string mine = told_of(file, token);
  const std::string there = channel.compare_set("host-memory/" + label, "", mine);
  if (there == mine) return std::shared_ptr<HostMemory>(new HostMemory(made, bytes, std::move(file)));
  munmap(made, static_cast<size_t>(all));
  void* const memory = open_told(there, all);
  return memory == nullptr ? nullptr : std::shared_ptr<HostMemory>(new HostMemory(memory, bytes));
}

HostMemory::~HostMemory() { munmap(memory_, static_cast<size_t>(header_bytes + bytes_)); }

char* HostMemory::data() const { return static_cast<char*>(memory_) + header_bytes; }

}  // namespace convoy
