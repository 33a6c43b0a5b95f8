// Parses JSON of files that people or other programs may have changed.
#pragma once
#include <string_view>

#include "core/base/json.h"

namespace convoy {

// Returns a discarded value (is_discarded()) if the text is malformed, or nested deeper than 100 levels. Functions that
// walk a deeper value recursively would overflow the stack.
Json parsed_json(std::string_view text);

}  // namespace convoy
