// SharedMemory: memory that processes, or threads, of one host map together.
//
// The first participant creates it and the others open it through /proc. It has no name, so the kernel frees it with
// the last process that maps it. It is zeroed at first. A page needs RAM after its first write, once for all
// participants.
// Threads: any thread may create it; its users synchronise access to the contents.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/control/channel.h"
#include "core/control/socket.h"

namespace convoy {

// Identifier of the running kernel (boot id): equal for all processes on it; "" if unknown.
std::string this_kernel();

class SharedMemory {
 public:
  // Short texts that the participants exchange while they create the memory.
  struct Texts {
    std::string local;
    std::vector<std::string> all;  // by participant
  };
  // Collective among `count` participants; `label` is unique within the job. `prepare` runs once, before others see the
  // memory.
  // Returns null on all participants if one is not `willing` or cannot allocate the memory, if they run on different
  // kernels, or if one may not open another's memory. Throws CommError if a participant does not call it in time.
  static std::shared_ptr<SharedMemory> create_together(Channel& channel, const std::string& label, int participant,
                                                       int count, int64_t bytes, Timeout timeout, bool willing = true,
                                                       const std::function<void(char*)>& prepare = {},
                                                       Texts* texts = nullptr);
  // Not collective. The first caller with a label creates the memory; others open it while the creator still has it.
  // Only for participants of an earlier create_together. Returns null if it cannot be created or the creator is gone.
  static std::shared_ptr<SharedMemory> create_or_open(Channel& channel, const std::string& label, int64_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  char* data() const;
  int64_t bytes() const { return bytes_; }

 private:
  SharedMemory(void* memory, int64_t bytes, Descriptor file = Descriptor())
      : memory_(memory), bytes_(bytes), file_(std::move(file)) {}

  void* memory_;
  int64_t bytes_;
  Descriptor file_;  // keeps the file open for others
};

}  // namespace convoy
