#include "launch/job/join_requests.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "core/base/json.h"
#include "core/base/text.h"
#include "core/control/exit_codes.h"
#include "core/files/files.h"

namespace convoy {
namespace {

constexpr char request_end[] = ".request", answer_end[] = ".answer";

std::string folder_in(const std::string& run_folder) { return run_folder + "/join"; }

bool asker_lives(const std::string& token) {
  const auto process = static_cast<pid_t>(std::atoi(token.c_str()));
  return process > 0 && (kill(process, 0) == 0 || errno == EPERM);
}

}  // namespace

JoinRequests::JoinRequests(const std::string& run_folder) : folder_(folder_in(run_folder)) {
  for (const std::string& name : names_in(folder_))
    if (!asker_lives(name)) unlink((folder_ + "/" + name).c_str());
}

void JoinRequests::refuse_all() const {
  while (const std::optional<std::string> token = take())
    answer(*token, {exit_code_of(Failure::output), "the run has ended; start it again with more --ranks"});
  rmdir(folder_.c_str());  // fails while a process has not read its answer; then the folder stays
}

std::optional<std::string> JoinRequests::take() const {
  for (const std::string& name : names_in(folder_))
    if (name[0] != '.' && ends_in(name, request_end) && unlink(str(folder_, "/", name).c_str()) == 0 &&
        asker_lives(name))
      return name.substr(0, name.size() - (sizeof request_end - 1));
  return std::nullopt;
}

void JoinRequests::answer(const std::string& token, const JoinAnswer& answer) const {
  if (!asker_lives(token)) return;
  try {
    make_private_folder(folder_);
    write_whole(str(folder_, "/", token, answer_end),
                Json{{"exit_code", answer.exit_code}, {"text", answer.text}}.dump(), true);
  } catch (const Error&) {
    // The disk is full: the asking process reports that it has no answer.
  }
}

std::string ask_to_join(const std::string& run_folder) {
  make_private_folder(folder_in(run_folder));
  const std::string token = str(getpid(), "-", random_token());
  write_whole(str(folder_in(run_folder), "/", token, request_end), "{}", true);
  return token;
}

std::optional<JoinAnswer> take_join_answer(const std::string& run_folder, const std::string& token) {
  const std::string path = str(folder_in(run_folder), "/", token, answer_end);
  const Json answer = parsed_json(read_file_if_any(path));
  if (!answer.is_object()) return std::nullopt;
  unlink(path.c_str());
  return JoinAnswer{answer.value("exit_code", 0), answer.value("text", "")};
}

void withdraw_join(const std::string& run_folder, const std::string& token, bool ended) {
  const std::string folder = folder_in(run_folder);
  for (const char* end : {request_end, answer_end}) unlink(str(folder, "/", token, end).c_str());
  if (ended) rmdir(folder.c_str());
}

}  // namespace convoy
