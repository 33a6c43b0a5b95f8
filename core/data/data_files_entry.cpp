// Which keys name files, and where each data set's come from.
#include "core/data/data_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace convoy {
namespace {

struct Source {
  const char* data;
  const char* section;  // "": the data set itself
  const char* key;
  bool folder;
  const char* advice;
};

constexpr char own_table[] = "give the path of your own file";
constexpr Source sources[] = {
    {"interactions", "", "path", false, "./quickstart fetches MovieLens-100K to .data/ml-100k.inter; or give your own"},
    {"fashion_mnist", "", "path", true, "Debian's package dataset-fashion-mnist has the files"},
    {"table", "", "path", false, own_table},
    {"table", "", "target_path", false, own_table},
    {"table", "evaluate", "path", false, own_table},
    {"table", "evaluate", "target_path", false, own_table},
};

// What is wrong with it; "" when nothing is.
std::string problem_of(const std::string& path, bool folder) {
  struct stat facts {};
  if (stat(path.c_str(), &facts) != 0) {
    std::error_code none;
    const std::string from = path[0] == '/' ? "" : str(" from ", std::filesystem::current_path(none).string());
    return errno == ENOENT ? str(folder ? "no such folder" : "no such file", from) : std::strerror(errno);
  }
  if (S_ISDIR(facts.st_mode) != folder) return folder ? "is no folder" : "is a folder and no file";
  if (faccessat(AT_FDCWD, path.c_str(), folder ? R_OK | X_OK : R_OK, AT_EACCESS) != 0)
    return str("cannot be read: ", std::strerror(errno));
  return "";
}

}  // namespace

void check_data_files(const std::string& name, const Options& options) {
  for (const Source& source : sources) {
    if (name != source.data) continue;
    const std::string section = source.section;
    const Options at = section.empty() ? options : options.section(section);
    if (!at.json().contains(source.key) || !at.has(source.key)) continue;
    const std::string path = at.text(source.key);
    const std::string problem = path.empty() ? "is empty" : problem_of(path, source.folder);
    if (!problem.empty()) at.fail(source.key, str(path, path.empty() ? "" : ": ", problem, "; ", source.advice));
  }
}

}  // namespace convoy
