// HostMemory: memory that processes, or threads, of one host map together.
//
// The first of them makes it, the others open it through /proc, so that it has no name: it is gone with the last process that
// maps it, however that ends. Zero at first; a page takes memory when it is first written to, once for all.
// Threads: `meet` may be called by any; what is in the memory is for its users to order.
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

// The same for all who run on one kernel, and for nobody else; "" where that cannot be known.
std::string this_kernel();

class HostMemory {
 public:
  // What a participant tells the others, and is told of them.
  struct Words {
    std::string own;
    std::vector<std::string> all;  // by participant
  };
  // Collective among `count` participants, `label` unique within the job. Null, on all of them, where they do not run on one
  // kernel, may not open each other's memory, there is none, or somebody is `unwilling`. `prepare` runs once, before anybody
  // else sees it. CommError where somebody does not come in time.
  static std::shared_ptr<HostMemory> meet(Channel& channel, const std::string& label, int participant, int count,
                                          int64_t bytes, Timeout timeout, bool willing = true,
                                          const std::function<void(char*)>& prepare = {}, Words* words = nullptr);
  // Not collective: whoever comes first under a label makes it, and the others may open it for as long as that one has it. Of
  // those who have met before. Null where there is no memory, or its maker is gone.
  static std::shared_ptr<HostMemory> first_come(Channel& channel, const std::string& label, int64_t bytes);
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  char* data() const;
  int64_t bytes() const { return bytes_; }

 private:
  HostMemory(void* memory, int64_t bytes, Descriptor file = Descriptor())
      : memory_(memory), bytes_(bytes), file_(std::move(file)) {}

  void* memory_;
  int64_t bytes_;
  Descriptor file_;  // held open for others
};

}  // namespace convoy
