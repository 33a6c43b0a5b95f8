// KeptTraining: the state of a training in the memory of a rank, while the ranks of the job change (launch.min_ranks).
//
// A training that loses a peer keeps its state after the last update: parameters, buffers, moments, and the same
// counters as a checkpoint. The next training in this process takes over the state, with other ranks. Some ranks may
// have finished the interrupted step and others not: all take the state of the rank that is furthest.
// Ranks along the axis `data` have equal states. Ranks with different indices on another axis hold different pieces.
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
  void replace_in(std::vector<StateEntry>& entries) const;  // puts the copies into entries of kept_entries

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;  // the strategy's, and its copy
};

// Returns this rank's entries that a training needs to continue; the tensors are those of the strategy.
std::vector<StateEntry> kept_entries(Strategy& strategy);

// Collective. Fills the strategy from the state that the ranks keep, and returns the trainer section of that state.
// Returns nullopt on all ranks if they do not keep all pieces of one state: no rank keeps a state, or only some ranks
// finished the last update, and its other pieces are lost. The caller calls Strategy::state_restored.
std::optional<Json> take_over(const Context& context, Strategy& strategy, const KeptTraining& kept);

// Collective, after the last step. After it returns, the ranks of the job cannot change. Without it a rank could end
// while the others continue with other ranks. Throws CommError(peer_lost) if the ranks change first.
void end_membership(const Context& context);

}  // namespace convoy
