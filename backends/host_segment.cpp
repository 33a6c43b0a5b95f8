// How ranks of one host find the memory that they share: the first makes it, the others open it through /proc.
#include "backends/host_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <new>

#include "backends/registry.h"
#include "core/control/channel.h"
#include "core/text.h"

namespace convoy {
namespace {

constexpr int64_t header_bytes = 4096;  // begins with a token, by which a mapping is known to be the right one
constexpr size_t token_bytes = 32;
std::atomic<bool> allowed{true};

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

// The same for all who run on one kernel, and for nobody else; "" where that cannot be known or is not wanted.
std::string kernel() {
  if (!allowed) return "";
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

void* map(const File& file, int64_t bytes) {
  if (file.get() < 0) return nullptr;
  void* memory = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

void allow_host_memory(bool is_allowed) { allowed = is_allowed; }

// Memory: the token's page, counters, slots, lanes. Pages that nobody writes to take none.
int64_t HostSegment::counter_bytes(int size) {
  const int64_t bytes =
      static_cast<int64_t>(sizeof(Progress)) * size + static_cast<int64_t>(sizeof(Lane)) * lanes_for(size);
  return (bytes + 4095) / 4096 * 4096;
}

int64_t HostSegment::bytes_for(int size) {
  return header_bytes + counter_bytes(size) + size * slots * chunk_bytes + lanes_for(size) * lane_bytes;
}

HostSegment::HostSegment(void* memory, int size)
    : memory_(memory),
      size_(size),
      progress_(reinterpret_cast<Progress*>(static_cast<char*>(memory) + header_bytes)),
      lanes_(reinterpret_cast<Lane*>(progress_ + size)),
      data_(static_cast<char*>(memory) + header_bytes + counter_bytes(size)),
      lane_data_(data_ + size * slots * chunk_bytes) {}

HostSegment::~HostSegment() { munmap(memory_, static_cast<size_t>(bytes_for(size_))); }

std::shared_ptr<HostSegment> HostSegment::meet(const BackendRequest& request, const std::string& label, int rank,
                                               int size, std::chrono::milliseconds timeout) {
  const std::string prefix = str("host-memory/", request.job, "/", label);
  if (!request.channel) return nullptr;
  Channel& channel = *request.channel;
  const std::vector<std::string> kernels = channel.agree(prefix + "/kernel", rank, size, kernel(), timeout);
  if (kernels.front().empty() ||
      std::any_of(kernels.begin(), kernels.end(), [&](const auto& one) { return one != kernels.front(); }))
    return nullptr;

  const int64_t bytes = bytes_for(size);
  void* memory = nullptr;
  std::string token = random_token();
  token.resize(token_bytes, '0');
  std::unique_ptr<File> made;  // open until all have it
  if (rank == 0) {
    made = std::make_unique<File>(memfd_create("convoy", MFD_CLOEXEC));
    if (made->get() >= 0 && ftruncate(made->get(), bytes) == 0) memory = map(*made, bytes);
    if (memory != nullptr) {
      std::memcpy(memory, token.data(), token_bytes);
      auto* progress = reinterpret_cast<Progress*>(static_cast<char*>(memory) + header_bytes);
      for (int one = 0; one < size; ++one) new (progress + one) Progress;
      auto* lanes = reinterpret_cast<Lane*>(progress + size);
      for (int64_t one = 0; one < lanes_for(size); ++one) new (lanes + one) Lane;
    }
    channel.set(prefix + "/file", memory == nullptr ? "" : str("/proc/", getpid(), "/fd/", made->get(), " ", token));
  } else {
    const std::string told = channel.get(prefix + "/file", timeout);
    const size_t space = told.find(' ');
    if (space != std::string::npos) {
      // Another container's process of that number has another file there, or none.
      const File file(open(told.substr(0, space).c_str(), O_RDWR | O_CLOEXEC));
      if (lseek(file.get(), 0, SEEK_END) == bytes) memory = map(file, bytes);
      if (memory != nullptr && std::memcmp(memory, told.data() + space + 1, token_bytes) != 0) {
        munmap(memory, static_cast<size_t>(bytes));
        memory = nullptr;
      }
    }
  }
  std::shared_ptr<HostSegment> segment;
  if (memory != nullptr) segment.reset(new HostSegment(memory, size));
  const std::string mine = segment == nullptr ? "no" : request.device.is_cpu() ? "yes, of the CPU" : "yes";
  const std::vector<std::string> have = channel.agree(prefix + "/mapped", rank, size, mine, timeout);
  if (std::count(have.begin(), have.end(), "no") > 0) return nullptr;
  segment->has_lanes_ = lanes_for(size) > 0 && std::count(have.begin(), have.end(), "yes") == 0;
  return segment;
}

}  // namespace convoy
