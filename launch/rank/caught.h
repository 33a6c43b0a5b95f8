// What an exception of any library comes to: one list of catches for every place that ends a rank process.
#pragma once
#include <string>

#include "core/error.h"

namespace convoy {

struct Caught {
  Failure kind = Failure::internal;
  std::string message;  // without a backtrace, with what to do where that is known
};
// Call inside a catch block. `unknown`: the kind of an exception that says nothing of itself.
Caught caught(Failure unknown);

}  // namespace convoy
