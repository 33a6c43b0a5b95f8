#include "launch/farm/folders.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "core/config/differences.h"
#include "launch/run_folder.h"
#include "launch/summary.h"

namespace convoy {

void make_own_folder(const std::string& path) {
  if (mkdir(path.c_str(), 0755) == 0) return;
  const int reason = errno;
  struct stat status {};
  if (reason != EEXIST || stat(path.c_str(), &status) != 0)
    throw Error(Failure::output, str(path, ": cannot be created: ", strerror(reason)));
  if (!S_ISDIR(status.st_mode))
    throw Error(Failure::output, str(path,
                                     ": is no folder, and a farm needs one of that name; move it away, or give "
                                     "another --output"));
}

std::optional<ConfigError> occupied(const Pipeline& pipeline, const std::string& folder) {
  struct stat status {};
  if (stat(folder.c_str(), &status) != 0) return std::nullopt;
  const auto taken = [&](const std::string& what) {
    return ConfigError(pipeline.mark, pipeline.name,
                       str(what, "; move it away, or give the pipeline another name, or the farm another --output"),
                       Failure::output);
  };
  if (!S_ISDIR(status.st_mode)) return taken(str(folder, ": is no folder, and the pipeline needs one of that name"));
  const std::string file = folder + "/summary.json";
  const Json summary = Json::parse(read_file_if_any(file), nullptr, false);
  const std::string foreign = summary.is_object() ? foreign_key(summary) : "";
  if (foreign.empty()) return std::nullopt;
  return taken(str(file, ": has a `", foreign, "` that convoy would not write"));
}

void remove_left_lock(const std::string& folder) {
  if (access((folder + "/.lock").c_str(), F_OK) != 0) return;
  try {
    const FolderLock lock(folder);
  } catch (const Error&) {  // where nothing can be written
  }
}

std::optional<ConfigError> differs(const Pipeline& pipeline, const std::string& folder, const Json& summary) {
  if (!summary.contains("config")) return std::nullopt;
  const bool done = summary.value("status", "") == "done";
  std::error_code none;
  if (!done && !std::filesystem::exists(folder + "/checkpoints", none)) return std::nullopt;
  const std::vector<std::string> may = done ? std::vector<std::string>{"train.resume"} : resumable_keys();
  const std::vector<Difference> found = differences(summary["config"], pipeline.config, may);
  if (found.empty()) return std::nullopt;
  std::vector<std::string> lines;
  for (const Difference& difference : found) lines.push_back(to_string(difference));
  return ConfigError(mark_of(pipeline.config, found.front().key), found.front().key,
                     str("differs from the ", done ? "finished" : "unfinished", " run in ", folder, " (",
                         join(lines, "; "), "); give another --output, or the pipeline another name; ",
                         "train.resume=", folder, " continues from its state"),
                     Failure::output);
}

}  // namespace convoy
