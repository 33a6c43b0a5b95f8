// TCP sockets of the control channel: numeric addresses only, closed on exec from the first instant (asio creates and
// accepts without CLOEXEC, and `convoy` forks), non-blocking.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

#include "core/descriptor.h"

namespace convoy {

using Deadline = std::chrono::steady_clock::time_point;

// Bound to one interface and listening. Error(rendezvous) with address and reason; wildcard addresses are refused.
Descriptor listen_on(const std::string& address, uint16_t port);
uint16_t port_of(int listener);
bool is_ipv6(const std::string& address);
// The next connection, or an invalid descriptor with errno set.
Descriptor accept_from(int listener);

// One attempt; an invalid descriptor and `problem` when it fails in a way that may pass (nobody listens yet).
// Error(rendezvous) for an address that never will work.
Descriptor connect_once(const std::string& address, uint16_t port, Deadline deadline, std::string& problem);
// Small messages at once, dead hosts noticed after `silence`.
void prepare_connection(int fd, std::chrono::milliseconds silence);

// Waits until fd is readable (or writable); false at the deadline.
bool wait_ready(int fd, bool writable, Deadline deadline);

}  // namespace convoy
