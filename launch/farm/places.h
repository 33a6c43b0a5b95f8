// Where the pipelines of a farm can be started: on this host, or through the agents of a launcher's ranks. One of them
// starts a pipeline, watches it, ends it, and tells.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launch/farm/workplace.h"

namespace convoy {

struct PlacesEvents {
  std::function<void(int job, pid_t pid)> on_started;
  std::function<void(int job, const std::string& line)> on_line;
  std::function<void(int job, const ProcessEnd& end, const ResourceSample& used)> on_end;
  std::function<void(const std::vector<ResourceSample>&)> on_samples;
  std::function<void(int job, const std::string& what)> on_over_limit;                 // it has been killed already
  std::function<void(int job, int exit_code, const std::string& message)> on_refused;  // it could not be started
};

class Places {
 public:
  virtual ~Places() = default;  // kills what is left
  // `slot` of Machines::slots: the first one that it gets. What comes of it is told by an event, perhaps before this returns.
  virtual void start(int slot, const PipelineOrder& order) = 0;
  virtual void ask_to_stop(int job) = 0;
  virtual void kill(int job) = 0;
};

std::unique_ptr<Places> make_local_places(EventLoop& loop, const Variables& variables, PlacesEvents events);

}  // namespace convoy
