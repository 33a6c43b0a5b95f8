// The control channel's client: greeting, and each operation as a request over a Link.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/text.h"
#include "core/control/channel.h"
#include "core/control/link.h"
#include "core/control/store.h"

namespace convoy {
namespace {

using namespace std::chrono_literals;

class Client : public SupervisedChannel {
 public:
  explicit Client(std::shared_ptr<Link> link) : link_(std::move(link)) {}
  ~Client() override { link_->close(); }

  void set(const std::string& key, const std::string& value) override {
    ask({{"op", "set"}, {"key", key}, {"value", bytes_of(value)}});
  }

  std::string get(const std::string& key, Timeout timeout) override {
    return wait({{"op", "get"}, {"key", key}}, str("get '", key, "'"), timeout).at(0);
  }

  std::optional<std::string> peek(const std::string& key) override {
    const Json reply = ask({{"op", "peek"}, {"key", key}});
    if (!reply.contains("value")) return std::nullopt;
    return text_of(reply.at("value"));
  }

  int64_t add(const std::string& key, int64_t delta) override {
    return ask({{"op", "add"}, {"key", key}, {"delta", delta}}).at("value").get<int64_t>();
  }

  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired) override {
    return text_of(
        ask({{"op", "compare_set"}, {"key", key}, {"expected", bytes_of(expected)}, {"desired", bytes_of(desired)}})
            .at("value"));
  }

  bool erase(const std::string& key) override { return ask({{"op", "erase"}, {"key", key}}).at("value").get<bool>(); }

  void watch(const std::string& prefix,
             std::function<void(const std::string& key, const std::string& value)> callback) override {
    const auto link = link_;
    checked(link->call({{"op", "watch"}, {"key", prefix}}, link->reply_limit(), false, std::move(callback)));
  }

  std::vector<std::string> agree(const std::string& name, int participant, int count, const std::string& value,
                                 Timeout timeout) override {
    return wait(agreement(name, participant, count, value), str("agree '", name, "'"), timeout);
  }

  void vote(const std::string& name, int participant, int count, int64_t value) override {
    ask({{"op", "vote"}, {"key", name}, {"participant", participant}, {"count", count}, {"value", value}});
  }

  void agree_later(const std::string& name, int participant, int count, const std::string& value,
                   std::function<void(const std::vector<std::string>&)> done) override {
    Json request = agreement(name, participant, count, value);
    request["again"] = true;
    link_->call_later(std::move(request), [done = std::move(done)](const Json& reply) {
      if (checked(reply).contains("values")) done(values_of(reply));
    });
  }

  void post(const std::string& topic, const Json& body) override {
    try {
      link_->send({{"op", "post"}, {"topic", topic}, {"body", body}}, topic == "progress");
    } catch (const std::exception&) {
      // Sending fails only for lack of memory. The interface promises not to throw.
    }
  }

  void abort(const Abort& reason) override {
    try {
      link_->abort(reason);
    } catch (const std::exception&) {
    }
  }

  void stop_sending() override { link_->stop_sending(); }
  std::optional<Abort> aborted() override { return link_->aborted(); }
  void on_abort(std::function<void(const Abort&)> callback) override { link_->on_abort(std::move(callback)); }
  void on_lost(std::function<void()> callback) override { link_->on_lost(std::move(callback)); }
  void on_heartbeat(std::function<std::optional<Json>()> body) override { link_->on_heartbeat(std::move(body)); }
  double cpu_seconds() override { return link_->cpu_seconds(); }
  int64_t clock() override { return ask({{"op", "clock"}, {"key", ""}}).at("value").get<int64_t>(); }

 private:
  static Json checked(Json reply) {
    if (reply.contains("error")) throw Error(Failure::internal, reply.at("error").get<std::string>());
    return reply;
  }

  static Json agreement(const std::string& name, int participant, int count, const std::string& value) {
    return {{"op", "agree"}, {"key", name}, {"participant", participant}, {"count", count}, {"value", bytes_of(value)}};
  }
  static std::vector<std::string> values_of(const Json& reply) {
    std::vector<std::string> values;
    for (const Json& value : reply.at("values")) values.push_back(text_of(value));
    return values;
  }

  // Keep the link during the call: another thread may destroy this client.
  Json ask(Json request) {
    const auto link = link_;
    return checked(link->call(std::move(request), link->reply_limit(), false));
  }

