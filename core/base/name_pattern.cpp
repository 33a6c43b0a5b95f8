#include "core/base/name_pattern.h"

#include <re2/re2.h>

namespace convoy {

NamePattern::NamePattern(const std::string& pattern) {
  RE2::Options options;
  options.set_log_errors(false);
  compiled_ = std::make_shared<RE2>(pattern, options);
  if (!compiled_->ok())
    throw Error(Failure::config, "is ", pattern, ", which is no regular expression: ", compiled_->error(),
                "; look-around (?=…) and back-references \\1 are not supported");
}

NamePattern::NamePattern(const Options& section, const std::string& key)
    : NamePattern(section.located(key, [&] { return NamePattern(section.text(key)); })) {}

const std::string& NamePattern::text() const { return compiled_->pattern(); }

bool NamePattern::found_in(const std::string& name) const { return RE2::PartialMatch(name, *compiled_); }

std::string NamePattern::replaced(const std::string& name, const std::string& replacement) const {
  std::string changed = name;
  RE2::GlobalReplace(&changed, *compiled_, replacement);
  return changed;
}

std::string NamePattern::replacement_error(const std::string& replacement) const {
  std::string reason;
  compiled_->CheckRewriteString(replacement, &reason);
  return reason;
}

}  // namespace convoy
