// Keys that can do nothing beside others of the file: whoever wrote one meant something by it, so it is refused. Defaults,
// which nobody wrote, never are. Without LibTorch.
#pragma once
#include <string>
#include <vector>

#include "core/options.h"

namespace convoy {

// Throws ConfigError at `key`, or at the first key below it, where the file or --set has it; `reason` says what it is for
// and what to do.
// Not where every key of the section is written, as in the resolved file of a run folder.
// `because`: where the keys stand that leave it without effect. Where --set gave one of them and the file the key, the same
// file is tried in another way and nothing is thrown: the text returned says that the key is left out. Else "".
std::string refuse_without_effect(const Options& section, const std::string& key, const std::string& reason,
                                  const std::vector<Mark>& because = {});

}  // namespace convoy
