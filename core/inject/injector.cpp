#include "core/inject/injector.h"

#include <linux/filter.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "core/base/error.h"
#include "core/base/log.h"

namespace convoy {
namespace {

using Kind = Fault::Kind;
using Detail = Fault::Detail;

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Leaves a process as a careless library would: no signal to the rank's process group reaches it.
void leave_orphan() {
  if (fork() != 0) return;
  setsid();
  if (fork() != 0) _exit(0);
  while (true) pause();
}

// TCP connections of this process.
std::vector<int> connections() {
  std::vector<int> found;
  for (const std::string& name : names_in("/proc/self/fd")) {
    const int fd = std::atoi(name.c_str());
    int domain = 0, type = 0;
    socklen_t size = sizeof domain;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 || (domain != AF_INET && domain != AF_INET6))
      continue;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM) found.push_back(fd);
  }
  return found;
}

// The kernel drops every packet that arrives on a connection of this process, as if a cable were pulled: no data, no
// acknowledgement and no end of a connection. After `seconds` the network is back, and TCP repeats what was lost.
void cut_network(Channel& channel, double seconds) {
  sock_filter nothing[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
  const sock_fprog filter{1, nothing};
  const std::vector<int> cut = connections();
  for (const int fd : cut) setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter);
  // The first packets would still leave, and heartbeats are small.
  if (seconds <= 0) return stop_sending(channel);
  std::thread([cut, seconds] {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    const int none = 0;
    for (const int fd : cut) setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof none);
  }).detach();
}

// True for faults that happen in a block's forward pass, not at a point.
bool in_model(const Fault& fault) { return fault.block >= 0 || fault.kind == Kind::nan; }

// True if the point only arms the fault; it happens elsewhere.
bool armed_by_point(const Fault& fault) {
  return in_model(fault) || fault.kind == Kind::mismatch || fault.kind == Kind::enospc;
}

}  // namespace

Injector::Injector(const InjectRequest& request) : request_(request) {
  for (const Fault& fault : faults_from_texts(request.faults, request.size))
    if (fault.concerns(request.rank, request.size, request.attempt)) faults_.push_back({fault});
}

Injector::~Injector() {
  for (const Planned& planned : faults_)
    if (planned.state != State::done)
      log::warning(
          str("injected fault ", planned.fault.text, " did not happen: rank ", request_.rank, " did not reach it"));
}

template <class Wanted>
bool Injector::any(Wanted wanted) const {
  return std::any_of(faults_.begin(), faults_.end(), [&](const Planned& planned) { return wanted(planned.fault); });
}

ModelPtr Injector::decorate(ModelPtr model) {
  for (const Planned& planned : faults_) {
    if (planned.fault.block < model->blocks()) continue;
    const std::string message = str("--inject ", planned.fault.text, ": the model has no block ", planned.fault.block,
                                    "; it has 0 to ", model->blocks() - 1);
    faults_.clear();  // the process ends for this error: do not warn of the faults
    throw Error(Failure::command_line, message);
  }
  const bool wanted = any([](const Fault& one) { return in_model(one) || one.detail == Detail::parameters; });
  return wanted ? injected_model(std::move(model), shared_from_this()) : model;
}

CommunicatorPtr Injector::decorate(CommunicatorPtr group) {
  const bool wanted =
      any([](const Fault& one) { return one.kind == Kind::mismatch && one.detail != Detail::parameters; });
  return wanted ? injected_communicator(std::move(group), shared_from_this()) : group;
}

FileSystem& Injector::decorate(FileSystem& files) {
  if (!any([](const Fault& one) { return one.kind == Kind::enospc; })) return files;
  files_ = injected_files(files, *this);
  return *files_;
}

template <class Wanted>
const Fault* Injector::take(State state, Wanted wanted) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Planned& planned : faults_) {
    if (planned.state != state || !wanted(planned.fault)) continue;
    planned.state = State::done;
    return &planned.fault;
  }
  return nullptr;
}

