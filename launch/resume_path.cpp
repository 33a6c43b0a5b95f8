#include "launch/resume_path.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/config/run_config.h"
#include "core/farm_folder.h"
#include "core/member_path.h"
#include "launch/run_folder.h"
#include "strategies/catalogue.h"

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

// What a member has of its own.
constexpr const char* members_own[] = {"seed", "data.seed", "data.samples", "optimizer.lr", "optimizer.weight_decay"};

[[noreturn]] void refuse(const Json& resolved, const std::string& key, const std::string& reason) {
  throw ConfigError(mark_of(resolved, key), key, reason);
}

// Of the run that made a step-N folder; null where the manifest cannot be read: ranks say what is wrong with it.
Json config_of(const fs::path& step) {
  std::ifstream file(step / "manifest.json");
  const Json manifest = Json::parse(file, nullptr, false);
  const bool whole = manifest.is_object() && manifest.contains("config") && manifest["config"].is_object();
  return whole ? manifest["config"] : Json();
}

// Keys in which this run may differ from the one that it goes on from; `member`: from one that was a member.
std::vector<std::string> free_keys(bool member) {
  std::vector<std::string> free = resumable_keys();
  free.push_back("name");
  if (member)
    for (const char* own : members_own) free.push_back(own);
  free.push_back("strategy");    // a checkpoint holds whole tensors' pieces: any strategy puts them together
  free.push_back("model.rows");  // and tables of all kinds hold the same
  return free;
}

// One of a farm's pipelines as member `index` of the ensemble that this run is.
void check_pipeline(const std::string& pipeline, size_t index, const std::vector<std::string>& overrides,
                    const Json& resolved) {
  const fs::path folder = step_folder(pipeline);
  if (folder.empty()) refuse(resolved, "train.resume", str(pipeline, " holds no checkpoint"));
  const Json made = config_of(folder);
  if (made.is_null()) return;
  if (const std::string key = first_difference(made, resolved, free_keys(true)); !key.empty())
    refuse(resolved, key, str("differs from that of ", pipeline, ", which is to be member ", index));
  for (const std::string& text : overrides) {
    const size_t equals = text.find('=');
    const std::string key = text.substr(0, equals);
    const Json wanted = Json::parse(text.substr(equals + 1), nullptr, false);
    std::string pointer = "/" + key;
    std::replace(pointer.begin(), pointer.end(), '.', '/');
    const Json::json_pointer place(pointer);
    if (!wanted.is_number() || !made.contains(place) || made[place] == wanted) continue;
    refuse(resolved, "train.resume",
           str(pipeline, " has ", key, ' ', made[place].dump(), ", and member ", index, " of this ensemble ",
               wanted.dump(), "; list the members as the farm's pipelines are"));
  }
}

void check_farm(const std::vector<std::string>& pipelines, const Json& resolved) {
  const RunConfig config = RunConfig::from_resolved(resolved);
  const StrategyEntry& strategy = strategy_entry(config.strategy.name);
  if (!strategy.members)
    refuse(resolved, "train.resume",
           "is a farm's folder, whose pipelines can be the members of an ensemble: take "
           "strategy.name=ensemble, or give one pipeline's folder");
  const std::vector<std::vector<std::string>> members = strategy.members(config);
  if (members.size() != pipelines.size())
    refuse(resolved, "train.resume",
           str("is a farm of ", pipelines.size(), " pipelines, and strategy.members is ", members.size()));
  for (size_t i = 0; i < pipelines.size(); ++i) check_pipeline(pipelines[i], i, members[i], resolved);
}

}  // namespace

void check_resume_path(const std::string& resume, const Json& resolved) {
  if (resume == "auto" || resume == "never") return;
  const MemberPath wanted = member_path(resume);
  if (const auto pipelines = pipeline_folders(wanted.path); !pipelines.empty()) return check_farm(pipelines, resolved);
  const fs::path folder = step_folder(wanted.path);
  if (folder.empty())
    throw ConfigError(
        mark_of(resolved, "train.resume"), "train.resume",
        str(wanted.path, " holds no checkpoint; give a run folder, or one of its checkpoints/step-N folders"));
  const Json made = config_of(folder);
  if (made.is_null()) return;
  const std::string key = first_difference(made, resolved, free_keys(wanted.member >= 0));
  if (!key.empty())
    throw ConfigError(
        mark_of(resolved, key), key,
        str("differs from the run that made ", folder.string(), ", which train.resume names; write it as ",
            (folder / "manifest.json").string(), " has it, or start anew with --set train.resume=never"));
}

}  // namespace convoy
