// A rank of an mpirun that ends as soon as its backend is gone, while another thread still uses the group, as the
// control channel's thread may.
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "backends/registry.h"
#include "core/control/channel.h"

int main() {
  using namespace convoy;
  BackendRequest request;
  request.rank = std::atoi(std::getenv("OMPI_COMM_WORLD_RANK"));
  request.size = std::atoi(std::getenv("OMPI_COMM_WORLD_SIZE"));
  request.job = "end";
  std::thread holder;
  {
    Registry registry;
    register_backends(registry);
    CommunicatorPtr world = registry.backends.make("mpi", request);
    world->barrier({"end", {}})->wait();
    holder = std::thread([world] { std::this_thread::sleep_for(std::chrono::milliseconds(300)); });
  }
  _exit(0);
}
