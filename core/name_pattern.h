// A regular expression that is searched in parameters' names. Without LibTorch; re2/re2.h stays in name_pattern.cpp.
//
// RE2 needs time in proportion to the name's length, whatever the pattern: a backtracking matcher may run for ever.
// Threads: thread-safe. Copies share the compiled pattern.
#pragma once
#include <memory>
#include <string>

#include "core/options.h"

namespace re2 {
class RE2;
}

namespace convoy {

class NamePattern {
 public:
  // Compiles the option `key` of `section`; ConfigError at it where it is no pattern.
  explicit NamePattern(const Options& section, const std::string& key = "match");
  bool found_in(const std::string& name) const;

  static constexpr char help[] =
      "regular expression (RE2 syntax: no look-around, no back-references), searched anywhere in the parameter's name; "
      "first match counts";

 private:
  std::shared_ptr<const re2::RE2> compiled_;
};

}  // namespace convoy
