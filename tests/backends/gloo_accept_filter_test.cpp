// Foreign connections at gloo's listeners: idle connections and guessed handshakes do not end or block a job. Once the
// ranks are connected, no rank listens.
#define USE_C10D_GLOO  // as the backend is compiled
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/ops/full.h>
#include <atomic>
#include <cstdint>
#include <deque>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "backends/gloo/gloo_accept_filter.h"
#include "backends/registry.h"
#include "core/communicator.h"
#include "core/control/channel.h"
#include "core/files/files.h"

namespace convoy {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Ports on which a process listens, IPv4.
std::vector<uint16_t> listened_ports(pid_t pid) {
  std::set<std::string> sockets;
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
  DIR* list = opendir(folder.c_str());
  if (list == nullptr) return {};
  while (const dirent* entry = readdir(list)) {
    char target[64] = "";
    const ssize_t size = readlink((folder + "/" + entry->d_name).c_str(), target, sizeof target - 1);
    const std::string text(target, size > 0 ? static_cast<size_t>(size) : 0);
    if (text.rfind("socket:[", 0) == 0) sockets.insert(text.substr(8, text.size() - 9));
  }
  closedir(list);
  std::vector<uint16_t> ports;
  std::ifstream table("/proc/net/tcp");
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string number, local, remote, state, word, inode;
    words >> number >> local >> remote >> state;
    for (int i = 0; i < 6; ++i) words >> inode;
    if (state == "0A" && sockets.count(inode) != 0)
      ports.push_back(static_cast<uint16_t>(std::stoul(local.substr(local.find(':') + 1), nullptr, 16)));
  }
  return ports;
}

// Runs until it is killed. One in four of the connections to each port sends the handshake of gloo's pairs; the others
// send nothing.
[[noreturn]] void attack(pid_t victim) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGPIPE, SIG_IGN);
  std::deque<int> open;
  for (int64_t turn = 0;; ++turn) {
    for (const uint16_t port : listened_ports(victim))
      for (int64_t i = 0; i < 100; ++i) {
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(port);
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 && errno != EINPROGRESS) {
          close(fd);
          break;
        }
        const int64_t guess = i / 4 % 4;
        if (i % 4 == 0) (void)!send(fd, &guess, sizeof guess, MSG_NOSIGNAL);
        open.push_back(fd);
        while (open.size() > 1000) {
          close(open.front());
          open.pop_front();
        }
      }
  }
}

// The sum over two ranks, each a thread.
double sum_of_two(const std::string& job) {
  const std::shared_ptr<Channel> channel = make_local_channel();
  std::vector<double> sums(2, -1);
  std::vector<CommunicatorPtr> worlds(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      BackendRequest request;
      request.rank = rank;
      request.size = 2;
      request.channel = channel;
      request.job = job;
      request.address = "127.0.0.1";
      request.rendezvous = request.timeout = milliseconds(20000);
      try {
        worlds[rank] = gloo_backend()(request);
        at::Tensor tensor = at::full({4}, rank + 1.0);
        worlds[rank]->all_reduce(tensor, ReduceOp::sum, {"sum", {}})->wait();
        sums[rank] = tensor[0].item<double>();
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(listened_ports(getpid()).size(), 0u) << "a listener is left";
  EXPECT_EQ(sums[0], sums[1]);
  return sums[0];
}

TEST(GlooAcceptFilter, IgnoresStrangersWithoutDelay) {
  const pid_t victim = getpid();
  const pid_t attacker = fork();
  if (attacker == 0) attack(victim);
  const auto begin = steady_clock::now();
  for (int i = 0; i < 25; ++i) EXPECT_EQ(sum_of_two("job" + std::to_string(i)), 3);
  EXPECT_LT(steady_clock::now() - begin, std::chrono::seconds(60));
  kill(attacker, SIGKILL);
  waitpid(attacker, nullptr, 0);
}

TEST(GlooAcceptFilter, NamesTheDescriptorLimit) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const Descriptor next(open("/dev/null", O_RDONLY));
  int refused = 0, made = 0;
  for (rlim_t spare = 0; spare < 12; ++spare) {
    const rlimit few{static_cast<rlim_t>(next.get()) + 1 + spare, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    try {
      const GlooAcceptFilter filter("127.0.0.1");
      ++made;
    } catch (const std::exception& error) {
      const std::string text = error.what();
      EXPECT_EQ(text.find("is not the one that LibTorch calls"), std::string::npos) << text;
      refused += text.find("RLIMIT_NOFILE (`ulimit -n`) is ") != std::string::npos;
    }
    setrlimit(RLIMIT_NOFILE, &before);
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(made, 0);
}

struct Listening {
  Listening() : socket(::socket(AF_INET, SOCK_STREAM, 0)) {
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(socket.get(), 8), 0);
    EXPECT_EQ(getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  }
  // As GlooAcceptFilter::connection_key.
  std::string invitation() const {
    return "4" + std::string(reinterpret_cast<const char*>(&address.sin_addr), 4) +
           std::string(reinterpret_cast<const char*>(&address.sin_port), 2) + key;
  }
  Descriptor socket;
  sockaddr_in address{};
  const std::string key = std::string(32, 'k');
};

TEST(GlooAcceptFilter, LimitsTheWaitForAStalledPeer) {
  const Listening halted;  // the kernel accepts for a process that is stopped
  GlooConnectionKeys invitations(milliseconds(500));
  invitations.add(halted.invitation());
  const Descriptor own(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
  const auto begin = steady_clock::now();
  EXPECT_EQ(connect(own.get(), reinterpret_cast<const sockaddr*>(&halted.address), sizeof halted.address), -1);
  EXPECT_EQ(errno, ETIMEDOUT);
  EXPECT_GE(steady_clock::now() - begin, milliseconds(500));
  EXPECT_LT(steady_clock::now() - begin, milliseconds(10000));
}

TEST(GlooAcceptFilter, SendsTheKeyDespiteASignal) {
  struct sigaction action {
  }, before{};
  action.sa_handler = [](int) {};
  sigaction(SIGALRM, &action, &before);  // without SA_RESTART
  const Listening peer;
  std::string heard(32, ' ');
  std::thread accepting([&] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    std::this_thread::sleep_for(milliseconds(200));
    const Descriptor one(accept4(peer.socket.get(), nullptr, nullptr, 0));
    EXPECT_EQ(recv(one.get(), heard.data(), heard.size(), MSG_WAITALL), 32);
    std::this_thread::sleep_for(milliseconds(200));
    EXPECT_EQ(send(one.get(), "\1", 1, MSG_NOSIGNAL), 1);
  });
  GlooConnectionKeys invitations(milliseconds(10000));
  invitations.add(peer.invitation());
  const Descriptor own(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
  std::atomic<bool> over{false};
  std::thread signals([&over, target = pthread_self()] {
    while (!over) {
      pthread_kill(target, SIGALRM);
      std::this_thread::sleep_for(milliseconds(20));
    }
  });
  EXPECT_EQ(connect(own.get(), reinterpret_cast<const sockaddr*>(&peer.address), sizeof peer.address), -1);
  EXPECT_EQ(errno, EINPROGRESS);
  over = true;
  signals.join();
  accepting.join();
  sigaction(SIGALRM, &before, nullptr);
  EXPECT_EQ(heard, peer.key);
}

}  // namespace
}  // namespace convoy
