// Reads a configuration from text as if it were the file run.yaml, with small catalogues.
#pragma once
#include <string>
#include <vector>

#include "core/config/run_config.h"

namespace convoy::testing {

Catalogues small_catalogues();

extern const char* const valid_config;  // a whole file
// Returns valid_config with the first occurrence of `from` replaced; fails the test when there is none.
std::string config_with(const std::string& from, const std::string& to);

RunConfig read_config(const std::string& text, const std::vector<std::string>& overrides = {});
// Returns what() of the Error of a failed reading, without the file's folder; "no error" when it succeeds.
std::string config_error(const std::string& text, const std::vector<std::string>& overrides = {});

}  // namespace convoy::testing
