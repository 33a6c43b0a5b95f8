// docs/config.md, made from the descriptions of options.
#pragma once
#include <string>
#include <vector>

#include "core/config/run_config.h"

namespace convoy {

std::string reference_page(const Catalogues& catalogues);

std::string default_text(const Option& option);                  // as a user would write it
const std::vector<Option>* inner_options(const Option& option);  // keys to describe below it, or null
std::vector<Option> common_options(const std::string& kind);     // what every component of a kind takes

}  // namespace convoy
