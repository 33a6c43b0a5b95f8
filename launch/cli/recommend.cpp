#include <iostream>

#include "core/base/text.h"
#include "core/control/exit_codes.h"
#include "core/files/files.h"
#include "core/files/output_file.h"
#include "launch/cli/text_table.h"
#include "launch/cli/use.h"

namespace convoy {
namespace {

void check_recommend(const UseArguments& arguments, const RecommendArguments& wanted) {
  if (wanted.k < 1) throw Error(Failure::command_line, "--k: is ", wanted.k, ", must be at least 1");
  check_output_ending(arguments.to, {".csv", ".jsonl", ".npy"}, "--to");
  if (!wanted.users.empty())
    check_input_path(wanted.users, "--users",
                     "give a file with one id of a user a line, or leave it out for all users");
}

std::string recommended_text(const UsedRun& run, const Json& answer, const std::string& to) {
  const auto users = answer.at("users").get<int64_t>(), shorter = answer.at("shorter_lists").get<int64_t>();
  const auto k = answer.at("k").get<int64_t>();
  std::string text = str(to, ": the best ", k, k == 1 ? " item" : " items", " of ", answer.at("items"), " for each of ",
                         users, users == 1 ? " user" : " users", " (", run.name, " after step ", run.step, ", ",
                         formatted("%.2f", answer.at("seconds").get<double>()), " s)\n");
  if (shorter > 0)
    text += str(shorter, shorter == 1 ? " list is" : " lists are", " shorter than ", k,
                ": the user already has nearly all items; --include-seen lists these too\n");
  if (answer.at("contexts") != "none")
    text += str("contexts are those of ",
                answer.at("contexts") == "file" ? "the file of --users\n" : "each user's last interaction\n");
  if (const auto ignored = answer.at("ignored_columns").get<std::vector<std::string>>(); !ignored.empty())
    text += str("ignored columns of --users: ", join(ignored, ", "), "\n");
  return text;
}

}  // namespace

int recommend_command(UseArguments arguments, const RecommendArguments& wanted) {
  check_recommend(arguments, wanted);
  arguments.command = "recommend";
  arguments.reads_data = true;
  arguments.options = {{"k", wanted.k}, {"include_seen", wanted.include_seen}};
  if (!wanted.users.empty()) arguments.options["users"] = absolute_path(wanted.users);
  const bool json = arguments.json;
  const std::string to = arguments.to;
  const UseResult result = use_run(std::move(arguments));
  if (!result.reports || result.code != exit_code::done) return result.code;
  if (json) {
    std::cout << json_text(answer_with_run(result)) << '\n';
  } else {
    std::cout << recommended_text(result.run, result.answer, to);
  }
  print_notes(result.run);
  return exit_code::done;
}

}  // namespace convoy
