// Recordable: a data axis whose update may be part of a recorded step (step_graph.h). Without it a step is never recorded.
// Threads: the rank's own.
#pragma once
#include <string>

namespace convoy {

class Recordable {
 public:
  virtual ~Recordable() = default;
  // What the host decides anew for the update to come, for a caller that does so before each of them from now on.
  virtual void set_rates() = 0;
  // Why a step, each of which ends in an update, cannot be recorded; "" where nothing is known against it. The same on all ranks.
  virtual std::string obstacle() const = 0;
};

}  // namespace convoy
