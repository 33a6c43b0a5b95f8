#include "core/base/name_pattern.h"

#include <re2/re2.h>

namespace convoy {

NamePattern::NamePattern(const Options& section, const std::string& key) {
  RE2::Options options;
  options.set_log_errors(false);
  compiled_ = std::make_shared<RE2>(section.text(key), options);
  if (compiled_->ok()) return;
  section.fail(key, str("is ", section.text(key), ", which is no regular expression: ", compiled_->error(),
                        "; look-around (?=…) and back-references \\1 are not supported"));
}

bool NamePattern::found_in(const std::string& name) const { return RE2::PartialMatch(name, *compiled_); }

}  // namespace convoy
