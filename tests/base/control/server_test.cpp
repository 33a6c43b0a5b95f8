// The socket server: joining, unknown connections, leaving, missing heartbeats, the server's end.
#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/control/channel.h"
#include "core/control/socket.h"
#include "tests/base/control/channel_fixture.h"

namespace convoy {
namespace {

using namespace convoy::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Connection of a stranger, in plain system calls.
class Stranger {
 public:
  explicit Stranger(const ChannelAddress& address) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(address.port);
    inet_pton(AF_INET, address.host.c_str(), &to.sin_addr);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    timeval limit{30, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  ~Stranger() { close(fd_); }
  void send(const std::string& bytes) { (void)!::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  // Returns everything until the server closes; "…timeout" when it does not.
  std::string read_all() {
    std::string all;
    char chunk[1024];
    while (true) {
      const ssize_t got = recv(fd_, chunk, sizeof chunk, 0);
      if (got == 0 || (got < 0 && errno == ECONNRESET)) return all;
      if (got < 0) return all + "…timeout";
      all.append(chunk, static_cast<size_t>(got));
    }
  }

 private:
  int fd_;
};

struct Leave {
  int participant;
  std::string name;
  bool orderly;
};

TEST(ChannelServer, RefusesAClientOfADifferentJob) {
  auto server = serve_channel(loopback(), {});
  ChannelAddress address = server->address();
  address.job = "job-2";
  const auto error = thrown([&] { connect_channel(address, 0, "rank 0", patience); });
  EXPECT_EQ(error.kind, Failure::rendezvous);
  EXPECT_THAT(error.message, HasSubstr("this channel belongs to job job-1, not to job job-2"));
}

TEST(ChannelServer, RefusesAWrongSecretWithoutRevealingTheRightOne) {
  auto server = serve_channel(loopback(), {});
  for (const std::string& wrong : {std::string("x"), std::string(32, '0'), server->address().secret + "0",
                                   server->address().secret + server->address().secret}) {
    ChannelAddress address = server->address();
    address.secret = wrong;
    const auto error = thrown([&] { connect_channel(address, 0, "rank 0", patience); });
    EXPECT_EQ(error.kind, Failure::rendezvous);
    EXPECT_THAT(error.message, HasSubstr("wrong secret for job job-1"));
    EXPECT_THAT(error.message, Not(HasSubstr(server->address().secret)));
  }
}

TEST(ChannelServer, ClientsWaitForTheServer) {
  const ChannelAddress later = serve_channel(loopback(), {})->address();
  auto error = thrown([&] { connect_channel(later, 3, "rank 3", 100ms); });
  EXPECT_EQ(error.kind, Failure::rendezvous);
  EXPECT_THAT(error.message, HasSubstr("rank 3 could not join job job-1 at 127.0.0.1:"));
  EXPECT_THAT(error.message, HasSubstr("refused"));
}

TEST(ChannelServer, ReportsATakenPortAndRefusedAddresses) {
  auto server = serve_channel(loopback(), {});
  ChannelServerOptions options = loopback();
  options.port = server->address().port;
  EXPECT_THAT(thrown([&] { serve_channel(options, {}); }).message, HasSubstr("another job may have it"));
  EXPECT_THAT(thrown([&] { serve_channel(loopback("0.0.0.0"), {}); }).message, HasSubstr("every interface"));
  EXPECT_THAT(thrown([&] { serve_channel(loopback("::"), {}); }).message, HasSubstr("every interface"));
  EXPECT_THAT(thrown([&] { serve_channel(loopback("localhost"), {}); }).message, HasSubstr("numeric"));
  EXPECT_THAT(thrown([&] { serve_channel(loopback("203.0.113.7"), {}); }).message, HasSubstr("launch.address"));
}

TEST(ChannelServer, SixtyFourJoinAtOnce) {
  constexpr int participants = 64;
  Seen<int> left;
  ChannelServerEvents events;
  events.on_leave = [&](int participant, const std::string&, bool orderly) {
    EXPECT_TRUE(orderly);
    left.add(participant);
  };
  auto server = serve_channel(loopback(), events);
  on_threads(participants, [&](int i) {
    auto channel = connect_channel(server->address(), i, str("rank ", i), patience);
    EXPECT_EQ(channel->agree("join", i, participants, str(i), patience).at(63), "63");
  });
  EXPECT_EQ(left.wait_for(participants).size(), size_t{participants});
}

TEST(ChannelServer, IgnoresGarbage) {
  Seen<Leave> left;
  ChannelServerEvents events;
  events.on_leave = [&](int participant, const std::string& name, bool orderly) {
    left.add({participant, name, orderly});
  };
  auto server = serve_channel(loopback(), events);
  auto channel = connect_channel(server->address(), 0, "rank 0", patience);
  const std::vector<std::string> garbage = {
      "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
      std::string(4, '\xff'),
      std::string("\x01\0\0\0\xff", 5),
      std::string("\0\0\0\0", 4),
      std::string("\0\4\0\0", 4) + std::string(1024, '\x81'),  // arrays within arrays
      encode_frame(Json{{"op", "set"}, {"id", 1}, {"key", "x"}, {"value", bytes_of("stranger")}}),
      encode_frame(Json{{"convoy", "one"}, {"job", 1}}),
      encode_frame(Json{{"convoy", 99}, {"job", "job-1"}, {"secret", ""}, {"participant", 0}, {"name", ""}}),
      std::string(size_t{1} << 20, 'x')};
  for (const auto& bytes : garbage) {
    Stranger stranger(server->address());
    stranger.send(bytes);
    EXPECT_THAT(stranger.read_all(), Not(HasSubstr("timeout"))) << bytes.substr(0, 20);
  }
  EXPECT_EQ(channel->peek("x"), std::nullopt);
  EXPECT_TRUE(left.now().empty());
}

TEST(ChannelServer, AcceptsClientsDespiteStrangers) {
  auto server = serve_channel(loopback(), {});
  std::vector<std::unique_ptr<Stranger>> strangers;
  for (int i = 0; i < 300; ++i) strangers.push_back(std::make_unique<Stranger>(server->address()));
  auto channel = connect_channel(server->address(), 0, "rank 0", patience);
  EXPECT_EQ(channel->add("x", 1), 1);
  EXPECT_EQ(strangers[0]->read_all(), "");  // the oldest made room
}

TEST(ChannelServer, DeliversPostsInOrderBeforeTheGoodbye) {
  Seen<std::string> seen;
  ChannelServerEvents events;
  events.on_post = [&](int participant, const std::string& topic, const Json& body) {
    seen.add(str(participant, ' ', topic, ' ', body.at("n").get<int>(), ' ', body.at("line").get<std::string>()));
  };
  events.on_leave = [&](int participant, const std::string& name, bool orderly) {
    seen.add(str(participant, ' ', name, orderly ? " left" : " was lost"));
  };
  auto server = serve_channel(loopback(), events);
  constexpr int lines = 3000;
  const std::string line = "not \xff\xfe UTF-8";
  {
    auto channel = connect_channel(server->address(), 7, "rank 7", patience);
    for (int n = 0; n < lines; ++n) channel->post("log", {{"n", n}, {"line", line}});
  }
  const auto all = seen.wait_for(lines + 1);
  for (int n = 0; n < lines; ++n) ASSERT_EQ(all[n], str("7 log ", n, ' ', line));
  EXPECT_EQ(all.back(), "7 rank 7 left");
}

TEST(ChannelServer, ReportsAnAbortToALateClient) {
  Seen<std::string> served;
  ChannelServerEvents events;
  events.on_abort = [&](const Abort& reason) { served.add(reason.message); };
  auto server = serve_channel(loopback(), events);
  Abort reason;
  reason.kind = Failure::training;
  reason.rank = 1;
  reason.message = "first";
  connect_channel(server->address(), 1, "rank 1", patience)->abort(reason);
  EXPECT_THAT(served.wait_for(1), ElementsAre("first"));
  auto late = connect_channel(server->address(), 2, "rank 2", patience);
  ASSERT_TRUE(late->aborted());
  EXPECT_EQ(late->aborted()->message, "first");
  Seen<int> reported;
  late->on_abort([&](const Abort& abort) { reported.add(abort.rank); });
  EXPECT_THAT(reported.wait_for(1), ElementsAre(1));
}

TEST(ChannelServer, ReportsItsEndToEveryClient) {
  auto server = serve_channel(loopback(), {});
  auto a = connect_channel(server->address(), 0, "rank 0", patience);
  auto b = connect_channel(server->address(), 1, "rank 1", patience);
  std::atomic<int> lost{0};
  a->on_lost([&] { lost += 1; });
  b->on_lost([&] { lost += 10; });
  Seen<int> watching;
  b->watch("x", [&](const std::string&, const std::string&) {
    watching.add(1);
    // A wait inside a callback must end although on_lost runs on the same thread.
    EXPECT_EQ(thrown([&] { b->get("never", patience); }).kind, Failure::peer_lost);
  });
  std::thread waiter([&] {
    EXPECT_EQ(thrown([&] { a->get("never", patience); }).kind, Failure::peer_lost);
    EXPECT_EQ(lost % 10, 1) << "on_lost runs before a waiting call throws";
  });
  a->set("x", "");
  watching.wait_for(1);
  server.reset();
  waiter.join();
  EXPECT_EQ(thrown([&] { b->peek("x"); }).kind, Failure::peer_lost);
  EXPECT_EQ(lost, 11);
  EXPECT_THAT(thrown([&] { a->add("x", 1); }).message, HasSubstr("is gone (it closed the connection)"));
  a->post("log", {{"line", "into the void"}});
  Abort reason;
  reason.kind = Failure::hang;
  a->abort(reason);
  ASSERT_TRUE(a->aborted());
  Seen<int> again;
  a->on_lost([&] { again.add(1); });
  a->on_abort([&](const Abort&) { again.add(2); });
  EXPECT_EQ(again.wait_for(2).size(), 2u);
}

TEST(ChannelServer, AClientMayEndInsideACallback) {
  auto server = serve_channel(loopback(), {});
  auto a = connect_channel(server->address(), 0, "rank 0", patience);
  for (const char* end : {"watch", "lost"}) {
    auto b = connect_channel(server->address(), 1, "rank 1", patience);
    Seen<int> done;
    auto last = std::make_shared<std::shared_ptr<Channel>>(b);
    auto drop = [last, &done] {
      last->reset();
      done.add(1);
    };
    if (end == std::string("watch")) {
      b->watch("end", [drop](const std::string&, const std::string&) { drop(); });
      b.reset();
      a->set("end", "");
    } else {
      b->on_lost(drop);
      b.reset();
      server.reset();
    }
    done.wait_for(1);
  }
}

TEST(ChannelServer, EndsClientsWhileOthersWait) {
  auto server = serve_channel(loopback(), {});
  auto a = connect_channel(server->address(), 0, "rank 0", patience);
  std::thread waiter([&] { EXPECT_EQ(a->get("key", patience), "value"); });
  for (int i = 1; i < 20; ++i) {
    std::atomic<bool> alive{true};
    auto other = connect_channel(server->address(), i, str("rank ", i), patience);
    other->watch("busy", [&](const std::string&, const std::string&) {
      EXPECT_TRUE(alive) << "a callback ran after destruction";
    });
    for (int n = 0; n < 20; ++n) a->set("busy", str(n));
    other.reset();
    alive = false;
  }
  a->set("key", "value");
  waiter.join();
}

// A participant in a separate process, which signals can stop and kill.
pid_t fork_participant(const ChannelAddress& address, int participant) {
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The child has no threads of the parent; connecting starts new ones.
  auto channel = connect_channel(address, participant, str("rank ", participant), patience);
  channel->set(str("joined/", participant), "");
  while (true) pause();
}

TEST(ChannelServer, ReportsMissingHeartbeatsAndSuddenDeath) {
  ChannelServerOptions options = loopback();
  options.heartbeat = 400ms;
  Seen<Leave> left;
  Seen<int> silent;
  ChannelServerEvents events;
  events.on_leave = [&](int participant, const std::string& name, bool orderly) {
    left.add({participant, name, orderly});
  };
  events.on_stalled = [&](int participant, const std::string&, double seconds) {
    EXPECT_GT(seconds, 0.4);
    silent.add(participant);
  };
  auto server = serve_channel(options, events);
  auto channel = connect_channel(server->address(), 0, "rank 0", patience);
  const pid_t stopped = fork_participant(server->address(), 1);
  const pid_t killed = fork_participant(server->address(), 2);
  channel->get("joined/1", patience);
  channel->get("joined/2", patience);
  kill(killed, SIGKILL);
  const auto lost = left.wait_for(1);
  EXPECT_EQ(lost[0].participant, 2);
  EXPECT_EQ(lost[0].name, "rank 2");
  EXPECT_FALSE(lost[0].orderly);
  EXPECT_TRUE(silent.now().empty());  // the living participants sent heartbeats
  kill(stopped, SIGSTOP);
  EXPECT_THAT(silent.wait_for(1), ElementsAre(1));
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(silent.now().size(), 1u) << "reported once";
  kill(stopped, SIGKILL);
  EXPECT_EQ(left.wait_for(2)[1].participant, 1);
  waitpid(stopped, nullptr, 0);
  waitpid(killed, nullptr, 0);
}

TEST(ChannelServer, ClosesSocketsOnExec) {
  auto server = serve_channel(loopback(), {});
  auto channel = connect_channel(server->address(), 0, "rank 0", patience);
  channel->set("x", "");
  for (int fd = 3; fd < 256; ++fd) {
    int type = 0;
    socklen_t size = sizeof type;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0) continue;
    EXPECT_TRUE(fcntl(fd, F_GETFD) & FD_CLOEXEC) << "descriptor " << fd;
  }
}

// Answers the greeting, accepts one connection, and never reads.
class StalledServer {
 public:
  explicit StalledServer(int64_t heartbeat) : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    at_.sin_family = AF_INET;
    at_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at_;
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&at_), size), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&at_), &size);
    std::thread greeter([&] {
      accepted_ = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      const std::string welcome = encode_frame(Json{{"ok", true}, {"heartbeat", heartbeat}});
      (void)!send(accepted_, welcome.data(), welcome.size(), MSG_NOSIGNAL);
    });
    channel = connect_channel({"127.0.0.1", ntohs(at_.sin_port), "job", "secret"}, 0, "rank 0", patience);
    greeter.join();
  }
  ~StalledServer() {
    close(accepted_);
    close(listener_);
  }
  int accepted() const { return accepted_; }

  std::shared_ptr<Channel> channel;

 private:
  int listener_, accepted_ = -1;
  sockaddr_in at_{};
};

