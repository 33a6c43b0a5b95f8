// Which file a plugin's path leads to, and whether it may be trusted; without LibTorch, and without opening it.
#pragma once
#include <string>

namespace convoy {

// The file behind all links, which is the one to open. Throws Error(config) unless `path` is absolute and leads to a
// file, and Error(refused) unless that file and every folder above it belong to this user or root and no other may write
// them (a sticky folder such as /tmp may be written): opening a library runs it.
std::string trusted_plugin_file(const std::string& path);

}  // namespace convoy
