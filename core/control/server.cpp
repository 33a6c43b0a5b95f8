// Server of the control channel: one io thread that owns a ControlStore and all connections, and one thread for
// events.
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>

#include "core/base/log.h"
#include "core/base/text.h"
#include "core/control/channel.h"
#include "core/control/connection.h"
#include "core/control/store.h"
#include "core/files/limits.h"

namespace convoy {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Connections that have not shown the secret: at most a few, and only for a short time. A participant needs a
// millisecond.
constexpr size_t stranger_limit = 128;
constexpr auto stranger_time = 5s;
// The job ends after this number of failures of `accept` in a row, for example without free descriptors. That takes
// longer than stranger_time, so strangers no longer hold descriptors by then.
constexpr int accept_tries = 100;
constexpr auto accept_again = 100ms;
// Drops progress posts above this number: only the newest is needed.
constexpr size_t event_backlog = 10000;
// If this process was paused, waits get one more second: answers may be unread.
constexpr auto forgiving = 1s;

class Server : public ChannelServer {
 public:
  Server(const ChannelServerOptions& options, ChannelServerEvents events)
      : options_(options),
        events_(std::move(events)),
        acceptor_(io_),
        accept_pause_(io_),
        check_timer_(io_),
        dispatcher_("convoy-events") {
    if (options_.job.empty()) options_.job = random_token();
    Descriptor listener = listen_on(options_.interface_address, options_.port);
    address_ = {options_.interface_address, port_of(listener.get()), options_.job,
                options_.secret ? *options_.secret : random_token()};
    acceptor_.assign(listener.get());
    listener.release();
    handler_.on_message = [this](Connection& from, const Json& message) {
      from.admitted ? handle(from, message) : greet(from, message);
    };
    handler_.on_end = [this](Connection& connection) { ended(connection); };
    accept();
    check_connections();
    thread_ = start_thread("convoy-channel", [this] { io_.run(); });
  }

  ~Server() override {
    io_.stop();
    thread_.join();
    dispatcher_.close();
    connections_.clear();
  }

  ChannelAddress address() const override { return address_; }

 private:
  void accept() {
    acceptor_.async_wait(asio::posix::stream_descriptor::wait_read, [this](const asio::error_code& error) {
      if (!error) accept_waiting();
    });
  }

