#include "launch/resume_path.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>

#include "core/config/run_config.h"
#include "core/data/samples.h"
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

// A number that two configurations have by different ways of writing it.
bool same_value(const Json& a, const Json& b) {
  if (!a.is_number() || !b.is_number()) return a == b;
  if (a.is_number_integer() && b.is_number_integer()) return a == b;
  const double left = a.get<double>(), right = b.get<double>();
  return std::abs(left - right) <= 1e-9 * std::max(std::abs(left), std::abs(right));
}

// Of a configuration for one model: what it comes to, `auto` resolved, in the form of the overrides that make a member.
Json value_of(const RunConfig& config, const std::string& key) {
  if (key == "seed") return config.seed;
  if (key == "data.seed") return data_seed(config.data.options, config.seed);
  if (key != "data.samples") {
    std::string pointer = "/" + key;
    std::replace(pointer.begin(), pointer.end(), '.', '/');
    const Json::json_pointer place(pointer);
    return config.resolved.contains(place) ? config.resolved[place] : Json();
  }
  const MemberDraw draw = data_draw(config.data.options, config.seed);
  Json samples = {{"how", "all"}};
  if (draw.rows == MemberDraw::Rows::bootstrap) samples = {{"how", "bootstrap"}};
  if (draw.rows == MemberDraw::Rows::subset) samples = {{"how", "subset"}, {"fraction", draw.fraction}};
  if (draw.rows == MemberDraw::Rows::fold) samples = {{"how", "folds"}, {"folds", draw.folds}, {"fold", draw.member}};
  if (draw.seed != config.seed) samples["seed"] = draw.seed;
  return samples;
}

struct Other {
  std::string key;
  Json has, wanted;
};

// The first thing that `config`, of one model, has other than a member whose overrides these are.
std::optional<Other> other_than(const RunConfig& config, const std::vector<std::string>& overrides) {
  std::map<std::string, Json> wanted{{"data.samples", {{"how", "all"}}}};
  for (const std::string& text : overrides) {
    const size_t equals = text.find('=');
    wanted[text.substr(0, equals)] = Json::parse(text.substr(equals + 1), nullptr, false);
  }
  for (const char* key : members_own) {
    const auto found = wanted.find(key);
    if (found == wanted.end()) continue;
    const Json has = value_of(config, key);
    if (!same_value(has, found->second)) return Other{key, has, found->second};
  }
  return std::nullopt;
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
  if (const auto other = other_than(RunConfig::from_resolved(made), overrides))
    refuse(resolved, "train.resume",
           str(pipeline, " has ", other->key, ' ', other->has.dump(), ", and member ", index, " of this ensemble ",
               other->wanted.dump(), "; list the members as the farm's pipelines are"));
}

// This run, of one model, as it goes on from a member of the ensemble that `made` is the configuration of.
void check_member(const MemberPath& wanted, const Json& made, const Json& resolved) {
  const RunConfig ensemble = RunConfig::from_resolved(made);
  const StrategyEntry& strategy = strategy_entry(ensemble.strategy.name);
  if (!strategy.members)
    refuse(resolved, "train.resume",
           str("names member ", wanted.member, " of ", wanted.path, ", which was trained by ", ensemble.strategy.name,
               " and has no members; leave out @member", wanted.member));
  const std::vector<std::vector<std::string>> members = strategy.members(ensemble);
  const auto index = static_cast<size_t>(wanted.member);
  if (index >= members.size())
    refuse(resolved, "train.resume",
           str("names member ", wanted.member, " of ", wanted.path, ", which has ", members.size(), ", from 0 to ",
               members.size() - 1));
  const auto other = other_than(RunConfig::from_resolved(resolved), members[index]);
  if (!other) return;
  refuse(resolved, other->key,
         str("is ", other->has.dump(), ", and member ", wanted.member, " of ", wanted.path,
             ", which train.resume names, has ", other->wanted.dump(), "; --set ", other->key, "='",
             other->wanted.dump(), "', or name the member that is meant"));
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
  if (wanted.member >= 0) check_member(wanted, made, resolved);
}

}  // namespace convoy
