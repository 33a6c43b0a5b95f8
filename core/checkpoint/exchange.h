// How the ranks agree during one collective call of Checkpoints: beside the data path, under names of their own.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "core/context.h"

namespace convoy {

class Exchange {
 public:
  // Collective. Rank 0 draws a token and tells it to all, so that no two calls ever use the same names.
  Exchange(const Context& context, const std::string& call);

  const std::string& token() const { return token_; }
  bool first() const { return context_.rank == 0; }

  // Collective. Runs `work` here and waits for all; throws on all ranks alike if it threw on any, with the kind and
  // message of the lowest rank that failed. CommErrors pass through at once.
  void together(const std::string& phase, const std::function<void()>& work);
  // The same, of which only rank 0's is run; returns what it gave, on all ranks.
  std::string on_first(const std::string& phase, const std::function<std::string()>& work);
  // Every rank's text, on rank 0 only (empty elsewhere). Between two phases.
  std::vector<std::string> to_first(const std::string& phase, const std::string& text);

 private:
  std::vector<std::string> vote(const std::string& phase, const std::function<std::string()>& work);
  std::string key(const std::string& phase) const { return "checkpoint/" + token_ + "/" + phase; }

  const Context& context_;
  std::string token_;
  Timeout timeout_;
};

}  // namespace convoy
