#include "core/plugin_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "core/error.h"

namespace convoy {
namespace {

[[noreturn]] void fail(Failure kind, const std::string& path, const std::string& reason) {
  throw Error(kind, str("plugin ", path, ": ", reason));
}

// Whoever may write the file, or put another in its place, could run code as this user.
void check_writers(const std::string& plugin, const std::string& place, bool folder) {
  struct stat facts {};
  if (stat(place.c_str(), &facts) != 0) fail(Failure::config, plugin, str(place, ": ", std::strerror(errno)));
  if (!folder && !S_ISREG(facts.st_mode)) fail(Failure::config, plugin, "is no file");
  if (facts.st_uid != geteuid() && facts.st_uid != 0)
    fail(Failure::refused, plugin,
         str(place, " belongs to user ", facts.st_uid, ", neither you nor root; copy it to a folder of your own"));
  const bool sticky = folder && (facts.st_mode & S_ISVTX) != 0;  // as /tmp: others cannot replace what is not theirs
  if ((facts.st_mode & (S_IWGRP | S_IWOTH)) != 0 && !sticky)
    fail(Failure::refused, plugin, str(place, " can be written by others; type: chmod go-w ", place));
}

}  // namespace

std::string trusted_plugin_file(const std::string& path) {
  if (path.empty() || path.front() != '/')
    fail(Failure::config, path, "has to be an absolute path, so that no search decides what is loaded");
  char resolved[PATH_MAX];
  if (realpath(path.c_str(), resolved) == nullptr)
    fail(Failure::config, path, str(std::strerror(errno), "; build it first (docs/extending.md)"));
  const std::string file = resolved;
  check_writers(path, file, false);
  // Up to the root, as sshd does: who may rename a folder on the way may put another one in its place.
  for (size_t end = file.rfind('/'); end != std::string::npos; end = end == 0 ? end - 1 : file.rfind('/', end - 1))
    check_writers(path, file.substr(0, std::max<size_t>(1, end)), true);
  return file;
}

}  // namespace convoy
