// Communication backends, without LibTorch: names, options, what each needs, and whether this build has it.
#pragma once
#include <string>
#include <vector>

#include "core/options.h"

namespace convoy {

struct BackendEntry : Entry {
  bool built = true;
  std::string how_to_get;     // said when it is asked for and not built
  bool threads_only = false;  // ranks must be threads of one process
  bool needs_gpu = false;
};
const std::vector<BackendEntry>& backend_catalogue();

}  // namespace convoy
