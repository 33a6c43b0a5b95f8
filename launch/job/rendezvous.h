// Rendezvous file: ranks of another launcher find the supervisor through a file in the requested run folder.
//
// FOLDER/.rendezvous-JOB, mode 0600, has one line of address, job id and secret. It exists until all ranks have joined.
// The launcher gives the job id, so that two jobs in one folder cannot mix.
#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "core/config/job_plan.h"
#include "core/control/channel.h"
#include "launch/machine/environment.h"
#include "launch/process/event_loop.h"
#include "launch/process/orphan_guard.h"

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

// Removes the file for a supervisor that is dead.
void remove_rendezvous(const std::string& folder, const std::string& job);

// Interface of the control channel: launch.address; loopback if all ranks are on this host; the interface towards the
// other hosts if the launcher's variables name them; else the first one.
struct ServingAddress {
  std::string address;
  std::string note;  // line for the user if other hosts may not reach the address
};
ServingAddress serving_address(const std::string& configured, const LaunchedAs& as, const Variables& variables);

// SupervisedAgent: the part that all agents of another `convoy` share. It looks for the supervisor, joins its control
// channel, and ends when it has an exit code and nothing that it started runs any more.
//
// Threads: the event loop's.

class SupervisedAgent {
 public:
  virtual ~SupervisedAgent() = default;
  int run();  // returns the exit code

 protected:
  struct Search {
    const LaunchedAs& as;
    std::string folder;  // the rendezvous file appears in it; not used if `as.channel` has the address
    double limit;        // seconds
    std::string who;     // "rank 2", for messages
  };
  SupervisedAgent(EventLoop& loop, const Host& host, Search search);

  // Connects to the supervisor. The caller tries again after CommError and Error(rendezvous).
  virtual std::shared_ptr<Channel> connect(const ChannelAddress& address) = 0;
  virtual void join() = 0;  // `channel_` is connected: watches its keys and posts job_topic::join
  virtual void signalled(int signal) = 0;
  virtual void launcher_gone() = 0;
  virtual void supervisor_gone() = 0;
  virtual void job_ended(int code) = 0;  // the supervisor has published the exit code
  virtual bool idle() const = 0;         // nothing runs

  std::string here() const { return search_.who + " on " + host_.name; }

  EventLoop& loop_;
  const Host& host_;
  const Search search_;
  OwnedTasks tasks_;
  std::shared_ptr<Channel> channel_;  // null before `join`
  std::string address_;               // address of the channel
  std::optional<int> code_;

 private:
  void look_for_supervisor();

  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::unique_ptr<ParentWatch> parent_;
};

}  // namespace convoy
