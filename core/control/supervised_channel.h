// What supervision asks of a channel beside the operations that everybody uses (core/control/channel.h).
// Both kinds of channel have it; a channel of somebody's own need not.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/control/channel.h"

namespace convoy {

class SupervisedChannel : public Channel {
 public:
  // Channel::agree without waiting, and a name may be used again once all have voted: `done` gets all values, by
  // participant, on the channel's thread; never where somebody has called abort or the server is gone.
  virtual void agree_later(const std::string& name, int participant, int count, const std::string& value,
                           std::function<void(const std::vector<std::string>&)> done) = 0;

  // What goes with each heartbeat from now on: a small object, posted to whoever serves as topic `beat`; nothing: that
  // heartbeat is left out. Runs on the channel's thread and must not block.
  virtual void on_beat(std::function<std::optional<Json>()> tell) = 0;

  // Processor time that the channel's own threads have used in this process.
  virtual double cpu_seconds() = 0;
};

namespace protocol {
inline constexpr char beat[] = "beat";  // topic: what on_beat gave
}

// Null for a channel of another make.
inline SupervisedChannel* supervised(Channel* channel) { return dynamic_cast<SupervisedChannel*>(channel); }

}  // namespace convoy
