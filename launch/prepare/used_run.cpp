#include "launch/prepare/used_run.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "core/base/version.h"
#include "core/config/run_config.h"
#include "core/data/catalogue/declared_schema.h"
#include "core/files/files.h"
#include "core/files/run_files.h"
#include "core/files/weight_files.h"
#include "core/rank_state/summary.h"
#include "strategies/plans/catalogue.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

// The run folder of a step-N folder.
std::string run_folder_of(const std::string& checkpoint) {
  return fs::path(checkpoint).parent_path().parent_path().string();
}

std::vector<std::string> notes_about(const std::string& checkpoint, const std::string& command) {
  std::vector<std::string> notes;
  const Json summary = read_summary(run_folder_of(checkpoint));
  const std::string status = summary.empty() ? "done" : run_status(run_folder_of(checkpoint), summary);
  if (status != "done") notes.push_back(str("the run has status ", status, "; this is one of its checkpoints"));
  const std::string trained = text_in(summary, "version", version);
  if (trained != version)
    notes.push_back(str("convoy ", trained, " trained this run, and this is ", version, "; if ", command,
                        " fails, use that version"));
  return notes;
}

}  // namespace

std::string UsedRun::path() const { return member < 0 ? checkpoint : str(checkpoint, "@member", member); }

namespace {

// Why `folder` is neither a run nor a checkpoint; "" if it is one.
std::string why_unusable(const std::string& folder, const std::string& command) {
  std::error_code none;
  if (!fs::exists(folder, none))
    return str(folder, " does not exist; give a run folder or a checkpoint (`convoy runs` lists those in runs/)");
  if (const std::vector<std::string> pipelines = pipeline_folders(folder); !pipelines.empty())
    return str(folder, " is the folder of a farm; name one of its runs, as in ", command, " ", pipelines.front(), ": ",
               join(pipelines, ", "));
  if (!is_checkpoint_path(folder)) return str(folder, " is neither a run folder nor a checkpoint");
  return "";
}

[[noreturn]] void refuse_without_checkpoint(const std::string& folder, const std::string& name,
                                            const std::string& command) {
  const std::string status = run_status(folder, read_summary(folder));
  throw Error(Failure::config, command, ": ", name, " holds no complete checkpoint, and its status is ", status,
              status == "running" ? "; wait for its first one (train.checkpoint_every)"
                                  : "; train it again with train.checkpoint_every, such as \"1 epoch\"");
}

constexpr size_t longest_manifest = size_t{1} << 30;

// step-N folders, newest first.
std::vector<fs::path> steps_in(const fs::path& folder) {
  std::map<long long, fs::path> found;
  for (const std::string& name : names_in(folder.string()))
    if (name.rfind("step-", 0) == 0) found[-std::atoll(name.c_str() + 5)] = folder / name;
  std::vector<fs::path> steps;
  for (const auto& [step, path] : found) steps.push_back(path);
  return steps;
}

// The step-N folder that ranks take if none is damaged: the path itself, or the newest one below it.
fs::path step_folder(const std::string& path) {
  std::error_code none;
  if (fs::exists(path + "/manifest.json", none)) return path;
  for (const fs::path& folder : {fs::path(path) / "checkpoints", fs::path(path)})
    if (const std::vector<fs::path> steps = steps_in(folder); !steps.empty()) return steps.front();
  return {};
}

// Keys whose values differ between ensemble members.
constexpr const char* member_keys[] = {"seed", "data.seed", "data.samples", "optimizer.lr", "optimizer.weight_decay"};

// Options of models that change neither the parameters nor their meaning.
const std::vector<std::string> free_model_keys{"model.dropout",  "model.attention_dropout", "model.top_k",
                                               "model.rows",     "model.metrics",           "model.plugin",
                                               "model.init_from"};

[[noreturn]] void refuse(const Json& resolved, const std::string& key, const std::string& reason) {
  throw ConfigError(location_of(resolved, key), key, reason);
}

// True if `config` has the sections of every run. Ranks check the whole manifest.
bool is_of_run(const Json& config) {
  if (!config.is_object()) return false;
  const auto model = config.find("model"), train = config.find("train");
  return (config.contains("program") || (model != config.end() && model->is_object())) &&
         (train == config.end() || train->is_object() || train->is_null());
}

// The run that wrote a step-N folder; its config is null if the manifest is unreadable, which ranks report.
StoredConfig stored_in(const fs::path& step) {
  const std::string path = (step / "manifest.json").string();
  try {
    const Json manifest = parsed_json(read_file(path, longest_manifest));
    if (!manifest.is_object() || !manifest.contains("config") || !is_of_run(manifest["config"])) return {};
    const Json trainer = manifest.value("trainer", Json());
    const Json ranks = trainer.is_object() ? trainer.value("world_size", Json()) : Json();
    const Json step_done = manifest.value("step", Json());
    return {path, manifest["config"], ranks.is_number_integer() ? ranks.get<int64_t>() : 0,
            step_done.is_number_integer() ? step_done.get<int64_t>() : 0, manifest.contains("schema")};
  } catch (const Error&) {
    return {};
  }
}

Json config_of(const fs::path& step) { return stored_in(step).config; }

RunConfig typed_config(const Json& config, const fs::path& step) {
  try {
    return RunConfig::from_resolved(config);
  } catch (const std::exception& error) {
    throw Error(Failure::corrupt_data, (step / "manifest.json").string(),
                ": config is no configuration of this convoy: ", error.what());
  }
}

// Compares the models of two configurations. Ranks compare names and shapes of a plugin's parameters: only the plugin
// understands its options. `role`: "member 0" if the state becomes this member of an ensemble; else "".
void check_model(const Json& stored, const Json& resolved, const fs::path& step, const std::string& role = "") {
  const auto model_of = [](const Json& config) { return Json{{"model", config.value("model", Json())}}; };
  Json now = model_of(resolved);
  if (resolved.contains("marks")) now["marks"] = resolved["marks"];
  const bool plugin = now["model"].contains("plugin") || stored.value("model", Json::object()).contains("plugin");
  std::string first;
  std::vector<std::string> lines;
  for (const Difference& difference : differences(model_of(stored), now, free_model_keys)) {
    if (plugin && difference.key != "model.name") continue;
    if (first.empty()) first = difference.key;
    lines.push_back(to_string(difference));
  }
  if (first.empty()) return;
  refuse(resolved, first,
         str("the state in ", step.string(), role.empty() ? "" : " (for " + role + ")", " is of another model (",
             join(lines, "; "), "); use that model, or start from the beginning with --set train.resume=never"));
}

// True for equal numbers, however they are written.
bool same_value(const Json& a, const Json& b) {
  if (!a.is_number() || !b.is_number()) return a == b;
  if (a.is_number_integer() && b.is_number_integer()) return a == b;
  const double left = a.get<double>(), right = b.get<double>();
  return std::abs(left - right) <= 1e-9 * std::max(std::abs(left), std::abs(right));
}

// Value of a key in a configuration for one model, with `auto` resolved, in the form of a member's overrides.
Json value_of(const RunConfig& config, const std::string& key) {
  if (key == "seed") return config.seed;
  if (key == "data.seed") return data_seed(config.data.options, config.seed);
  if (key != "data.samples") return value_of_key(config.resolved, key);
  const MemberSample sample = member_sample(config.data.options, config.seed);
  Json samples = samples_json(sample);
  if (sample.seed != config.seed) samples["seed"] = sample.seed;
  return samples;
}

// Differences between `config`, for one model, and a member with these overrides: lines "KEY: MEMBER'S -> CONFIG'S".
std::vector<std::string> other_settings(const RunConfig& config, const std::vector<std::string>& overrides,
                                        bool to_member) {
  std::map<std::string, Json> wanted{{"data.samples", {{"how", "all"}}}};
  for (const std::string& text : overrides) {
    const size_t equals = text.find('=');
    wanted[text.substr(0, equals)] = parsed_json(text.substr(equals + 1));
  }
  std::vector<std::string> lines;
  for (const char* key : member_keys) {
    const auto found = wanted.find(key);
    if (found == wanted.end()) continue;
    const Json has = value_of(config, key);
    if (same_value(has, found->second)) continue;
    lines.push_back(to_string(to_member ? Difference{key, has, found->second} : Difference{key, found->second, has}));
  }
  return lines;
}

// Refuses another number of members of an ensemble.
void check_member_count(const Json& stored, const Json& resolved, const fs::path& step) {
  const Json::json_pointer name("/strategy/name");
  if (!stored.contains(name) || stored[name] != resolved.value(name, Json())) return;
  const RunConfig config = RunConfig::from_resolved(resolved);
  const size_t has = member_overrides(config).size();
  if (has == 0) return;
  const size_t had = member_overrides(typed_config(stored, step)).size();
  if (had == has) return;
  refuse(resolved, "strategy.members",
         str("members = ", has, " conflicts with the state in ", step.string(), ", members = ", had,
             "; use that number, or continue one member under another strategy with @member0, @member1, … at the "
             "end of train.resume"));
}

// Checks one pipeline of a farm as member `index` of this run's ensemble.
void check_pipeline(const std::string& pipeline, size_t index, const std::vector<std::string>& overrides,
                    const Json& resolved, std::vector<std::string>& notes) {
  const fs::path folder = step_folder(pipeline);
  if (folder.empty()) refuse(resolved, "train.resume", str(pipeline, " holds no checkpoint"));
  const Json stored = config_of(folder);
  if (stored.is_null()) return;
  check_model(stored, resolved, folder, str("member ", index));
  for (const std::string& line : other_settings(typed_config(stored, folder), overrides, true))
    notes.push_back(str("train.resume: ", pipeline, " becomes member ", index, ", with another ", line));
}

// Checks this run, of one model, as the continuation of a member of the ensemble with configuration `stored`.
void check_member(const MemberPath& wanted, const Json& stored, const fs::path& step, const Json& resolved,
                  std::vector<std::string>& notes) {
  const RunConfig ensemble = typed_config(stored, step);
  const std::vector<std::vector<std::string>> members = member_overrides(ensemble);
  if (members.empty())
    refuse(resolved, "train.resume",
           str("names member ", wanted.member, " of ", wanted.path, ", a run of ", ensemble.strategy.name,
               ", which has no members; leave out @member", wanted.member));
  const auto index = static_cast<size_t>(wanted.member);
  if (index >= members.size())
    refuse(resolved, "train.resume",
           str("names member ", wanted.member, " of ", wanted.path, ", which has ", counted(members.size(), "member"),
               "; name ", members.size() == 1 ? "member 0" : str("one of 0 to ", members.size() - 1)));
  for (const std::string& line : other_settings(RunConfig::from_resolved(resolved), members[index], false))
    notes.push_back(str("train.resume: member ", wanted.member, " of ", wanted.path, " continues with another ", line));
}

void check_farm(const std::vector<std::string>& pipelines, const Json& resolved, std::vector<std::string>& notes) {
  const RunConfig config = RunConfig::from_resolved(resolved);
  const std::vector<std::vector<std::string>> members = member_overrides(config);
  if (members.empty())
    refuse(resolved, "train.resume",
           str("is the folder of a farm; set strategy.name=", members_strategy().name,
               " to use its pipelines as members, or give the folder of one pipeline"));
  if (members.size() != pipelines.size())
    refuse(resolved, "train.resume",
           str("is a farm, and strategy.members = ", members.size(), " conflicts with its ", pipelines.size(),
               pipelines.size() == 1 ? " pipeline" : " pipelines", "; set strategy.members=", pipelines.size()));
  for (size_t i = 0; i < pipelines.size(); ++i) check_pipeline(pipelines[i], i, members[i], resolved, notes);
}

// Refuses a member that the run does not have.
void check_named_member(const UsedRun& used, const std::string& command) {
  if (used.member < 0 || used.config.contains("program") || !used.config.contains("strategy")) return;
  const std::string run = run_of(used.name);
  const RunConfig config = typed_config(used.config, used.checkpoint);
  const size_t members = member_overrides(config).size();
  if (members == 0)
    throw Error(Failure::config, command, ": ", run, " is a run of ", config.strategy.name,
                ", which has no members; leave out @member", used.member);
  if (static_cast<size_t>(used.member) >= members)
    throw Error(Failure::config, command, ": ", run, " has no member ", used.member, "; it has ",
                counted(members, "member"), ": type ", run, "@member0",
                members == 1 ? "" : str(" to ", run, "@member", members - 1));
}

}  // namespace

