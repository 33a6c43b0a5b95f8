#include "core/backend.h"

#include "core/context.h"

namespace convoy {

BackendRequest backend_request(const Context& context) {
  const LaunchConfig& launch = context.config.launch;
  const std::string& checks = launch.check_collectives;
  BackendRequest request;
  request.rank = context.rank;
  request.size = context.size;
  request.device = context.devices.front();
  request.channel = context.channel;
  request.job = context.config.name;
  request.host = context.host;
  request.timeout = timeout_of(launch.collective);
  request.rendezvous = timeout_of(launch.rendezvous);
  request.times = context.times;
  request.checks = checks == "none"  ? CollectiveChecks::none
                   : checks == "all" ? CollectiveChecks::all
                                     : CollectiveChecks::sampled;
  return request;
}

}  // namespace convoy