  void accept_waiting() {
    for (size_t accepted = 0; accepted < stranger_limit / 2; ++accepted) {
      Descriptor fd = accept_from(acceptor_.native_handle());
      if (!fd.valid()) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK) return accept();
        // Out of descriptors or memory: retrying at once would spin.
        const std::string problem = str("control channel: accept: ", error_text(errno));
        if (refused_ == 0) log::warning(problem);
        if (++refused_ == accept_tries) abort({Failure::io, -1, -1, 0, "", problem});
        accept_pause_.expires_after(accept_again);
        accept_pause_.async_wait([this](const asio::error_code&) { accept(); });
        return;
      }
      refused_ = 0;
      make_room_for_stranger();
      // A lost host must be reported as stalled first: that is more exact than a broken connection. So the socket's
      // limit is longer.
      prepare_connection(fd.get(), 2 * options_.heartbeat);
      auto connection = std::make_shared<Connection>(io_, std::move(fd), next_connection_++, handler_);
      connections_[connection->id()] = connection;
      strangers_.insert(connection->id());
      connection->start();
    }
    // Reads greetings first: thousands of participants that join at the same time must not count as strangers.
    asio::post(io_, [this] { accept_waiting(); });
  }

  void make_room_for_stranger() {
    if (strangers_.size() < stranger_limit) return;
    const std::shared_ptr<Connection> oldest = connections_.at(*strangers_.begin());
    oldest->end();
  }

  // Detects that this process was paused, perhaps with the whole job (Ctrl-Z, a suspended Slurm job, a frozen
  // container).
  void detect_pause(Clock::time_point now) {
    if (now - swept_ > options_.heartbeat / 2) woke_ = swept_ = now;
  }

  // After a pause, time limits have passed although the answers may be unread in the sockets. So a wait ends only
  // after they are read.
  void cancel(ControlStore::Waiter waiter) {
    const auto now = Clock::now();
    detect_pause(now);
    if (now - woke_ > forgiving) return store_.cancel(waiter);
    auto timer = std::make_shared<asio::steady_timer>(io_, forgiving);
    timer->async_wait([this, waiter, timer](const asio::error_code& error) {
      if (!error) store_.cancel(waiter);
    });
  }

  // Finds stalled participants, and connections without a secret that are too old.
  void check_connections() {
    const auto now = Clock::now();
    detect_pause(now);
    // After a pause of this process, the time without a heartbeat counts from now on.
    const bool was_paused = now == woke_;
    swept_ = now;
    const auto all = connections_;  // a copy: ending a connection changes the table
    for (const auto& [id, connection] : all) {
      if (!connection->admitted) {
        if (now - connection->opened() > stranger_time) connection->end();
        continue;
      }
      if (was_paused) connection->restart_stall_timer(now);
      const auto unheard = now - connection->last_heard();
      if (unheard <= options_.heartbeat || connection->stalled) continue;
      connection->stalled = true;
      if (!events_.on_stalled) continue;
      dispatcher_.post([this, participant = connection->participant, name = connection->name,
                        seconds = std::chrono::duration<double>(unheard).count()] {
        events_.on_stalled(participant, name, seconds);
      });
    }
    check_timer_.expires_after(std::clamp<Timeout>(options_.heartbeat / 8, 10ms, 200ms));
    check_timer_.async_wait([this](const asio::error_code& error) {
      if (!error) check_connections();
    });
  }

  void greet(Connection& from, const Json& hello) {
    auto refuse = [&](const std::string& reason) {
      const std::string name = hello.value("name", Json()).dump(-1, ' ', true, Json::error_handler_t::replace);
      constexpr int most_warnings = 3;
      if (++refused_participants_ <= most_warnings) {
        log::warning(str("control channel: refused a participant that calls itself ", name, ": ", reason));
        if (events_.on_refused) dispatcher_.post([this, name, reason] { events_.on_refused(name, reason); });
      }
      from.send(Json{{"ok", false}, {"error", reason}});
      from.end_when_sent();
    };
    const int version = hello.at("convoy").get<int>();
    const auto job = hello.at("job").get<std::string>();
    if (version != frame_version) {
      return refuse(str("this channel speaks version ", frame_version, ", the joiner version ", version,
                        "; use one build of convoy for all ranks"));
    }
    if (job != address_.job) return refuse(str("this channel belongs to job ", address_.job, ", not to job ", job));
    if (!equal_secrets(address_.secret, hello.at("secret").get<std::string>()))
      return refuse(str("wrong secret for job ", address_.job));
    from.participant = hello.at("participant").get<int>();
    from.name = hello.at("name").get<std::string>();
    from.admit();
    strangers_.erase(from.id());
    Json welcome{{"ok", true}, {"heartbeat", options_.heartbeat.count()}};
    if (store_.aborted()) welcome["abort"] = to_json(*store_.aborted());
    from.send(welcome);
  }

  void ended(Connection& connection) {
    store_.forget(connection.id());
    connections_.erase(connection.id());
    strangers_.erase(connection.id());
    if (!connection.admitted || !events_.on_leave) return;
    dispatcher_.post([this, participant = connection.participant, name = connection.name,
                      orderly = connection.orderly] { events_.on_leave(participant, name, orderly); });
  }

  void handle(Connection& from, const Json& message) {
    const auto& op = message.at("op").get_ref<const std::string&>();
    if (op == "heartbeat") return heartbeat(from, message);
    if (op == "bye") {
      from.orderly = true;
      return from.end();
    }
    if (op == "post") {
      const auto& topic = message.at("topic").get_ref<const std::string&>();
      return posted(from, topic, message.at("body"), topic == "progress");
    }
    if (op == "abort") return abort(abort_from_json(message.at("abort")));
    const auto id = message.at("id").get<uint64_t>();
    if (op == "cancel") return cancel({from.id(), id});
    try {
      answer(from, op, id, message);
    } catch (const Error& error) {
      from.send(Json{{"id", id}, {"error", error.what()}});
    }
  }

  void answer(Connection& from, const std::string& op, uint64_t id, const Json& message) {
    Json reply{{"id", id}};
    const auto& key = message.at("key").get_ref<const std::string&>();
    if (op == "set") {
      store_.set(key, text_of(message.at("value")));
    } else if (op == "peek") {
      if (const auto value = store_.peek(key)) reply["value"] = bytes_of(*value);
    } else if (op == "add") {
      reply["value"] = store_.add(key, message.at("delta").get<int64_t>());
    } else if (op == "compare_set") {
      reply["value"] =
          bytes_of(store_.compare_set(key, text_of(message.at("expected")), text_of(message.at("desired"))));
    } else if (op == "erase") {
      reply["value"] = store_.erase(key);
    } else if (op == "clock") {
      reply["value"] = std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
    } else if (op == "watch") {
      watch(from, id, key);
    } else if (op == "get") {
      return store_.get({from.id(), id}, key, reply_to(from, id));
    } else if (op == "vote") {
      store_.vote(key, message.at("participant").get<int>(), message.at("count").get<int>(),
                  message.at("value").get<int64_t>());
    } else if (op == "agree") {
      return store_.agree({from.id(), id}, key, message.at("participant").get<int>(), message.at("count").get<int>(),
                          text_of(message.at("value")), message.value("again", false), reply_to(from, id));
    } else {
      throw Error(Failure::internal, "unknown operation '", op, "'");
    }
    from.send(reply);
  }

  void watch(Connection& from, uint64_t id, const std::string& prefix) {
    store_.watch(from.id(), prefix,
                 [weak = from.weak_from_this(), id](const std::string& key, const std::string& value) {
                   if (auto connection = weak.lock())
                     connection->send(Json{{"watch", id}, {"key", key}, {"value", bytes_of(value)}});
                 });
  }

  ControlStore::Reply reply_to(Connection& from, uint64_t id) {
    return [weak = from.weak_from_this(), id](const Outcome& outcome) {
      auto connection = weak.lock();
      if (!connection) return;
      Json reply{{"id", id}};
      if (outcome.kind == Outcome::Kind::timeout) {
        reply["missing"] = outcome.missing;
      } else if (outcome.kind == Outcome::Kind::aborted) {
        reply["abort"] = to_json(*outcome.reason);
      } else {
        size_t bytes = 0;
        Json values = Json::array();
        for (const std::string& value : outcome.values) {
          bytes += value.size() + 16;
          if (bytes > reply_limit) break;
          values.push_back(bytes_of(value));
        }
        if (bytes > reply_limit)
          reply["error"] =
              str("control channel: the values of this agreement take more than ", human_bytes(reply_limit));
        else
          reply["values"] = std::move(values);
      }
      connection->send(reply);
    };
  }

  void posted(const Connection& from, const std::string& topic, const Json& body, bool droppable) {
    if (!events_.on_post || (droppable && dispatcher_.waiting() > event_backlog)) return;
    dispatcher_.post(
        [this, participant = from.participant, topic, body] { events_.on_post(participant, topic, body); });
  }

  // A heartbeat with content is a post; only the newest is needed.
  void heartbeat(const Connection& from, const Json& message) {
    if (const auto content = message.find("content"); content != message.end())
      posted(from, protocol::heartbeat, *content, true);
  }

  void abort(const Abort& reason) {
    const auto outcome = store_.abort(reason);
    if (outcome == ControlStore::AbortOutcome::ignored) return;
    const auto frame = std::make_shared<const std::string>(encode_frame(Json{{"abort", to_json(reason)}}));
    for (const auto& [id, connection] : connections_)
      if (connection->admitted) connection->send(frame);
    if (events_.on_abort) dispatcher_.post([this, reason] { events_.on_abort(reason); });
  }

  ChannelServerOptions options_;
  ChannelServerEvents events_;
  ChannelAddress address_;
  asio::io_context io_{1};
  asio::posix::stream_descriptor acceptor_;
  asio::steady_timer accept_pause_;
  asio::steady_timer check_timer_;
  Clock::time_point swept_ = Clock::now();
  Clock::time_point woke_;  // end of the last pause of this process
  Connection::Handler handler_;
  ControlStore store_;
  std::map<uint64_t, std::shared_ptr<Connection>> connections_;
  std::set<uint64_t> strangers_;  // connections that have not shown the secret, oldest first
  uint64_t next_connection_ = 1;
  int refused_participants_ = 0;
  int refused_ = 0;  // consecutive times that no connection could be accepted
  Dispatcher dispatcher_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<ChannelServer> serve_channel(const ChannelServerOptions& options, ChannelServerEvents events) {
  return std::make_unique<Server>(options, std::move(events));
}

}  // namespace convoy
