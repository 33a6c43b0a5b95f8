// Regular expression, searched in names of parameters. re2/re2.h stays in name_pattern.cpp. Without LibTorch.
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
  bool found_in(const std::string& name) const;

  static constexpr char help[] =
      "regular expression (RE2 syntax: no look-around, no back-references), searched anywhere in the name of the "
      "parameter; the first match counts";

 private:
  std::shared_ptr<const re2::RE2> compiled_;
};

}  // namespace convoy
