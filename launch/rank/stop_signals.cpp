#include "launch/rank/stop_signals.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "launch/gang.h"
#include "launch/signals.h"

namespace convoy {
namespace {

int caught_pipe[2] = {-1, -1};

void caught(int number) {
  const int kept = errno;
  const auto byte = static_cast<unsigned char>(number);
  const ssize_t written = write(caught_pipe[1], &byte, 1);  // full: there is a request already
  (void)written;
  errno = kept;
}

}  // namespace

void catch_stop_signals() {
  if (pipe2(caught_pipe, O_CLOEXEC) != 0) return;  // then they end this process, as they did
  fcntl(caught_pipe[1], F_SETFL, O_NONBLOCK);
  struct sigaction action {};
  action.sa_handler = caught;
  action.sa_flags = SA_RESTART;
  for (const int number : stop_signals())
    if (number != SIGQUIT) sigaction(number, &action, nullptr);
}

void tell_stop_signals(const std::shared_ptr<Channel>& channel) {
  if (caught_pipe[0] < 0) return;
  std::thread([weak = std::weak_ptr<Channel>(channel)] {
    unsigned char number = 0;
    ssize_t got = 0;
    while ((got = read(caught_pipe[0], &number, 1)) != 0) {
      if (got < 0 && errno == EINTR) continue;
      const auto alive = weak.lock();
      if (got < 0 || !alive) return;
      alive->post(gang_topic::signalled, {{"signal", static_cast<int>(number)}});
    }
  }).detach();
}

}  // namespace convoy
