// Who holds the lock (flock) of a file, by the kernel's list /proc/locks. Without LibTorch.
#pragma once
#include <sys/stat.h>
#include <sys/types.h>

#include <string>

namespace convoy {

// -1: nobody, or a process that this host's list does not show.
pid_t lock_holder_of(const struct stat& file);
// "sleep (process 1234)", or "a process of another host or container".
std::string lock_holder_text(const std::string& path);
// Held by a rank, which parses the same file and will be done with it.
bool held_by_rank(const std::string& path);

}  // namespace convoy
