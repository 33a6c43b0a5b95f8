// KeptTraining: the state of a training in the memory of a rank, while the ranks of the job change (launch.min_ranks).
//
// A training that loses a peer keeps its state after the last update: parameters, buffers, moments and counters with
// the counts of a checkpoint. The next training in the same process takes it over, with other ranks. Ranks may be one
// update apart, because some finished the interrupted step: all take the state of the rank that is furthest.
// Ranks along the axis `data` have equal states; those with another place on other axes hold other pieces.
// Threads: one rank's thread.
#pragma once
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/json.h"
#include "core/context.h"
#include "core/state.h"
#include "core/strategy.h"

namespace convoy {

struct KeptTraining {
  int64_t steps = -1;               // steps done in this state; -1: nothing is kept
  Json trainer;                     // trainer section, as in a checkpoint, with the keys of core/trainer.cpp
  std::vector<StateEntry> entries;  // without gradients; the tensors outlive their strategy

  void clear() { *this = KeptTraining(); }
};

// Copies of a strategy's buffers as they were after the last update: forward passes of the next step change buffers.
class BufferCopies {
 public:
  void begin(Strategy& strategy);
  void take();                                              // after an update
  void restore();                                           // writes the copies into the buffers
  void replace_in(std::vector<StateEntry>& entries) const;  // of kept_entries

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;  // the strategy's, and its copy
};

// Returns this rank's entries that a training needs to continue; the tensors are those of the strategy.
std::vector<StateEntry> kept_entries(Strategy& strategy);

// Collective. Fills the strategy from the state that the ranks keep, and returns the trainer section of that state.
// Returns nullopt on all ranks if they do not keep all pieces of one state: no rank has any, or a part of the ranks
// finished an update whose other pieces are lost. The caller calls Strategy::state_restored.
std::optional<Json> take_over(const Context& context, Strategy& strategy, const KeptTraining& kept);

// Collective, after the last step: from its return the ranks of the job change no more. Without it a rank could end
// while the others continue with other ranks. Throws CommError(peer_lost) if the ranks change first.
void end_membership(const Context& context);

}  // namespace convoy
