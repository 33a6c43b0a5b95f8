#include "launch/resume_path.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/config/run_config.h"
#include "core/member_path.h"
#include "launch/run_folder.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

// The step-N folder that ranks would take if none is damaged: the path itself, or the newest below it.
fs::path step_folder(const std::string& path) {
  std::error_code none;
  if (fs::exists(path + "/manifest.json", none)) return path;
  for (const fs::path& folder : {fs::path(path) / "checkpoints", fs::path(path)}) {
    fs::path newest;
    long long most = -1;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, none)) {
      const std::string name = entry.path().filename().string();
      if (name.rfind("step-", 0) != 0) continue;
      const long long step = std::atoll(name.c_str() + 5);
      if (step > most) newest = entry.path();
      most = std::max(most, step);
    }
    if (!newest.empty()) return newest;
  }
  return {};
}

}  // namespace

void check_resume_path(const std::string& resume, const Json& resolved) {
  if (resume == "auto" || resume == "never") return;
  const MemberPath wanted = member_path(resume);
  const fs::path folder = step_folder(wanted.path);
  if (folder.empty())
    throw ConfigError(
        mark_of(resolved, "train.resume"), "train.resume",
        str(wanted.path, " holds no checkpoint; give a run folder, or one of its checkpoints/step-N folders"));
  std::ifstream file(folder / "manifest.json");
  const Json manifest = Json::parse(file, nullptr, false);
  if (!manifest.is_object() || !manifest.contains("config") || !manifest["config"].is_object()) return;
  std::vector<std::string> free = resumable_keys();
  free.push_back("name");
  // A member has its own of these.
  if (wanted.member >= 0)
    for (const char* own : {"seed", "data.seed", "data.samples", "optimizer.lr", "optimizer.weight_decay"})
      free.push_back(own);
  free.push_back("strategy");    // a checkpoint holds whole tensors' pieces: any strategy puts them together
  free.push_back("model.rows");  // and tables of all kinds hold the same
  const std::string key = first_difference(manifest["config"], resolved, free);
  if (!key.empty())
    throw ConfigError(
        mark_of(resolved, key), key,
        str("differs from the run that made ", folder.string(), ", which train.resume names; write it as ",
            (folder / "manifest.json").string(), " has it, or start anew with --set train.resume=never"));
}

}  // namespace convoy
