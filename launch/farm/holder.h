// Who has the lock of a run folder, asked from outside and without taking it.
#pragma once
#include <sys/types.h>

#include <string>

namespace convoy {

struct LockHolder {
  bool held = false;
  pid_t pid = -1;  // -1: on another host, or not to be seen from here
};
LockHolder lock_holder(const std::string& run_folder);

}  // namespace convoy
