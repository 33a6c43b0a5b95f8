#include <iostream>

#include "core/base/text.h"
#include "core/config/node.h"
#include "core/control/exit_codes.h"
#include "launch/cli/commands.h"
#include "launch/cli/use.h"
#include "launch/prepare/describe.h"
#include "launch/prepare/used_run.h"
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

}  // namespace

int export_command(const ExportArguments& arguments) {
  check_alone("export");
  const UsedRun used = used_run(arguments.run, "convoy export", /*of_programs=*/true);
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
  notes.insert(notes.end(), used.notes.begin(), used.notes.end());
  for (const std::string& note : notes) std::cout << note << '\n';
  return exit_code::done;
}

}  // namespace convoy
