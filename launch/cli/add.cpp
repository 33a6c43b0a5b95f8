#include "launch/cli/commands.h"

#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <sstream>
#include <utility>

#include "core/base/text.h"
#include "core/config/reader.h"
#include "core/control/exit_codes.h"
#include "core/files/files.h"
#include "core/rank_state/summary.h"
#include "launch/farm/config/farm.h"
#include "launch/farm/run/farm.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse_ended(const std::string& folder, const std::string& status) {
  throw Error(Failure::output, folder,
              ": no process runs this farm (status: ", status == "running" ? "unfinished" : status,
              "); run the pipeline alone with `convoy run`, or add it to the farm's file and start that file with "
              "another --output");
}

// Owner of the farm's lock, if any. Refuses a folder without a farm.
LockOwner farm_owner(const std::string& folder) {
  std::error_code none;
  require_folder(folder, "give the run folder of a farm, such as runs/farm");
  if (!read_summary(folder).contains("pipelines") && !fs::exists(folder + "/journal.jsonl", none))
    throw Error(Failure::command_line, folder,
                ": is not the run folder of a farm; start a farm with `convoy run FARM.yaml`, or run this "
                "pipeline alone with `convoy run`");
  return lock_owner(folder);
}

// Changes to the folder in which the farm was started, to which its data paths are relative: the working folder of its
// process, or the folder in its summary.
void change_to_start_folder(const std::string& folder, const LockOwner& owner) {
  std::error_code none;
  const std::string start = owner.held ? fs::read_symlink(str("/proc/", owner.pid, "/cwd"), none).string()
                                       : read_summary(folder).value("directory", "");
  if (start.empty() || fs::current_path(none) == start || chdir(start.c_str()) != 0) return;
  std::cerr << "convoy: paths of data count from " << start << ", where the farm was started\n";
}

void check_name(const std::string& folder, const Pipeline& pipeline) {
  const std::string& name = pipeline.name;
  std::error_code none;
  bool known = fs::exists(str(folder, "/pipelines/", name), none);
  for (const char* end : {".yaml", ".yaml.taken"}) known = known || fs::exists(str(folder, "/inbox/", name, end), none);
  if (known)
    throw ConfigError(pipeline.location, "name", "is '", name, "', the name of another pipeline in ", folder,
                      "; choose another name");
}

// Translates refusals: the farm names its inbox file and lines, the user knows `file`.
struct Author {
  const std::string file;
  const Pipeline& pipeline;

  std::string reason(const std::string& answer, const std::string& inbox_file) const {
    std::string all;
    std::istringstream lines(answer);
    for (std::string line; std::getline(lines, line);) all += (all.empty() ? "" : "\n") + translated(line, inbox_file);
    return all;
  }

  std::string translated(std::string line, const std::string& inbox_file) const {
    const size_t location_end = line.find(": "), key_end = line.find(": ", location_end + 2);
    if (line.rfind(inbox_file, 0) == 0 && key_end != std::string::npos) {
      const std::string key = line.substr(location_end + 2, key_end - location_end - 2);
      return to_string(location(key)) + line.substr(location_end);
    }
    for (size_t at = 0; (at = line.find(inbox_file, at)) != std::string::npos; at += file.size())
      line.replace(at, inbox_file.size(), file);
    return line;
  }

  // Source location of a key: NAME.KEY is a key of the pipeline; any other key belongs to its configuration.
  SourceLocation location(const std::string& key) const {
    const std::string prefix = pipeline.name + ".";
    if (key.rfind(prefix, 0) != 0) return location_of(pipeline.config, key);
    const Node root = read_yaml_file(file);
    const Node* value = root.find(key.substr(prefix.size()));
    return value == nullptr ? pipeline.location : value->location;
  }
};

// Waits for the farm's answer; true if it took the file. Throws if it refused or has ended.
bool answered(const std::string& folder, const std::string& path, const Author& author, double seconds) {
  std::error_code none;
  const Answer answer = wait_for_answer(folder, seconds, [&] {
    if (fs::exists(path + ".taken", none)) return true;
    if (const auto refusal = Inbox::refusal(path))
      throw Error(refusal->kind(), "not added: ", author.reason(refusal->what(), path));
    return false;
  });
  if (answer == Answer::ended) {
    unlink(path.c_str());
    refuse_ended(folder, read_summary(folder).value("status", "ended"));
  }
  return answer == Answer::given;
}

std::string waiting_file(const std::string& folder, const Pipeline& pipeline) {
  make_private_folder(folder + "/inbox");
  return str(folder, "/inbox/", pipeline.name, ".yaml");
}

