#include "core/files/farm.h"

#include "core/files/files.h"

namespace convoy {
namespace {

constexpr size_t longest_summary = size_t{64} << 20;

}  // namespace

std::vector<std::string> pipeline_folders(const std::string& folder) {
  std::vector<std::string> folders;
  Json summary;
  try {
    summary = Json::parse(read_file(folder + "/summary.json", longest_summary), nullptr, false);
  } catch (const Error&) {
    return folders;
  }
  if (!summary.is_object() || !summary.contains("pipelines") || !summary["pipelines"].is_array()) return folders;
  for (const Json& pipeline : summary["pipelines"])
    if (pipeline.is_object() && pipeline.contains("folder") && pipeline["folder"].is_string())
      folders.push_back(folder + "/" + pipeline["folder"].get<std::string>());
  return folders;
}

}  // namespace convoy
