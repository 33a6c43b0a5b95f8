#include <algorithm>
#include <filesystem>
#include <iostream>

#include "core/base/ensemble_members.h"
#include "core/base/text.h"
#include "core/config/node.h"
#include "core/control/exit_codes.h"
#include "core/files/files.h"
#include "core/files/summary.h"
#include "core/files/weight_files.h"
#include "launch/cli/commands.h"
#include "launch/prepare/describe.h"
#include "launch/process/process.h"

namespace convoy {
namespace {

// Longer than any disk needs.
constexpr std::chrono::hours export_limit{24};

int64_t size_of(const std::string& text) {
  const auto parsed = parse_bytes(text);
  if (parsed.value && *parsed.value > 0) return *parsed.value;
  throw Error(Failure::command_line, "--max-file-size: is ", text, ", must be a size above 0, such as 5GB or 512 MiB");
}

void check_run(const ExportArguments& arguments) {
  const std::string folder = member_path(arguments.run).path;
  if (!std::filesystem::exists(folder))
    throw Error(Failure::command_line, "convoy export: ", folder, " does not exist; give a run folder or a checkpoint");
  if (const std::vector<std::string> pipelines = pipeline_folders(folder); !pipelines.empty())
    throw Error(Failure::command_line, "convoy export: ", folder,
                " is the folder of a farm; export its runs one by one: ", join(pipelines, ", "));
  if (!is_checkpoint_path(folder))
    throw Error(Failure::command_line, "convoy export: ", folder,
                " is no run folder and no checkpoint; give the folder that `convoy run` printed");
}

// A line about a run that is not done: a later checkpoint would have other weights.
std::string progress_note(const std::string& run) {
  const Json summary = read_summary(member_path(run).path);
  const std::string status = summary.is_object() ? summary.value("status", "done") : "done";
  return status == "done" ? "" : str("the run is not done, its status is ", status, ": this is its newest checkpoint");
}

}  // namespace

int export_command(const ExportArguments& arguments) {
  check_run(arguments);
  const Json request{{"run", arguments.run},
                     {"to", arguments.to},
                     {"with_config", arguments.format == "hf"},
                     {"replace", arguments.force},
                     {"file_bytes", size_of(arguments.max_file_size)}};
  const Json result = ask_rank_program(rank_program(), {"--export"}, request, export_limit);
  const auto files = result.at("files").get<std::vector<std::string>>();
  std::cout << "exported step " << result.at("step") << " of " << arguments.run << " to " << arguments.to << ": "
            << result.at("tensors") << " tensors, " << human_bytes(result.at("bytes").get<int64_t>()) << "\n  "
            << join(files, "\n  ") << '\n';
  std::vector<std::string> notes = result.at("notes").get<std::vector<std::string>>();
  if (const std::string note = progress_note(arguments.run); !note.empty()) notes.push_back(note);
  for (const std::string& note : notes) std::cout << note << '\n';
  return exit_code::done;
}

}  // namespace convoy