// Puts the pipeline into the inbox of a running farm and waits for the answer.
void submit(const std::string& folder, const std::string& file, const Pipeline& pipeline,
            const AddArguments& arguments) {
  const std::string path = waiting_file(folder, pipeline);
  unlink((path + ".refused").c_str());  // the answer to an earlier attempt
  write_whole(path, pipeline_yaml(pipeline), true);
  const Author author{file, pipeline};
  if (!answered(folder, path, author, arguments.wait)) {
    if (unlink(path.c_str()) == 0)
      throw Error(Failure::hang, "not added: the farm in ", folder, " did not answer within ", arguments.wait,
                  " s; its process may be stopped, or its host busy: try again, or set a longer --wait");
    if (!answered(folder, path, author, 1))  // the farm took it at this moment
      throw Error(Failure::io, path, ": was removed without an answer of the farm; see ", folder, "/journal.jsonl");
  }
  std::cout << pipeline.name << ": in the queue of " << arguments.folder << ", priority " << pipeline.options.priority
            << (pipeline.options.preempt ? ", may preempt" : "") << "; watch it by: convoy top " << arguments.folder
            << '\n';
}

// Adds grid points. A farm that does not run starts again, with unfinished pipelines and the new points.
int add_points(const std::string& folder, bool runs, const AddArguments& arguments) {
  GridExtension extension = extended(folder, arguments.overrides);
  if (runs) {
    for (const Pipeline& pipeline : extension.pipelines) submit(folder, folder + "/config.yaml", pipeline, arguments);
    return exit_code::done;
  }
  refuse_all(extension.farm.mistakes);
  for (const Pipeline& pipeline : extension.pipelines)
    write_whole(waiting_file(folder, pipeline), pipeline_yaml(pipeline), true);
  std::cout << "convoy: " << extension.pipelines.size()
            << (extension.pipelines.size() == 1 ? " pipeline" : " pipelines") << " added to " << arguments.folder
            << ", which resumes now\n"
            << std::flush;
  return run_farm(std::move(extension.farm));
}

// Puts a request into the inbox and waits for the answer, which it removes.
void request(const std::string& folder, const Json& content, double seconds) {
  refuse_foreign(folder, "farm");
  make_private_folder(folder + "/inbox");
  const std::string path = str(folder, "/inbox/", random_token(), ".request");
  write_whole(path, content.dump(), true);
  std::error_code none;
  const Answer answer = wait_for_answer(folder, seconds, [&] {
    if (fs::remove(path + ".taken", none)) return true;
    if (const auto refusal = Inbox::refusal(path)) {
      fs::remove(path + ".refused", none);
      throw Error(refusal->kind(), folder, ": ", refusal->what());
    }
    return false;
  });
  if (answer == Answer::given) return;
  fs::remove(path, none);
  if (answer == Answer::ended) throw Error(Failure::output, folder, ": the farm ended before it read the request");
  throw Error(Failure::hang, folder, ": the farm did not answer within ", seconds,
              " s; its process may be stopped, or its host busy: try again");
}

}  // namespace

int request_command(const RequestArguments& arguments) {
  const std::string folder = absolute_path(arguments.folder);
  if (!farm_owner(folder).held) {
    const std::string status = read_summary(folder).value("status", "unfinished");
    throw Error(Failure::output, folder,
                ": no process runs this farm (status: ", status == "running" ? "unfinished" : status,
                "), so it has no queue to change; `convoy runs ", shell_word(arguments.folder),
                "/pipelines` lists its pipelines");
  }
  Json content = {{"name", arguments.pipeline}};
  if (arguments.priority)
    content["priority"] = *arguments.priority;
  else
    content["cancel"] = true;
  request(folder, content, 30);
  std::cout << arguments.pipeline
            << (arguments.priority ? str(": has priority ", *arguments.priority, " in ", arguments.folder)
                                   : str(": cancelled in ", arguments.folder,
                                         "; if it was running, it stops after its step and saves"))
            << '\n';
  return exit_code::done;
}

int add_command(const AddArguments& arguments) {
  if (arguments.file.empty() == arguments.overrides.empty())
    throw Error(Failure::command_line,
                "give either the file of a pipeline, or values of the farm's grid by --set strategy.grid.KEY=[…]");
  const std::string folder = absolute_path(arguments.folder);
  const std::string file = arguments.file.empty() ? "" : absolute_path(arguments.file);
  const LockOwner owner = farm_owner(folder);
  if (!owner.held && arguments.overrides.empty())
    refuse_ended(folder, read_summary(folder).value("status", "unfinished"));
  change_to_start_folder(folder, owner);
  if (!arguments.overrides.empty()) return add_points(folder, owner.held, arguments);
  const Pipeline pipeline = read_pipeline(file);
  check_name(folder, pipeline);
  submit(folder, file, pipeline, arguments);
  return exit_code::done;
}

}  // namespace convoy
