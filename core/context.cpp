#include "core/context.h"

#include "core/communicator.h"

namespace convoy {

CommunicatorPtr Context::axis(const std::string& name) const {
  const auto found = axes.find(name);
  return found != axes.end() ? found->second : make_single_communicator();
}

}  // namespace convoy
