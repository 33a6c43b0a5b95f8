#include "launch/prepare/used_run.h"

#include <filesystem>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/version.h"
#include "core/files/files.h"
#include "core/files/run_files.h"
#include "core/files/summary.h"
#include "core/files/weight_files.h"
#include "launch/prepare/resume_path.h"

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
  const std::string status = text_in(summary, "status", "done");
  if (status != "done") notes.push_back(str("the run has status ", status, "; this is one of its checkpoints"));
  const std::string trained = text_in(summary, "version", version);
  if (trained != version)
    notes.push_back(str("convoy ", trained, " trained this run, and this is ", version, "; if ", command,
                        " fails, use that version"));
  return notes;
}

}  // namespace

std::string UsedRun::path() const { return member < 0 ? checkpoint : str(checkpoint, "@member", member); }

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

namespace {

[[noreturn]] void refuse_without_checkpoint(const std::string& folder, const std::string& name,
                                            const std::string& command) {
  const std::string status = text_in(read_summary(folder), "status", "unknown");
  throw Error(Failure::config, command, ": ", name, " holds no complete checkpoint, and its status is ", status,
              status == "running" ? "; wait for its first one (train.checkpoint_every)"
                                  : "; train it again with train.checkpoint_every, such as \"1 epoch\"");
}

}  // namespace

UsedRun used_run(const std::string& name, const std::string& command) {
  const MemberPath named = checkpoint_path(name, command);
  if (const std::string why = why_unusable(named.path, command); !why.empty())
    throw Error(Failure::command_line, command, ": ", why);
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
  const StoredConfig stored = stored_config(used.checkpoint);
  if (stored.config.is_null())
    throw Error(Failure::corrupt_data, command, ": ", used.checkpoint,
                "/manifest.json cannot be read: the checkpoint is damaged; name an older one, as in ", name, "@step-N");
  if (const Json program = stored.config.value("program", Json()); program.is_array() && !program.empty())
    throw Error(Failure::config, command, ": ", name,
                " was trained by a program (key `program`); only that program can load its checkpoint");
  used.config = stored.config;
  used.step = stored.step;
  used.world_size = std::max<int64_t>(stored.world_size, 1);
  used.notes = notes_about(used.checkpoint, command);
  return used;
}

}  // namespace convoy
