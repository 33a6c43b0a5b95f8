// Ranks for tests, as threads or as this process of an mpirun.
#include "tests/support/torch/ranks.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "backends/registry.h"
#include "core/control/channel.h"

namespace convoy {
namespace {

int environment_number(const char* name) {
  const char* value = std::getenv(name);
  return value ? std::atoi(value) : 0;
}

// Owns objects that must end before main does.
class Home final : public ::testing::Environment {
 public:
  void TearDown() override {
    if (channel) end_together();
    registry.reset();
    channel.reset();
    server.reset();
    if (!file.empty()) std::filesystem::remove(file);
  }

  // Rank 0 of the mpirun serves the channel; the others find it by a file named after the mpirun.
  std::shared_ptr<Channel> connect() {
    if (channel) return channel;
    int rank = environment_number("OMPI_COMM_WORLD_RANK");
    const char* space = std::getenv("PMIX_NAMESPACE");
    std::string path = str(std::filesystem::temp_directory_path().string(), "/convoy-conformance-", space ? space : "");
    if (rank == 0) {
      ChannelServerOptions options;
      options.job = "conformance";
      server = serve_channel(options, {});
      file = path;
      std::ofstream(path + ".new") << to_string(server->address());
      std::filesystem::rename(path + ".new", path);
    }
    auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!std::filesystem::exists(path) && std::chrono::steady_clock::now() < deadline) usleep(10000);
    std::string line;
    std::getline(std::ifstream(path) >> std::ws, line);
    channel = connect_channel(channel_address(line), rank, str("rank ", rank), Timeout(20000));
    return channel;
  }

  std::unique_ptr<Registry> registry;
  std::shared_ptr<Channel> channel;
  std::unique_ptr<ChannelServer> server;
  std::string file;

 private:
  void end_together() {
    try {
      channel->agree("the end", environment_number("OMPI_COMM_WORLD_RANK"), mpi_ranks(), "", Timeout(20000));
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
};

Home& home() {
  static Home* const one = static_cast<Home*>(::testing::AddGlobalTestEnvironment(new Home));
  return *one;
}
// Environments must be registered before the tests run.
[[maybe_unused]] const Home& known = home();

}  // namespace

int mpi_ranks() { return environment_number("OMPI_COMM_WORLD_SIZE"); }

Registry& test_registry() {
  if (!home().registry) {
    signal(SIGPIPE, SIG_IGN);  // as convoy-rank does
    home().registry = std::make_unique<Registry>();
    register_backends(*home().registry);
  }
  return *home().registry;
}

void run_ranks(const RankGroup& group, const std::function<void(Communicator&)>& body) {
  static std::atomic<int> jobs{0};
  Registry& registry = test_registry();
  BackendRequest request;
  request.size = group.size;
  request.job = str("test-", jobs++);
  request.address = "127.0.0.1";
  request.timeout = group.timeout;
  request.rendezvous = std::chrono::milliseconds(20000);
  request.waiting = group.waiting;
  // A rank whose call fails at once must not disconnect while another still connects: that would be another failure.
  std::atomic<int> connected{0};
  auto all_connected = [&] {
    ++connected;
    const auto deadline = std::chrono::steady_clock::now() + request.rendezvous;
    while (connected < group.size && std::chrono::steady_clock::now() < deadline) usleep(200);
  };
  auto run = [&](int rank, std::shared_ptr<Channel> channel) {
    BackendRequest mine = request;
    mine.rank = rank;
    if (group.per_host > 0) mine.host = str("host", rank / group.per_host);
    if (group.on_gpus) mine.device = at::Device(at::kCUDA, static_cast<at::DeviceIndex>(rank));
    if (group.on_one_gpu) mine.device = at::Device(at::kCUDA, 0);
    mine.channel = channel;
    try {
      auto world = registry.backends.make(group.backend, mine);
      if (!group.by_processes && group.backend != "mpi") all_connected();
      body(*world);
    } catch (const std::exception& error) {
      connected += group.size;  // no thread waits for this one
      ADD_FAILURE() << group.backend << " rank " << rank << " of " << group.size << ": " << error.what();
    }
  };
  if (group.by_processes || group.backend == "mpi")
    return run(environment_number("OMPI_COMM_WORLD_RANK"), home().connect());
  auto channel = make_local_channel();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < group.size; ++rank) threads.emplace_back(run, rank, channel);
  for (auto& thread : threads) thread.join();
}

}  // namespace convoy
