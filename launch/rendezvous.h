// How ranks that another launcher started find the `convoy` that serves: a file in the requested run folder.
//
// FOLDER/.rendezvous-JOB, 0600, one line of address, job id and secret, there until all ranks have joined. The job id
// is the launcher's, so that two jobs in one folder never meet.
#pragma once
#include <optional>
#include <string>

#include "core/control/channel.h"
#include "launch/environment.h"

namespace convoy {

class RendezvousFile {
 public:
  // Creates the folder when it is not there; Error(output).
  RendezvousFile(const std::string& folder, const std::string& job, const ChannelAddress& address);
  ~RendezvousFile();
  RendezvousFile(const RendezvousFile&) = delete;
  RendezvousFile& operator=(const RendezvousFile&) = delete;

 private:
  std::string path_;
};

// Nothing while it is not there. Error(refused) when it belongs to somebody else or others may read or write it.
std::optional<ChannelAddress> read_rendezvous(const std::string& folder, const std::string& job);

// For those who outlive the one that served.
void remove_rendezvous(const std::string& folder, const std::string& job);

// The interface for the data between ranks: launch.address where it means one of this host's, else the one that leads to
// where the control channel was met. What only this host can reach keeps the data on this host too. "": the backend's own
// choice, where no way leads there.
std::string data_address(const std::string& configured, const std::string& channel_host);

// The interface to serve on: launch.address, loopback where all ranks are on this host, else the one that leads to the
// other hosts as far as the launcher tells of them.
struct ServingAddress {
  std::string address;
  std::string note;  // where it was one of several: to be told
};
ServingAddress serving_address(const std::string& configured, const LaunchedAs& as, const Variables& variables);

}  // namespace convoy
