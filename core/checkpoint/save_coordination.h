// SaveCoordination: the ranks agree during one collective call of Checkpoints, through keys of the control store.
#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "core/context.h"

namespace convoy {

class SaveCoordination {
 public:
  // Collective. Rank 0 draws a token and broadcasts it, so that keys of two saves never collide.
  SaveCoordination(const Context& context, const std::string& call);
  // Phases that begin later run on another thread, whose waits end with CommError(peer_lost) when `cancelled` is set or
  // the job is aborted. `cancelled` outlives this object.
  void continue_in_background(const std::atomic<bool>& cancelled) { cancelled_ = &cancelled; }

  const std::string& token() const { return token_; }
  bool first() const { return context_.rank == 0; }

  // Collective. Runs `work` on every rank and waits for all. If it threw on any rank, throws on all ranks, with the
  // kind and message of the lowest failed rank. CommErrors pass through at once.
  void on_all(const std::string& phase, const std::function<void()>& work);
  // Collective. Runs `work` on rank 0 only; returns its result on all ranks.
  std::string on_first(const std::string& phase, const std::function<std::string()>& work);
  // Returns every rank's text on rank 0, and nothing on other ranks. Call it between two phases.
  std::vector<std::string> to_first(const std::string& phase, const std::string& text);

 private:
  // Each rank's value; waits for all ranks.
  std::vector<std::string> agree(const std::string& phase, const std::string& value);
  std::string take(const std::string& key);  // waits until another rank has set it
  // True if a wait since `begin` is over its limit. Throws if the job ends. Time in which the supervisor was suspended
  // does not count: `begin` moves.
  bool is_over(std::chrono::steady_clock::time_point& begin) const;
  [[noreturn]] void fail_late(const std::string& phase) const;
  std::vector<std::string> collect(const std::string& phase, const std::function<std::string()>& work);
  std::string key(const std::string& phase) const { return "checkpoint/" + token_ + "/" + phase; }

  const Context& context_;
  std::string token_;
  Timeout timeout_;
  const std::atomic<bool>* cancelled_ = nullptr;  // null: in the rank's thread
};

}  // namespace convoy
