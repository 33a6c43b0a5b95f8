// Rendezvous file: ranks of another launcher find the supervisor through a file in the requested run folder.
//
// FOLDER/.rendezvous-JOB, mode 0600, has one line of address, job id and secret. It exists until all ranks have joined.
// The launcher gives the job id, so that two jobs in one folder cannot mix.
#pragma once
#include <optional>
#include <string>

#include "core/control/channel.h"
#include "launch/machine/environment.h"

namespace convoy {

class RendezvousFile {
 public:
  // Creates the folder if needed. Throws Error(output).
  RendezvousFile(const std::string& folder, const std::string& job, const ChannelAddress& address);
  ~RendezvousFile();
  RendezvousFile(const RendezvousFile&) = delete;
  RendezvousFile& operator=(const RendezvousFile&) = delete;

 private:
  std::string path_;
};

// Nothing if the file does not exist. Error(refused) if another user owns it, or if others may read or write it.
std::optional<ChannelAddress> read_rendezvous(const std::string& folder, const std::string& job);

// Removes the file for a supervisor that is dead.
void remove_rendezvous(const std::string& folder, const std::string& job);

// Interface for the data between ranks: launch.address if it is one of this host's, else the interface towards the
// control channel. A loopback channel keeps the data on this host. "": no route; the backend chooses.
std::string data_address(const std::string& configured, const std::string& channel_host);

// Interface of the control channel: launch.address, loopback if all ranks are on this host, else the interface towards
// the other hosts, if the launcher's variables name them.
struct ServingAddress {
  std::string address;
  std::string note;  // line for the user if there were several addresses
};
ServingAddress serving_address(const std::string& configured, const LaunchedAs& as, const Variables& variables);

}  // namespace convoy
