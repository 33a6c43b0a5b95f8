// Whether a training that failed is worth another attempt, and how long to wait before it: of a gang whose ranks start again
// (restart.h), and of a farm's pipeline that is tried again (farm/outcome.h). Pure.
#pragma once
#include <cstdint>

#include "core/error.h"

namespace convoy {

inline constexpr double longest_delay = 600;  // seconds

// What the next attempt need not meet in the same way.
bool worth_another(Failure kind);

// Seconds before the next attempt, after so many failures in a row: `backoff`, doubled with each, up to longest_delay.
double retry_delay(double backoff, int64_t failures);

}  // namespace convoy