void Injector::reached(InjectPoint point, int64_t number) {
  if (point == InjectPoint::step) step_ = number;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Planned& planned : faults_) {
      const Fault& fault = planned.fault;
      const bool here = fault.point == point && fault.number == number;
      // Arms at this collective only if a rank has to wait for it; else the next one.
      const bool from_here =
          fault.point == InjectPoint::collective && point == InjectPoint::step && number >= fault.number;
      if (planned.state == State::waits && ((here && armed_by_point(fault)) || from_here)) planned.state = State::armed;
    }
  }
  while (const Fault* fault = take(State::waits, [&](const Fault& one) {
           return one.point == point && one.number == number && one.detail != Detail::parameters;
         }))
    act(*fault);
}

void Injector::waiting() {
  if (faults_.empty()) return;
  while (const Fault* fault = take(State::armed, [](const Fault& one) { return one.point == InjectPoint::collective; }))
    act(*fault);
}

bool Injector::forward(int64_t block) {
  bool no_number = false;
  while (const Fault* fault = take(
             State::armed, [&](const Fault& one) { return in_model(one) && (one.block < 0 || one.block == block); })) {
    no_number |= fault->kind == Kind::nan;
    act(*fault);
  }
  return no_number;
}

Detail Injector::next_mismatch() {
  const Fault* fault = take(State::armed, [](const Fault& one) { return one.kind == Kind::mismatch; });
  if (fault == nullptr) return Detail::none;
  report(*fault);
  return fault->detail;
}

bool Injector::must_fail(Detail call) {
  const Fault* fault =
      take(State::armed, [&](const Fault& one) { return one.kind == Kind::enospc && one.detail == call; });
  if (fault != nullptr) report(*fault);
  return fault != nullptr;
}

bool Injector::has_other_parameters() {
  const Fault* fault = take(State::waits, [](const Fault& one) { return one.detail == Detail::parameters; });
  if (fault != nullptr) report(*fault);
  return fault != nullptr;
}

// Reports before the fault happens: afterwards may be too late.
void Injector::report(const Fault& fault) {
  const int64_t step = step_;
  log::warning(str("injected fault ", fault.text, " happens now on rank ", request_.rank,
                   step >= 0 ? str(", step ", step) : std::string()));
  request_.channel->post(injected_topic, Json{{"fault", fault.text},
                                              {"rank", request_.rank},
                                              {"host", request_.host},
                                              {"step", step >= 0 ? Json(step) : Json()},
                                              {"attempt", request_.attempt},
                                              {"seconds", unix_seconds()}});
}

void Injector::act(const Fault& fault) {
  report(fault);
  switch (fault.kind) {
    case Kind::kill:
      raise(SIGKILL);
      break;
    case Kind::stop:
      raise(SIGSTOP);
      break;
    case Kind::segv:
      raise(SIGSEGV);
      break;
    case Kind::exit:
      _exit(fault.code);
    case Kind::raise:
      throw std::runtime_error(str("the exception that --inject ", fault.text, " asked for"));
    case Kind::sleep:
      std::this_thread::sleep_for(std::chrono::duration<double>(fault.seconds));
      break;
    case Kind::loop:
      // Otherwise the phase would show the loader, which runs next. The set-up's phases decide its time limits.
      if (request_.state && fault.block < 0 && fault.point != InjectPoint::join) request_.state->phase("injected loop");
      for (volatile bool forever = true; forever;) std::this_thread::yield();
      break;
    case Kind::drop_heartbeat:
      stop_sending(*request_.channel);
      break;
    case Kind::cut_network:
      cut_network(*request_.channel, fault.seconds);
      break;
    case Kind::orphan:
      leave_orphan();
      break;
    case Kind::nan:
    case Kind::mismatch:
    case Kind::enospc:
      break;  // the caller makes it happen
  }
}

}  // namespace convoy
