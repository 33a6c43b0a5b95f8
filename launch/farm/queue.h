// Which pipeline starts next, and where. Pure data: no processes, no clock.
//
// A *slot* is a set of cores of one host that is given out as a whole; a pipeline is a gang that takes as many of one host's
// as its cores need, and GPUs of the same host. The more urgent goes first: by priority, within it the longest, as far as
// estimates are known, then the one that came first. Where the most urgent one has to wait for several slots, they are kept
// for it as they become free, and others may pass it only beside them: so a wide gang does not starve, and no slot is idle
// for the sake of one that could not use it.
#pragma once
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace convoy {

struct Machines {
  struct Slot {
    int host = 0;
    std::vector<int> cores;  // processing units
    int size = 1;            // how many cores these are, hyper-threads not counted
  };
  struct Device {
    int host = 0;
    int gpu = 0;  // Gpu::index on its host
  };
  std::vector<Slot> slots;
  std::vector<Device> gpus;
};

// What a pipeline wants.
struct Claim {
  int64_t priority = 0;
  bool preempt = false;        // running ones of a smaller priority give way to it
  double estimate = 0;         // seconds; 0: not known
  int cores = 1;               // as many slots as hold so many
  std::vector<int> core_list;  // then these, on the first host that has them all
  int gpus = 0;
  std::vector<int> gpu_list;
  double share = 1;  // of its slots and GPUs
};

// What it gets.
struct Grant {
  int job = 0;
  int host = 0;
  std::vector<int> slots;  // indices into Machines::slots, ascending
  std::vector<int> gpus;   // indices into Machines::gpus
};

class Queue {
 public:
  Queue(Machines machines, int max_parallel);  // 0: as many as there are slots for

  const Machines& machines() const { return machines_; }
  bool possible(const Claim& claim) const;  // whether it would fit if nothing else ran

  // `job` is the caller's number for it, smaller ones came first; `not_before` in seconds of the caller's clock.
  void add(int job, const Claim& claim, double not_before = 0);
  bool drop(int job);  // a waiting one; false when it does not wait
  // The next to start now, which from then on runs; nothing when none can.
  std::optional<Grant> next(double now);
  // Running jobs that are to stop so that the most urgent waiting one that may ask for it can start; each is told once.
  std::vector<int> give_way(double now);
  void ended(int job);  // a running one: its slots are free
  // Time from which one that waits for it may start; infinity when none does.
  double next_time(double now) const;

  size_t waiting() const { return order_.size(); }
  size_t running() const { return running_.size(); }

 private:
  struct Waiting {
    Claim claim;
    double not_before = 0;
  };
  struct Running {
    Claim claim;
    Grant grant;
    uint64_t number = 0;  // in order of starts
    bool stopping = false;
  };
  struct Urgency {
    int64_t priority;
    double estimate;
    int job;
    bool operator<(const Urgency& other) const;
  };
  // How much of each slot and GPU is taken.
  struct Load {
    std::vector<double> slots, gpus;
  };
  Load no_load() const;
  void put(Load& load, const Grant& grant, double share) const;
  Load load_of_running(bool with_stopping, const std::set<int>& without = {}) const;
  std::optional<Grant> place(const Claim& claim, const Load& load, const Load& preferred) const;
  std::optional<Grant> place_on(int host, const Claim& claim, const Load& load, const Load& preferred) const;
  bool room_for_one(size_t running) const;
  // If those were gone, beside the running ones and what is kept.
  bool would_fit(const Claim& claim, const std::set<int>& without, const Load& kept) const;

  Machines machines_;
  int max_parallel_;
  int hosts_ = 0;
  std::map<int, Waiting> waiting_;
  std::set<Urgency> order_;
  std::map<int, Running> running_;
  uint64_t starts_ = 0;
};

}  // namespace convoy
