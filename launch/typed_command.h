// Lines for the user to type.
#pragma once
#include <string>

namespace convoy {

struct RunArguments;

// The command as it was typed, without --output, --inject and train.resume: lines to type give these anew.
std::string typed_command(const RunArguments& arguments);
// In quotes where a POSIX shell would read the word as something else.
std::string shell_word(const std::string& word);

}  // namespace convoy
