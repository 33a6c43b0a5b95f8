// Fingerprints of data in two parts: what an earlier version made of files' names and sizes, and a hash of their content.
#pragma once
#include <string>

namespace convoy {

std::string with_content(const std::string& names_and_sizes, const std::string& content);

// A stored fingerprint of the first part alone, as earlier versions have it, says nothing of the second.
bool same_fingerprint(const std::string& stored, const std::string& now);

}  // namespace convoy
