// Which pipeline starts next, and where. Pure data: no processes, no clock.
//
// A *slot* is a set of cores of one host that is given out as a whole; a pipeline is a gang that takes as many of one host's
// as its cores need, and GPUs of the same host. The more urgent goes first: by priority, within it the longest, as far as
// estimates are known, then the one that came first. Where the most urgent one has to wait for several slots, they are kept
// for it as they become free, and others may pass it only beside them: so a wide gang does not starve, and no slot is idle
// for the sake of one that could not use it. Memory that pipelines are promised is never more than a host or a GPU has. From the less urgent nothing is kept for one that may make them give way, as
// long as it is held up by others that need not: once those end, it takes the slots from whoever has them by then.
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
    int gpu = 0;         // Gpu::index on its host
    int64_t memory = 0;  // bytes that may be promised; 0: not known, and not counted
  };
  std::vector<Slot> slots;
  std::vector<Device> gpus;
  std::vector<int64_t> memory{};  // bytes that may be promised, by host; where it is 0 or missing it is not counted
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
  double share = 1;        // of its slots and GPUs
  int64_t memory = 0;      // bytes of its host that it is promised
  int64_t gpu_memory = 0;  // of each of its GPUs
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
  // Running jobs that are to stop so that waiting ones that may ask for it can start, the most urgent first; each is told
  // once.
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
  // How much of each slot and GPU is taken, and what is promised of hosts' and GPUs' memory.
  struct Load {
    std::vector<double> slots, gpus;
    std::vector<int64_t> memory, gpu_memory;
  };
  // For those that wait, ahead of one.
  struct Kept {
    Load load;
    struct FromEquals {
      Claim claim;
      Grant grant;
    };
    std::vector<FromEquals> from_equals;  // part of `load` that is nobody's of a smaller priority
    size_t coming = 0;                    // how many start before it
  };
  Load no_load() const;
  static Load sum_of(Load load, const Load& other);
  static void put(Load& load, const Grant& grant, const Claim& claim, int times = 1);
  Load load_of_running(bool with_stopping, const std::set<int>& without = {}) const;
  std::optional<Grant> place(const Claim& claim, const Load& load, const Load& preferred) const;
  std::optional<Grant> place_on(int host, const Claim& claim, const Load& load, const Load& preferred) const;
  bool room_for_one(size_t running) const;
  // If those were gone, beside the running ones and what is kept.
  bool would_fit(const Claim& claim, const std::set<int>& without, const Kept& kept) const;
  std::set<int> less_urgent(int64_t priority) const;  // that run, and have not been asked to stop
  bool is_held_up(const Claim& claim, const Kept& kept) const;
  void release(Kept& kept, int64_t next_priority) const;
  void keep_for(const Claim& claim, const Load& lasting, Kept& kept) const;
  std::set<int> in_the_way_of(const Claim& claim, const Kept& kept) const;

  Machines machines_;
  int max_parallel_;
  int hosts_ = 0;
  std::map<int, Waiting> waiting_;
  std::set<Urgency> order_;
  std::map<int, Running> running_;
  uint64_t starts_ = 0;
};

}  // namespace convoy
