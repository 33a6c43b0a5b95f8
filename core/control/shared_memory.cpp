#include "core/control/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "core/files/limits.h"

namespace convoy {
namespace {

constexpr int64_t header_bytes = 4096;  // starts with a token that identifies the memory
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

// Path at which others can open the file, and its token.
std::string address_of(const Descriptor& file, const std::string& token) {
  return str("/proc/", getpid(), "/fd/", file.get(), " ", token);
}

// Creates and maps the memory; null if it fails.
void* make(const Descriptor& file, int64_t bytes, const std::string& token, const std::function<void(char*)>& prepare) {
  if (file.get() < 0 || ftruncate(file.get(), bytes) != 0) return nullptr;
  void* memory = map(file, bytes);
  if (memory == nullptr) return nullptr;
  std::memcpy(memory, token.data(), token_bytes);
  if (prepare) prepare(static_cast<char*>(memory) + header_bytes);
  return memory;
}

void* open_at(const std::string& address, int64_t bytes) {
  const size_t space = address.find(' ');
  if (space == std::string::npos) return nullptr;
  // In another container this process number may belong to a process with another file, or none.
  const Descriptor file(open(address.substr(0, space).c_str(), O_RDWR | O_CLOEXEC));
  void* memory = lseek(file.get(), 0, SEEK_END) == bytes ? map(file, bytes) : nullptr;
  if (memory == nullptr || std::memcmp(memory, address.data() + space + 1, token_bytes) == 0) return memory;
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

std::shared_ptr<SharedMemory> SharedMemory::create_together(Channel& channel, const std::string& label, int participant,
                                                            int count, int64_t bytes, Timeout timeout, bool willing,
                                                            const std::function<void(char*)>& prepare, Texts* texts) {
  const std::string prefix = "host-memory/" + label;
  const auto kernels = channel.agree(prefix + "/kernel", participant, count, willing ? this_kernel() : "", timeout);
  if (kernels.front().empty() ||
      std::any_of(kernels.begin(), kernels.end(), [&](const auto& one) { return one != kernels.front(); }))
    return nullptr;
  const int64_t all = header_bytes + bytes;
  const std::string token = new_token();
  const Descriptor made(participant == 0 ? memfd_create("convoy", MFD_CLOEXEC)
                                         : -1);  // stays open until all have mapped it
  void* memory = nullptr;
  if (participant == 0) {
    memory = make(made, all, token, prepare);
    channel.set(prefix + "/file", memory == nullptr ? "" : address_of(made, token));
  } else {
    memory = open_at(channel.get(prefix + "/file", timeout), all);
  }
  std::shared_ptr<SharedMemory> shared;
  if (memory != nullptr) shared.reset(new SharedMemory(memory, bytes));
  const std::string local = texts == nullptr ? "" : texts->local;
  auto have = channel.agree(prefix + "/mapped", participant, count, (shared ? "+" : "-") + local, timeout);
  if (std::any_of(have.begin(), have.end(), [](const auto& one) { return one.front() == '-'; })) return nullptr;
  for (std::string& one : have) one.erase(0, 1);
  if (texts != nullptr) texts->all = std::move(have);
  return shared;
}

std::shared_ptr<SharedMemory> SharedMemory::create_or_open(Channel& channel, const std::string& label, int64_t bytes) {
  const int64_t all = header_bytes + bytes;
  const std::string token = new_token();
  Descriptor file(memfd_create("convoy", MFD_CLOEXEC));
  if (!file.valid() && is_out_of_descriptors(errno))
    throw Error(Failure::io, "shared memory of a host: ", error_text(errno));
  void* const made = make(file, all, token, {});
  if (made == nullptr) return nullptr;
  const std::string mine = address_of(file, token);
  const std::string there = channel.compare_set("host-memory/" + label, "", mine);
  if (there == mine) return std::shared_ptr<SharedMemory>(new SharedMemory(made, bytes, std::move(file)));
  munmap(made, static_cast<size_t>(all));
  void* const memory = open_at(there, all);
  return memory == nullptr ? nullptr : std::shared_ptr<SharedMemory>(new SharedMemory(memory, bytes));
}

SharedMemory::~SharedMemory() { munmap(memory_, static_cast<size_t>(header_bytes + bytes_)); }

char* SharedMemory::data() const { return static_cast<char*>(memory_) + header_bytes; }

}  // namespace convoy
