// Channel for participants in one process, with the semantics of convoy's channels. There is no server, so posts are
// dropped and nothing gets lost.
#pragma once
#include <memory>

#include "core/control/channel.h"

namespace convoy {
std::shared_ptr<Channel> make_local_channel();
}
