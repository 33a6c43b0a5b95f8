// Names in a folder of checkpoints that stand for nothing yet, or nothing any more: a kill leaves them. Without LibTorch.
#pragma once
#include <string>

namespace convoy {

// `.step-N.tmp-TOKEN` is being written, `.old-…` is being removed, `.latest-TOKEN` becomes `latest`.
inline bool is_leftover(const std::string& name) {
  const auto begins = [&name](const char* with) { return name.rfind(with, 0) == 0; };
  return begins(".step-") || begins(".old-") || begins(".latest-");
}

}  // namespace convoy
