#include <iostream>

#include "core/base/text.h"
#include "core/control/exit_codes.h"
#include "core/files/files.h"
#include "core/files/output_file.h"
#include "launch/cli/text_table.h"
#include "launch/cli/use.h"

namespace convoy {
namespace {

bool is_array_path(const std::string& path) { return ends_in(path, ".npy") || ends_in(path, ".safetensors"); }

void check_prediction(const UseArguments& arguments, const PredictArguments& prediction) {
  check_input_path(prediction.data, "--data", "give the file with the rows to predict");
  check_output_ending(arguments.to, {".csv", ".tsv", ".txt", ".inter", ".npy", ".safetensors"}, "--to");
  if (!is_array_path(arguments.to)) return;
  if (prediction.unknown == "skip")
    throw Error(Failure::command_line, "--unknown skip leaves rows out, so row numbers of ", arguments.to,
                " would not be those of ", prediction.data, "; write a .csv, or leave --unknown out");
  if (prediction.probabilities != "all")
    throw Error(Failure::command_line, "--probabilities ", prediction.probabilities, ": ", arguments.to,
                " has the probabilities of all classes; write a .csv, or leave --probabilities out");
}

}  // namespace

int predict_command(UseArguments arguments, const PredictArguments& prediction) {
  arguments.command = "predict";
  check_prediction(arguments, prediction);
  arguments.options = {{"data", absolute_path(prediction.data)},
                       {"unknown", prediction.unknown},
                       {"probabilities", prediction.probabilities}};
  const bool json = arguments.json;
  const std::string to = arguments.to;
  const UseResult result = use_run(std::move(arguments));
  if (!result.reports || result.code != exit_code::done) return result.code;
  const Json& answer = result.answer;
  if (json) {
    Json output = answer_with_run(result);
    output["to"] = to;
    std::cout << json_text(output) << '\n';
  } else {
    std::cout << result.run.path() << ": predicted " << answer.at("rows")
              << (answer.at("rows") == 1 ? " row of " : " rows of ") << prediction.data << " in "
              << formatted("%.2f", answer.at("seconds").get<double>()) << " s: " << to << '\n';
    if (const auto skipped = answer.at("skipped").get<int64_t>(); skipped > 0)
      std::cout << skipped << (skipped == 1 ? " row is" : " rows are")
                << " left out: an id or a category does not occur in the training data\n";
  }
  for (const Json& note : answer.at("notes")) std::cerr << "convoy: " << note.get<std::string>() << '\n';
  print_notes(result.run);
  return exit_code::done;
}

}  // namespace convoy
