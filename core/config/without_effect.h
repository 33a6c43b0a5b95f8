// Keys that have no effect in combination with other keys. The user wrote such a key for a reason, so it is refused;
// defaults are not. Without LibTorch.
#pragma once
#include <string>
#include <vector>

#include "core/base/options.h"

namespace convoy {

// Throws ConfigError at `key`, or at the first key below it, if the file or --set contains it. `reason`: the purpose of
// the key, and what to do. Does nothing if every key of the section is written, as in the resolved file of a run
// folder.
// `because`: source locations of the keys that remove its effect. If --set gave one of them and the file gave the
// key, the user tries the same file with another option. Then nothing is thrown, and `ignored`, if given, receives a
// line which reports that the key is ignored.
void refuse_without_effect(const Options& section, const std::string& key, const std::string& reason,
                           const std::vector<SourceLocation>& because = {},
                           std::vector<std::string>* ignored = nullptr);

}  // namespace convoy
