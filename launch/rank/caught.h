// What an exception of any library comes to: one list of catches for every place that ends a rank process.
#pragma once
#include <optional>
#include <string>

#include "core/error.h"

namespace convoy {

struct Caught {
  Failure kind = Failure::internal;
  std::string message;  // without a backtrace, with what to do where that is known
  // Whom a stall or a disagreement is blamed on, which is seldom the rank that noticed; -1: nobody in particular.
  std::optional<int> rank = std::nullopt;
};
// Call inside a catch block. `unknown`: the kind of an exception that says nothing of itself.
Caught caught(Failure unknown);

}  // namespace convoy
