#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/control/exit_codes.h"
#include "core/control/socket.h"
#include "core/files/limits.h"
#include "launch/process/event_loop.h"
#include "launch/report/report.h"

namespace convoy {

// --- Page ---

extern const char* const embedded_report_page;  // from launch/report/page, by cmake/embed_page.cmake

namespace {

// In a script element of JSON only `<` can end the element or begin a comment.
std::string script_safe(const std::string& json) {
  std::string safe;
  safe.reserve(json.size() + json.size() / 64);
  for (const char c : json)
    if (c == '<')
      safe += "\\u003c";
    else
      safe += c;
  return safe;
}

}  // namespace

std::string report_page(const std::string& data, bool live) {
  // The policy allows only the scripts and styles with this number, which data cannot know.
  const std::string nonce = random_token();
  const std::string_view page = embedded_report_page;
  std::string text;
  text.reserve(page.size() + data.size() + data.size() / 64);
  const std::pair<std::string_view, std::string> values[] = {{"{{nonce}}", nonce},
                                                             {"{{connect}}", live ? "'self'" : "'none'"},
                                                             {"{{live}}", live ? "true" : "false"},
                                                             {"{{data}}", script_safe(data)}};
  for (size_t at = 0; at < page.size();) {
    const size_t open = std::min(page.find("{{", at), page.size());
    text += page.substr(at, open - at);
    at = open;
    const auto named = std::find_if(std::begin(values), std::end(values),
                                    [&](const auto& value) { return begins_with(page.substr(at), value.first); });
    if (named != std::end(values)) {
      text += named->second;
      at += named->first.size();
    } else if (at < page.size()) {
      text += page[at++];
    }
  }
  return text;
}

// --- Server ---

namespace {

constexpr size_t longest_request = 16 << 10;
constexpr size_t most_visitors = 64;  // connections at a time
constexpr std::chrono::seconds request_limit{10}, send_limit{5};
constexpr std::chrono::seconds data_age{2};  // data is read again after this time

struct HttpAnswer {
  const char* status = "200 OK";
  const char* type = "text/plain; charset=utf-8";
  std::string body = "";
};

// The value of a header field, without blanks; "" if the request has none or several.
std::string header_field(const std::string& request, const std::string& name) {
  std::string value;
  int found = 0;
  for (std::string line : split(request, '\n')) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    std::string key = line.substr(0, colon);
    std::transform(key.begin(), key.end(), key.begin(), [](unsigned char c) { return char(std::tolower(c)); });
    if (key != name) continue;
    ++found;
    value = line.substr(colon + 1);
    value.erase(0, value.find_first_not_of(" \t"));
    value.erase(value.find_last_not_of(" \t\r") + 1);
  }
  return found == 1 ? value : "";
}

class ReportServer {
 public:
  ReportServer(EventLoop& loop, const ServeRequest& request)
      : loop_(loop), tasks_(loop), request_(request), listener_(listen(request.port)), port_(port_of(listener_.get())) {
    loop_.on_readable(listener_.get(), [this] { accept(); });
  }
  ~ReportServer() {
    loop_.forget(listener_.get());
    for (const auto& [fd, visitor] : visitors_) loop_.forget(fd);
  }
  ReportServer(const ReportServer&) = delete;
  ReportServer& operator=(const ReportServer&) = delete;

  std::string url() const { return str("http://127.0.0.1:", port_, "/"); }

 private:
  struct Visitor {
    Descriptor socket;
    std::string request;
    EventLoop::TimerId timer = 0;
  };

  static Descriptor listen(int port) {
    Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    const int on = 1;
    if (socket.valid() && setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
        ::listen(socket.get(), SOMAXCONN) == 0)
      return socket;
    throw Error(Failure::rendezvous, "convoy report: cannot serve on port ", port, " of 127.0.0.1: ", error_text(errno),
                "; name another port, as in --port ", port < 65535 ? port + 1 : ServeRequest().port,
                ", or --port 0 for a free one");
  }

  void accept() {
    Descriptor socket = accept_from(listener_.get());
    if (!socket.valid() || visitors_.size() >= most_visitors) return;
    const int fd = socket.get();
    Visitor& visitor = visitors_[fd];
    visitor.socket = std::move(socket);
    visitor.timer = tasks_.after(request_limit, [this, fd] { close(fd); });
    loop_.on_readable(fd, [this, fd] { read(fd); });
  }

