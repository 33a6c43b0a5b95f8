// Stacks for people: addresses as ranks send them ("PATH+0xOFFSET") become names, cut to what a reader wants.
#pragma once
#include <string>
#include <vector>

namespace convoy {

// Innermost first. Machinery (thread starts, std::function, runs of LibTorch's dispatcher) is left out or folded; of what
// is left the first `most`.
std::vector<std::string> readable_stack(const std::vector<std::string>& frames, size_t most);

// A line of the backtrace that a crashed rank has written ("PATH(SYMBOL+0xOFFSET)[0xADDRESS]") with the function's plain name;
// any other line as it is.
std::string readable_line(const std::string& line);

// "FaultyBlock::forward" of a name as the linker has it: without arguments, templates, return type and convoy's namespace.
std::string plain_function(const std::string& symbol);

}  // namespace convoy
