// Regular expression for names of parameters; matches anywhere in a name. re2/re2.h stays in name_pattern.cpp. Without
// LibTorch.
//
// RE2 needs time proportional to the length of the name. A backtracking matcher may run for ever.
// Threads: thread-safe. Copies share the compiled pattern.
#pragma once
#include <memory>
#include <string>

#include "core/base/options.h"

namespace re2 {
class RE2;
}

namespace convoy {

class NamePattern {
 public:
  // Compiles option `key` of `section`. Throws ConfigError at that key for an invalid pattern.
  explicit NamePattern(const Options& section, const std::string& key = "match");
  explicit NamePattern(const std::string& pattern);  // Error(config) with the reason
  const std::string& text() const;
  bool found_in(const std::string& name) const;
  // Replaces every match; \1 in the replacement is the first group. Check the replacement with replacement_error first.
  std::string replaced(const std::string& name, const std::string& replacement) const;
  // Returns why a replacement does not fit the pattern; "" if it fits.
  std::string replacement_error(const std::string& replacement) const;

  static constexpr char help[] =
      "regular expression (RE2 syntax: no look-around, no back-references), searched anywhere in the name of the "
      "parameter; the first match counts";

 private:
  std::shared_ptr<const re2::RE2> compiled_;
};

}  // namespace convoy
