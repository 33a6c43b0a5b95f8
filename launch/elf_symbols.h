// Names of functions in ELF files, private ones too where the file was not stripped: for stacks, which come as addresses.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace convoy {

// By place in `offsets` (from where the file is loaded): the function's name as the linker has it, "" where there is none or
// the file cannot be read. One pass over the file's symbols.
std::vector<std::string> elf_symbols(const std::string& path, const std::vector<uint64_t>& offsets);

}  // namespace convoy
