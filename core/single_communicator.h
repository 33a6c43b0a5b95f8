// A group of one rank: collectives copy input to output and nothing is sent. What Context::axis gives for an axis that
// the mesh does not have, so that callers never branch on the size of a group.
#pragma once
#include "core/communicator.h"

namespace convoy {
CommunicatorPtr make_single_communicator();
}
