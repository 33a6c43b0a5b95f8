// Messages of errors, and what they contain.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "core/base/error.h"
#include "core/base/text.h"

namespace convoy {

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Returns the error of `action`, as "key: message" for a configuration and "kind: message" for all others; "no error".
inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const ConfigError& error) {
    return error.key() + ": " + error.what();
  } catch (const Error& error) {
    return str(name_of(error.kind()), ": ", error.what());
  }
  return "no error";
}

// Returns the message of the Error of `action`, whose kind it checks; "" if there is none.
inline std::string message_of(const std::function<void()>& action, Failure kind) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return "";
}

}  // namespace convoy
