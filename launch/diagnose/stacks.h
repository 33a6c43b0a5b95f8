// Readable stacks: turns the addresses that ranks send ("PATH+0xOFFSET") into function names and shortens them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace convoy {

// Linker names of the functions at `offsets` (from the file's load address) in an ELF file, in the same order. "" if no
// function is there or if the file cannot be read. Finds private functions too unless the file is stripped.
std::vector<std::string> elf_symbols(const std::string& path, const std::vector<uint64_t>& offsets);

// Function names, innermost first, at most `most`. Leaves out or folds frames without information: thread starts,
// std::function, LibTorch's dispatcher.
std::vector<std::string> readable_stack(const std::vector<std::string>& frames, size_t most);

// Replaces the symbol in a backtrace line of a crashed rank ("PATH(SYMBOL+0xOFFSET)[0xADDRESS]") by the function's
// plain name; returns any other line unchanged.
std::string readable_line(const std::string& line);

// "FaultyBlock::forward" for a linker name: without arguments, templates, return type and convoy's namespace.
std::string plain_function(const std::string& symbol);

}  // namespace convoy