UsedRun used_run(const std::string& name, const std::string& command, bool of_programs) {
  if (const std::string why = why_unusable(run_of(name), command); !why.empty())
    throw Error(Failure::command_line, command, ": ", why);
  const MemberPath named = checkpoint_path(name, command);
  UsedRun used;
  used.name = name;
  used.member = named.member;
  std::error_code none;
  if (fs::exists(named.path + "/manifest.json", none)) {
    used.checkpoint = fs::path(named.path).lexically_normal().string();
    if (used.checkpoint.back() == '/') used.checkpoint.pop_back();
  } else {
    const std::string folder = checkpoints_folder(named.path);
    if (checkpoint_steps(folder).empty()) refuse_without_checkpoint(named.path, name, command);
    used.checkpoint = str(folder, "/step-", checkpoint_steps(folder).back());
  }
  const StoredConfig stored = stored_in(used.checkpoint);
  if (stored.config.is_null())
    throw Error(Failure::corrupt_data, command, ": ", used.checkpoint,
                "/manifest.json cannot be read: the checkpoint is damaged", advice_for_damage(used.checkpoint));
  if (const Json program = stored.config.value("program", Json());
      !of_programs && program.is_array() && !program.empty())
    throw Error(Failure::config, command, ": ", name,
                " was trained by a program (key `program`); only that program can make its model; `convoy export` "
                "writes its tensors");
  used.config = stored.config;
  used.step = stored.step;
  used.world_size = std::max<int64_t>(stored.world_size, 1);
  used.has_schema = stored.has_schema;
  used.notes = notes_about(used.checkpoint, command);
  check_named_member(used, command);
  return used;
}

