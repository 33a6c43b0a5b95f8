// For faults that are ordered (core/inject): a client whose words no longer arrive.
#pragma once
#include "core/control/channel.h"

namespace convoy {

// From now on nothing leaves this client, heartbeats included, as if its host's network had died one way; it still hears.
// A channel within one process has no heartbeats and is left as it is.
void mute(Channel& channel);

}  // namespace convoy
