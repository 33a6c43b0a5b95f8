// Where a data set lies, told in the log once it is read: what is mapped read-only takes its memory once for all processes
// of the host that map it, whatever run they belong to; what is in memory takes it in each.
#pragma once
#include <cstdint>
#include <string>

namespace convoy {

void tell_mapped(const std::string& what, const std::string& file, int64_t bytes);
void tell_in_memory(const std::string& what, int64_t bytes, const std::string& reason);

}  // namespace convoy