  std::vector<std::string> wait(Json request, const std::string& what, Timeout timeout) {
    const auto link = link_;
    const Json reply = checked(link->call(std::move(request), timeout, true));
    Outcome outcome;
    if (reply.contains("missing")) {
      outcome.kind = Outcome::Kind::timeout;
      outcome.missing = reply.at("missing").get<std::vector<int>>();
    } else if (reply.contains("abort")) {
      outcome.kind = Outcome::Kind::aborted;
      outcome.reason = abort_from_json(reply.at("abort"));
    } else {
      outcome.values = values_of(reply);
    }
    return values_or_throw(std::move(outcome), what, timeout);
  }

  std::shared_ptr<Link> link_;
};

// Ends all attempts.
[[noreturn]] void refuse(const std::string& where, const std::string& reason) {
  throw ChannelRefusal(Failure::rendezvous, -1, "control channel at ", where, ": refused: ", reason);
}

bool send_all(int fd, const std::string& frame, Deadline deadline, std::string& problem) {
  size_t sent = 0;
  while (sent < frame.size()) {
    const ssize_t now = send(fd, frame.data() + sent, frame.size() - sent, MSG_NOSIGNAL);
    if (now >= 0) {
      sent += static_cast<size_t>(now);
    } else if (errno != EINTR && (errno != EAGAIN || !wait_ready(fd, true, deadline))) {
      problem = errno == EAGAIN ? "it reads nothing" : std::strerror(errno);
      return false;
    }
  }
  return true;
}

// Reads the server's first message; returns nothing and sets `problem` if it does not come.
std::optional<Json> receive_one(int fd, FrameReader& reader, Deadline deadline, const std::string& where,
                                std::string& problem) {
  char chunk[4096];
  while (true) {
    try {
      if (auto message = reader.next()) return message;
    } catch (const Error& error) {
      refuse(where, str("another program listens there (", error.what(), ")"));
    }
    if (!wait_ready(fd, false, deadline)) {
      problem = "it accepts connections but does not answer";
      return std::nullopt;
    }
    const ssize_t got = recv(fd, chunk, sizeof chunk, 0);
    if (got > 0) {
      reader.feed(chunk, static_cast<size_t>(got));
    } else if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
      problem = got == 0 ? "it closed the connection without an answer" : std::strerror(errno);
      return std::nullopt;
    }
  }
}

std::shared_ptr<Link> attempt(const ChannelAddress& address, const std::string& where, const std::string& hello,
                              Deadline deadline, std::string& problem) {
  Descriptor fd = connect_once(address.host, address.port, deadline, problem);
  if (!fd.valid()) return nullptr;
  FrameReader reader(reply_limit);
  if (!send_all(fd.get(), hello, deadline, problem)) return nullptr;
  const auto welcome = receive_one(fd.get(), reader, deadline, where, problem);
  if (!welcome) return nullptr;
  if (!welcome->contains("ok")) refuse(where, "another program listens there");
  if (!welcome->at("ok").get<bool>()) refuse(where, welcome->value("error", "no reason given"));
  const Timeout heartbeat(welcome->at("heartbeat").get<int64_t>());
  std::optional<Abort> aborted;
  if (welcome->contains("abort")) aborted = abort_from_json(welcome->at("abort"));
  // The server should notice a broken connection first, because it knows the rank's position. So this limit is longer
  // than `heartbeat`.
  prepare_connection(fd.get(), heartbeat + heartbeat / 10);
  auto link = std::make_shared<Link>(std::move(fd), where, heartbeat, std::move(aborted), std::move(reader));
  link->start();
  return link;
}

}  // namespace

std::shared_ptr<Channel> connect_channel(const ChannelAddress& address, int participant, const std::string& name,
                                         Timeout timeout) {
  const std::string where =
      is_ipv6(address.host) ? str('[', address.host, "]:", address.port) : str(address.host, ':', address.port);
  const std::string hello = encode_frame({{"convoy", frame_version},
                                          {"job", address.job},
                                          {"secret", address.secret},
                                          {"participant", participant},
                                          {"name", name.substr(0, 256)}});
  if (hello.size() > hello_limit) throw Error(Failure::rendezvous, "control channel: job id and secret are too long");
  const Deadline deadline = deadline_after(timeout);
  auto pause = 5ms;
  std::string problem = "no attempt was made";
  while (true) {
    if (auto link = attempt(address, where, hello, deadline, problem)) return std::make_shared<Client>(std::move(link));
    if (std::chrono::steady_clock::now() + pause >= deadline) break;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, 200ms);
  }
  throw CommError(Failure::rendezvous, -1, "control channel: ", name, " could not join job ", address.job, " at ",
                  where, " within ", human_seconds(timeout), ": ", problem,
                  "; is the `convoy` process of rank 0's host running, and is its address reachable from here?");
}

}  // namespace convoy
