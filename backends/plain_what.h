// What an exception says, for people: LibTorch's own append a C++ backtrace to what().
#pragma once
#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace convoy {

inline std::string plain_what(const std::exception& error) {
  if (const auto* torch = dynamic_cast<const c10::Error*>(&error)) return torch->what_without_backtrace();
  return error.what();
}

}  // namespace convoy