  void close(int fd) {
    loop_.forget(fd);
    const auto found = visitors_.find(fd);
    if (found == visitors_.end()) return;
    loop_.cancel(found->second.timer);
    visitors_.erase(found);
  }

  void read(int fd) {
    Visitor& visitor = visitors_.at(fd);
    char bytes[4096];
    const ssize_t count = ::read(fd, bytes, sizeof bytes);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) return close(fd);
    visitor.request.append(bytes, size_t(count));
    const bool complete = visitor.request.find("\r\n\r\n") != std::string::npos;
    if (!complete && visitor.request.size() <= longest_request) return;
    send(fd, complete ? answer(visitor.request) : HttpAnswer{"431 Request Header Fields Too Large"},
         begins_with(visitor.request, "HEAD "));
    close(fd);
  }

  // A page of another site can let its name mean 127.0.0.1 (DNS rebinding). Its requests then name that site as host.
  bool is_known_host(const std::string& host) const {
    return host == str("127.0.0.1:", port_) || host == str("localhost:", port_) ||
           (port_ == 80 && (host == "127.0.0.1" || host == "localhost"));
  }

  HttpAnswer answer(const std::string& request) {
    const std::string line = request.substr(0, request.find("\r\n"));
    const std::vector<std::string> words = split(line, ' ');
    if (words.size() != 3 || !begins_with(words[2], "HTTP/1.")) return {"400 Bad Request"};
    if (!is_known_host(header_field(request, "host")))
      return {"403 Forbidden", "text/plain; charset=utf-8", str("This server answers only at ", url(), "\n")};
    if (words[0] != "GET" && words[0] != "HEAD") return {"405 Method Not Allowed"};
    const std::string path = words[1].substr(0, words[1].find('?'));
    if (path != "/" && path != "/data.json") return {"404 Not Found"};
    try {
      const std::string& data = recent_data();
      if (path == "/") return {"200 OK", "text/html; charset=utf-8", report_page(data, true)};
      return {"200 OK", "application/json", data};
    } catch (const Error& error) {
      return {"503 Service Unavailable", "text/plain; charset=utf-8", str(error.what(), "\n")};
    }
  }

  const std::string& recent_data() {
    const auto now = std::chrono::steady_clock::now();
    if (data_.empty() || now - read_at_ > data_age) {
      data_ = request_.data();
      read_at_ = now;
    }
    return data_;
  }

  static void send(int fd, const HttpAnswer& answer, bool head_only) {
    const std::string head =
        str("HTTP/1.1 ", answer.status, "\r\nContent-Type: ", answer.type, "\r\nContent-Length: ", answer.body.size(),
            "\r\nConnection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff"
            "\r\nX-Frame-Options: DENY\r\nCross-Origin-Resource-Policy: same-origin\r\n\r\n");
    const std::string text = head_only ? head : head + answer.body;
    const Deadline deadline = std::chrono::steady_clock::now() + send_limit;
    for (size_t done = 0; done < text.size();) {
      const ssize_t count = ::send(fd, text.data() + done, text.size() - done, MSG_NOSIGNAL);
      if (count > 0)
        done += size_t(count);
      else if (count < 0 && errno != EAGAIN && errno != EINTR)
        return;
      else if (!wait_ready(fd, true, deadline))
        return;
    }
    shutdown(fd, SHUT_WR);
  }

  EventLoop& loop_;
  OwnedTasks tasks_;
  const ServeRequest& request_;
  Descriptor listener_;
  uint16_t port_;
  std::map<int, Visitor> visitors_;
  std::string data_;
  std::chrono::steady_clock::time_point read_at_;
};

}  // namespace

int serve_report(const ServeRequest& request) {
  EventLoop loop;
  int signal = 0;
  loop.on_signal([&signal](int number) { signal = number; });
  ReportServer server(loop, request);
  if (request.ready) request.ready(server.url());
  loop.run_until([&signal] { return signal != 0; });
  return signal == SIGINT || signal == SIGTERM ? exit_code::done : exit_code::signal_base + signal;
}

}  // namespace convoy
