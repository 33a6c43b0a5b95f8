// Decides which pipeline starts next, and on which slots. Pure data: no processes, no clock.
//
// A slot is a set of cores of one host that is allocated as a whole. A pipeline gets as many slots of one host as its
// cores need, and GPUs of the same host. The queue is sorted by priority, then by estimate (longest first; unknown ones
// last), then by arrival.
//
// A pipeline that must wait for several slots reserves them as they become free. Others may start only on slots that it
// does not need. So large pipelines do not starve, and slots stay in use. Memory of a host or GPU is never allocated
// twice. A preempting pipeline reserves nothing from lower priorities while pipelines it cannot preempt block it: once
// those end, it preempts the users of its slots.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace convoy {

struct Inventory {
  struct Slot {
    int host = 0;
    std::vector<int> cores;  // hardware threads
    int size = 1;            // number of physical cores
  };
  struct Device {
    int host = 0;
    int gpu = 0;         // Gpu::index on its host
    int64_t memory = 0;  // bytes to allocate; 0: unknown and unlimited
  };
  std::vector<Slot> slots;
  std::vector<Device> gpus;
  std::vector<int64_t> memory{};  // bytes to allocate, by host; 0 or missing: unknown and unlimited
};

struct ResourceRequest {
  int64_t priority = 0;
  bool preempt = false;        // may stop running pipelines of lower priority
  double estimate = 0;         // seconds; 0: unknown
  int cores = 1;               // allocates slots until they have this number of physical cores
  std::vector<int> core_list;  // if not empty: these, on the first host that has all of them
  int gpus = 0;
  std::vector<int> gpu_list;
  double share = 1;        // fraction of its slots and GPUs
  int64_t memory = 0;      // bytes of its host
  int64_t gpu_memory = 0;  // bytes of each of its GPUs
};

struct Allocation {
  int job = 0;
  int host = 0;
  std::vector<int> slots;  // indices into Inventory::slots, ascending
  std::vector<int> gpus;   // indices into Inventory::gpus
};

class Queue {
 public:
  Queue(Inventory inventory, int max_parallel);  // max_parallel 0: limited by the slots only

  const Inventory& inventory() const { return inventory_; }
  bool possible(const ResourceRequest& request) const;  // true if it fits while nothing else runs

  // `job`: the caller's number of a pipeline; smaller ones arrived earlier. `not_before`: in seconds of the caller's
  // clock.
  void add(int job, const ResourceRequest& request, double not_before = 0);
  bool drop(int job);                            // removes a waiting pipeline; false if it does not wait
  void set_priority(int job, int64_t priority);  // changes a waiting or running pipeline
  // Returns the next pipeline that can start now; it counts as running from then on. Nothing if none can.
  std::optional<Allocation> next(double now);
  // Returns running pipelines to stop for waiting ones that may preempt, highest priority first. Returns each once.
  std::vector<int> preempt(double now);
  void ended(int job);  // frees the slots of a running pipeline
  // Earliest `not_before` after `now`; infinity if there is none.
  double next_time(double now) const;

  size_t waiting() const { return order_.size(); }
  size_t running() const { return running_.size(); }

 private:
  struct Waiting {
    ResourceRequest request;
    double not_before = 0;
  };
  struct Running {
    ResourceRequest request;
    Allocation allocation;
    uint64_t number = 0;  // number of its start, ascending
    bool stopping = false;
  };
  struct QueueOrder {
    int64_t priority;
    double estimate;
    int job;
    bool operator<(const QueueOrder& other) const;
  };
  // Allocated fraction of each slot and GPU, and allocated memory of hosts and GPUs.
  struct Usage {
    std::vector<double> slots, gpus;
    std::vector<int64_t> memory, gpu_memory;
  };
  // Resources reserved for the waiting pipelines that precede the present one in the queue.
  struct Reservation {
    Usage usage;
    struct BlockedRequest {
      ResourceRequest request;
      Allocation allocation;
    };
    std::vector<BlockedRequest> blocked;  // part of `usage`; `release` removes it for lower priorities
    size_t coming = 0;                    // waiting pipelines with a reservation that are not blocked; they start first
  };
  Usage no_usage() const;
  static Usage sum_of(Usage usage, const Usage& other);
  // Adds an allocation `times` times; −1 removes it.
  static void put(Usage& usage, const Allocation& allocation, const ResourceRequest& request, int times = 1);
  Usage usage_of_running(bool with_stopping, const std::set<int>& without = {}) const;
  // Slots and GPUs for a request on top of `usage`. Prefers those that are free in `preferred` too.
  std::optional<Allocation> place(const ResourceRequest& request, const Usage& usage, const Usage& preferred) const;
  std::optional<Allocation> place_on(int host, const ResourceRequest& request, const Usage& usage,
                                     const Usage& preferred) const;
  bool room_for_one(size_t running) const;
  // True if the request fits once the pipelines `without` have ended.
  bool would_fit(const ResourceRequest& request, const std::set<int>& without, const Reservation& reservation) const;
  std::set<int> lower_priority(int64_t priority) const;  // running pipelines that are not stopping
  // True for a preempting request that must wait for pipelines it cannot preempt.
  bool is_blocked(const ResourceRequest& request, const Reservation& reservation) const;
  // Removes the reservations of blocked requests with a priority above `next_priority`: the next request may use them.
  void release(Reservation& reservation, int64_t next_priority) const;
  void reserve_for(const ResourceRequest& request, const Usage& lasting, Reservation& reservation) const;
  // Returns pipelines to preempt for a request. Empty if it fits without, or if no preemption helps.
  std::set<int> blockers_of(const ResourceRequest& request, const Reservation& reservation) const;

  Inventory inventory_;
  int max_parallel_;
  int hosts_ = 0;
  std::map<int, Waiting> waiting_;
  std::set<QueueOrder> order_;
  std::map<int, Running> running_;
  uint64_t starts_ = 0;
};

}  // namespace convoy
