// The error of a rank if a peer dies between publishing its address and connecting.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "backends/registry.h"
#include "core/control/channel.h"

namespace convoy {
namespace {

using std::chrono::milliseconds;

// `limit`: of the rendezvous. Gloo retries a refused connection for several times as long.
BackendRequest request_of(int rank, std::shared_ptr<Channel> channel, milliseconds limit) {
  BackendRequest request;
  request.rank = rank;
  request.size = 2;
  request.channel = std::move(channel);
  request.job = "j";
  request.address = "127.0.0.1";
  request.rendezvous = limit;
  return request;
}

class GlooStart : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    peer_ = fork();  // before there are threads
    if (peer_ == 0) {
      char line[512] = "";
      if (read(ends[0], line, sizeof line - 1) > 0) join(line);
      _exit(0);
    }
    ChannelServerOptions options;
    server_ = serve_channel(options, {});
    const std::string line = to_string(server_->address()) + "\n";
    ASSERT_GT(write(ends[1], line.data(), line.size()), 0);
    channel_ = connect_channel(server_->address(), 0, "rank 0", milliseconds(5000));
    // The peer publishes its address and then waits for ours.
    std::this_thread::sleep_for(milliseconds(700));
    kill(peer_, SIGKILL);
    waitpid(peer_, nullptr, 0);
  }
  static void join(const char* line) {
    try {
      gloo_backend()(
          request_of(1, connect_channel(channel_address(line), 1, "rank 1", milliseconds(5000)), milliseconds(5000)));
    } catch (const std::exception&) {
    }
  }
  CommError failure() {
    try {
      gloo_backend()(request_of(0, channel_, milliseconds(200)));
    } catch (const CommError& error) {
      EXPECT_EQ(std::string(error.what()).find("frame #"), std::string::npos) << error.what();
      return error;
    }
    return {Failure::internal, -1, "connected"};
  }

  pid_t peer_ = -1;
  std::unique_ptr<ChannelServer> server_;
  std::shared_ptr<Channel> channel_;
};

TEST_F(GlooStart, ReportsAFailedRendezvousWithoutACause) { EXPECT_EQ(failure().kind(), Failure::rendezvous); }

TEST_F(GlooStart, NamesAKnownDeadRankAsTheCause) {
  channel_->abort({Failure::training, 1, -1, SIGKILL, "", "rank 1 was killed"});
  const CommError error = failure();
  EXPECT_EQ(error.kind(), Failure::peer_lost);
  EXPECT_NE(std::string(error.what()).find("rank 1 was killed"), std::string::npos) << error.what();
}

}  // namespace
}  // namespace convoy