TEST(ChannelServer, AWaitForAStalledServerEndsAtItsTimeLimit) {
  StalledServer server(1000);
  const auto start = std::chrono::steady_clock::now();
  try {
    server.channel->agree("saved", 0, 2, "", Timeout(200));
    FAIL() << "answered";
  } catch (const CommError& error) {
    EXPECT_EQ(error.kind(), Failure::rendezvous);
    EXPECT_THAT(error.what(), HasSubstr("did not answer 'agree' within 5.20 s"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
}

TEST(ChannelServer, SendsToAStalledServerDoNotBlock) {
  StalledServer server(3600000);
  std::shared_ptr<Channel>& channel = server.channel;
  const std::string filler(size_t{1} << 20, 'p');
  for (int i = 0; i < 40; ++i) channel->post("progress", {{"filler", filler}, {"n", i}});
  for (int i = 0; i < 10; ++i) channel->post("log", {{"line", i}});
  std::thread end([&] { channel.reset(); });
  // Receive everything before the first frame is parsed: parsing may take longer than the client waits.
  FrameReader reader(reply_limit);
  std::vector<char> chunk(size_t{1} << 20);
  for (ssize_t got = 0; (got = recv(server.accepted(), chunk.data(), chunk.size(), 0)) > 0;)
    reader.feed(chunk.data(), static_cast<size_t>(got));
  end.join();
  int progress = 0, last = -1, logs = 0;
  bool goodbye = false;
  while (const auto message = reader.next()) {
    if (!message->contains("op")) continue;
    if (message->at("op") == "bye") goodbye = true;
    if (message->at("op") != "post") continue;
    if (message->at("topic") == "log") ++logs;
    if (message->at("topic") == "progress") {
      ++progress;
      last = message->at("body").at("n").get<int>();
    }
  }
  EXPECT_TRUE(goodbye);
  EXPECT_EQ(logs, 10);
  EXPECT_LT(progress, 40);
  EXPECT_EQ(last, 39);
}

TEST(ChannelAddress, ReadsBackFromALine) {
  const ChannelAddress address{"::1", 4711, "job-1", random_token()};
  const ChannelAddress copy = channel_address(to_string(address) + "\n");
  EXPECT_EQ(copy.host, "::1");
  EXPECT_EQ(copy.port, 4711);
  EXPECT_EQ(copy.job, "job-1");
  EXPECT_EQ(copy.secret, address.secret);
  for (const char* bad : {"", "::1", "h,1,j", "h,0,j,s", "h,70000,j,s", "h,x,j,s", "h,1,,s", ",1,j,s", "h,1,j,s,t"}) {
    EXPECT_EQ(thrown([&] { channel_address(bad); }).kind, Failure::rendezvous) << bad;
  }
}

TEST(ChannelServer, HeartbeatsCarryTheirContent) {
  Seen<std::string> seen;
  ChannelServerEvents events;
  events.on_post = [&](int participant, const std::string& topic, const Json& reported) {
    seen.add(str(topic, " of ", participant, ": ", reported.dump()));
  };
  ChannelServerOptions options = loopback();
  options.heartbeat = 200ms;
  auto server = serve_channel(options, events);
  auto channel = connect_channel(server->address(), 3, "rank 3", patience);
  std::atomic<int> beats{0};
  channel->supervised()->on_heartbeat([&]() -> std::optional<Json> { return Json{{"step", ++beats}}; });
  const auto reported = seen.wait_for(2);
  EXPECT_EQ(reported[0], "heartbeat of 3: {\"step\":1}");
  EXPECT_EQ(reported[1], "heartbeat of 3: {\"step\":2}");
}

TEST(ChannelServer, ReportsDroppedHeartbeats) {
  Seen<int> silent;
  ChannelServerEvents events;
  events.on_stalled = [&](int participant, const std::string&, double) { silent.add(participant); };
  ChannelServerOptions options = loopback();
  options.heartbeat = 200ms;
  auto server = serve_channel(options, events);
  auto channel = connect_channel(server->address(), 5, "rank 5", patience);
  channel->supervised()->on_heartbeat([]() -> std::optional<Json> { return std::nullopt; });
  EXPECT_EQ(silent.wait_for(1)[0], 5);
}

}  // namespace
}  // namespace convoy