StoredConfig newest_config(const std::string& folder) {
  for (const fs::path& step : steps_in(fs::path(folder) / "checkpoints"))
    if (StoredConfig stored = stored_in(step); !stored.config.is_null()) return stored;
  return {};
}

StoredConfig resumed_config(const std::string& folder, const std::string& resume) {
  StoredConfig stored = newest_config(folder);
  if (!stored.manifest.empty() || resume == "auto" || resume == "never") return stored;
  const fs::path step = step_folder(checkpoint_path(resume, "train.resume").path);
  return step.empty() ? StoredConfig{} : stored_in(step);
}

std::vector<std::string> check_resume_path(const std::string& resume, const Json& resolved) {
  std::vector<std::string> notes;
  if (resume == "auto" || resume == "never") return notes;
  const MemberPath wanted = checkpoint_path(resume, "train.resume");
  if (const auto pipelines = pipeline_folders(wanted.path); !pipelines.empty()) {
    check_farm(pipelines, resolved, notes);
    return notes;
  }
  const fs::path folder = step_folder(wanted.path);
  if (folder.empty())
    refuse(resolved, "train.resume",
           str(wanted.path, " holds no checkpoint; give a run folder, or one of its checkpoints/step-N folders"));
  const Json stored = config_of(folder);
  if (stored.is_null()) return notes;
  check_model(stored, resolved, folder);
  if (wanted.member >= 0)
    check_member(wanted, stored, folder, resolved, notes);
  else
    check_member_count(stored, resolved, folder);
  return notes;
}

}  // namespace convoy
