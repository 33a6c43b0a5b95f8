// Requests of `convoy run --join RUN` to the `convoy` that supervises RUN: files in RUN/join.
//
// The asking process writes TOKEN.request and waits for TOKEN.answer, which it removes. The supervisor removes the
// request when it takes it, and writes the answer when the rank takes part. A token begins with the number of the
// asking process: requests of processes that have ended do not count. Requests stay while a run restarts its ranks.
// Threads: one.
#pragma once
#include <optional>
#include <string>

namespace convoy {

struct JoinAnswer {
  int exit_code = 0;
  std::string text;  // for people
};

class JoinRequests {
 public:
  explicit JoinRequests(const std::string& run_folder);

  void refuse_all() const;                  // the run has ended
  std::optional<std::string> take() const;  // token of a request, which must be answered; cheap if there is none
  void answer(const std::string& token, const JoinAnswer& answer) const;

 private:
  const std::string folder_;
};

// --- For the asking process ---

// Returns the token. Throws Error(io) if the folder cannot be written.
std::string ask_to_join(const std::string& run_folder);
// Returns the answer once, or nothing if there is none yet.
std::optional<JoinAnswer> take_join_answer(const std::string& run_folder, const std::string& token);
// `ended`: no process runs the folder any more.
void withdraw_join(const std::string& run_folder, const std::string& token, bool ended);

}  // namespace convoy
