// A request to stop that reaches the rank itself: Slurm signals every process of a job step, and so do a terminal and a
// user who takes the rank's process id. It is told to the one who serves, as if its `convoy` had got it.
#pragma once
#include <memory>

#include "core/control/channel.h"

namespace convoy {

// stop_signals() no longer end this process, SIGQUIT aside. Before any other thread starts.
void catch_stop_signals();
// Tells those that came and come, from a thread of its own, as long as the channel is there.
void tell_stop_signals(const std::shared_ptr<Channel>& channel);

}  // namespace convoy
