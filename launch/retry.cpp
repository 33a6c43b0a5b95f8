#include "launch/retry.h"

#include <algorithm>
#include <cmath>

namespace convoy {

bool worth_another(Failure kind) {
  switch (kind) {
    case Failure::training:
    case Failure::out_of_memory:
    case Failure::io:
    case Failure::rendezvous:
    case Failure::hang:
    case Failure::internal:
      return true;
    default:
      return false;
  }
}

double retry_delay(double backoff, int64_t failures) {
  return std::min(backoff * std::pow(2.0, static_cast<double>(std::max<int64_t>(failures, 1) - 1)), longest_delay);
}

}  // namespace convoy
