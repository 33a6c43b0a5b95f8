#include "api/run/run_folder.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <vector>

#include "core/base/log.h"
#include "core/checkpoint/save_coordination.h"
#include "core/config/run_config.h"
#include "core/control/exit_codes.h"
#include "core/files/files.h"
#include "core/rank_state/summary.h"

namespace convoy {
namespace {

constexpr char advice[] = "give job.resume another folder";

// Name of the program's file, without its folder and arguments.
std::string program_of(const Json& config) {
  const Json words = config.is_object() ? config.value("program", Json()) : Json();
  if (!words.is_array() || words.empty() || !words[0].is_string()) return "";
  const std::string path = words[0];
  return path.substr(path.rfind('/') + 1);
}

// Returns the settings that would change the run of the folder, with both values. The program's arguments may differ:
// Run::share compares the options that follow from them.
std::vector<std::string> changes(const Json& was, const Json& is) {
  std::vector<std::string> lines;
  if (program_of(was) != program_of(is))
    lines.push_back(to_string(Difference{"program", program_of(was), program_of(is)}));
  std::vector<std::string> ignored = resumable_keys();
  ignored.insert(ignored.end(), {"program", "name"});
  for (const Difference& difference : differences(was, is, ignored)) lines.push_back(to_string(difference));
  return lines;
}

bool has_checkpoints(const std::string& folder) {
  const std::vector<std::string> names = names_in(folder + "/checkpoints");
  return std::any_of(names.begin(), names.end(), [](const std::string& name) { return begins_with(name, "step-"); });
}

}  // namespace

EmbeddedRunFolder::EmbeddedRunFolder(Context& context, const std::string& folder) : context_(context) {
  SaveCoordination coordination(context, "folder");
  const Json opened = Json::parse(coordination.on_first("open", [&] { return open(folder); }));
  context.folder = opened.at("path");
  done_ = opened.at("done");
}

std::string EmbeddedRunFolder::open(const std::string& folder) {
  if (folder.empty()) throw Error(Failure::config, "job.resume: the name of the run folder is empty");
  const std::string path = absolute_path(folder);
  const std::string warning = create_run_folder(path, advice);
  if (!warning.empty()) log::warning(warning);
  lock_ = FolderLock(path, advice);
  if (!lock_.held())
    throw Error(Failure::output, path, ": another run uses it and holds its lock; wait for that run, or ", advice);
  summary_ = read_summary(path);
  const std::string status = summary_.value("status", "");
  const bool done = status == "done";
  if (has_checkpoints(path)) {
    const std::vector<std::string> found = changes(summary_.value("config", Json::object()), context_.config.resolved);
    if (!found.empty())
      throw Error(Failure::output, path, ": holds ", done ? "a run" : "an unfinished run",
                  " with other settings: ", join(found, ", "), "; ", advice, ", and call run.resume(\"", folder,
                  "\") to begin from this one");
  }
  if (status == "running")
    log::info(str(path, ": the previous run ended without a summary; this run resumes from its newest checkpoint"));
  if (!done) {
    JobPlan plan;
    plan.name = context_.config.name;
    plan.backend = context_.config.backend;
    plan.ranks.resize(static_cast<size_t>(context_.size));
    const Json before = summary_.value("attempt", Json());
    summary_ = starting_summary(context_.config.resolved, plan, before.is_number_integer() ? before.get<int>() + 1 : 0,
                                Json());
    write_whole(path + "/config.yaml", to_yaml(context_.config.resolved), false);
    write_summary(path, summary_);
  }
  return Json{{"path", path}, {"done", done}}.dump();
}

void EmbeddedRunFolder::finish(const TrainingResult& result) {
  finished_ = true;
  if (done_) return;
  SaveCoordination coordination(context_, "end");
  const std::vector<std::string> ranks = coordination.to_first("ranks", result.rank.dump());
  coordination.on_first("summary", [&] {
    JobOutcome outcome;
    if (result.stopped) {
      outcome.exit_code = exit_code::stopped;
      outcome.cause =
          Abort{Failure::stopped, -1, -1, 0, "", "stopped on request; the next start resumes from its checkpoint"};
    }
    outcome.result = result.summary;
    for (size_t rank = 0; rank < ranks.size(); ++rank) outcome.ranks[static_cast<int>(rank)] = Json::parse(ranks[rank]);
    write_summary(context_.folder, finished_summary(summary_, outcome, std::nullopt));
    return std::string();
  });
}

EmbeddedRunFolder::~EmbeddedRunFolder() {
  if (finished_ || done_ || !lock_.held()) return;
  try {
    JobOutcome outcome;
    outcome.cause = context_.channel->aborted();
    if (!outcome.cause)
      outcome.cause = Abort{Failure::training,
                            context_.rank,
                            -1,
                            0,
                            context_.host,
                            "an exception left the training; the program's own output has its message"};
    outcome.exit_code = exit_code_of(*outcome.cause);
    write_summary(context_.folder, finished_summary(summary_, outcome, std::nullopt));
  } catch (const std::exception& error) {
    log::error(str("cannot write the end of the run: ", error.what()));
  }
}

}  // namespace convoy
