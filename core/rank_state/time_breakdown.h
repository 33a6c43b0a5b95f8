// TimeBreakdown: divides the wall time of a rank's thread into parts. At every moment exactly one part counts, so the
// parts add up to the wall time. A change of part costs one reading of the clock.
//
// Start-up, evaluation and checkpoint contain their communication: details are only measured in the training loop.
// Threads: one thread owns the breakdown, the rank's. Calls of other threads change nothing, so code that also runs on
// helper threads needs no check. CollectiveTimes may be used by any thread.
// On a GPU the parts are times of the host's thread, which launches kernels and waits for few of them.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace convoy {

inline int64_t steady_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// --- Trace ---

// Moments are nanoseconds of the steady clock.
struct TraceSlice {
  std::string lane;  // thread: "" for the rank's, "loader", "checkpoint"
  std::string name;
  const char* category = "";
  int64_t from = 0, to = 0;
  int64_t bytes = -1;  // -1: it moves none
};

// TraceLog: slices of time that one rank records while its steps are traced. Thread-safe.
class TraceLog {
 public:
  // A slice that lasts as long as this object. The log contains only its time during the recording.
  class Open {
   public:
    Open(TraceLog& log, std::string lane, std::string name, const char* category, int64_t bytes = -1);
    ~Open();
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;

   private:
    TraceLog& log_;
    std::list<TraceSlice>::iterator slice_;
  };
  void record(bool on);
  // Slices of one lane nest, or do not overlap.
  void add(TraceSlice slice) {
    std::lock_guard lock(mutex_);
    slices_.push_back(std::move(slice));
  }
  std::vector<TraceSlice> take() {
    std::lock_guard lock(mutex_);
    return std::move(slices_);
  }

 private:
  std::mutex mutex_;
  std::vector<TraceSlice> slices_;
  std::list<TraceSlice> open_;
  int64_t recorded_from_ = 0;  // 0: it does not record
};

// --- Times of a rank ---

enum class TimePart {
  start_up,
  data,
  forward,
  backward,
  communication,
  waiting,  // until the last rank arrived at a collective, or the peer of a message
  update,
  evaluation,
  checkpoint,
  other
};
inline constexpr size_t time_parts = 10;
const char* name_of(TimePart part);

// Times of this rank at the collectives of one group. Keeps a bounded sample of the calls: every call whose number is a
// multiple of a stride, which doubles as the sample fills. The number of a call is equal on all ranks, and so is the
// sample.
class CollectiveTimes {
 public:
  CollectiveTimes(std::string label, std::vector<int> members);

  void called(int64_t number);  // this rank has reached the call
  // The owner's thread waited for the call. Both moments are nanoseconds of the steady clock.
  void waited(int64_t number, int64_t from, int64_t to);

 private:
  friend class TimeBreakdown;
  struct Sample {
    int64_t number, arrived;
    int64_t from = 0, to = 0;  // the wait; 0: none that counts
  };
  Sample* sample(int64_t number);

  const std::string label_;
  const std::vector<int> members_;  // ranks of the job
  std::mutex mutex_;
  std::atomic<int64_t> stride_{1};
  std::vector<Sample> samples_;  // samples_[i] has the number (i + 1) * stride
  int64_t waited_ = 0;           // all counted waits
};

class TimeBreakdown {
 public:
  TimeBreakdown();

  // Makes the calling thread the owner.
  void set_owner() { owner_ = std::this_thread::get_id(); }

  // Begins a part of the loop; returns the one before.
  TimePart phase(TimePart part);

  // A detail inside a part of the loop: counts for `part` during its lifetime.
  class Scope {
   public:
    Scope(TimeBreakdown& times, TimePart part) : times_(times.begin(part, previous_) ? &times : nullptr) {
      if (times_ != nullptr) from_ = times_->changed_;
    }
    ~Scope() { end(); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    bool counts() const { return times_ != nullptr; }
    // Ends it now. Returns the moment, in nanoseconds of the steady clock.
    int64_t end() { return times_ != nullptr ? std::exchange(times_, nullptr)->end_detail(previous_, from_) : 0; }
    int64_t from() const { return from_; }

   private:
    TimePart previous_ = TimePart::other;
    TimeBreakdown* times_;
    int64_t from_ = 0;
  };

  // Begins to record parts as slices, or ends it.
  void record(bool on);
  // The trace to which any thread may add slices now; usually null. Valid as long as this object.
  TraceLog* trace() const { return recording_.load(std::memory_order_acquire); }
  std::vector<TraceSlice> slices() { return trace_.take(); }
  TraceLog& log() { return trace_; }
  // Lane of the calling thread in the trace.
  std::string lane() const;
  int64_t changed() const { return changed_; }  // moment of the last change

  // Counts a wait for a message of rank `peer`.
  void waited_for(int peer, int64_t nanoseconds) { waits_[peer] += 1e-9 * static_cast<double>(nanoseconds); }
  // Returns null for more groups than a job of convoy needs.
  std::shared_ptr<CollectiveTimes> add_group(const std::string& label, const std::vector<int>& members);

  // --- Results; on the owner's thread ---
  std::array<double, time_parts> seconds();               // by part, up to now
  std::map<int, double> waits() const { return waits_; }  // seconds of `waiting` by the rank that came last

  // Sets the time by which the clock of the control channel's server is ahead of this host's clock, as measured now.
  // Between two measurements it changes linearly.
  void set_clock_offset(int64_t nanoseconds);
  int64_t on_common_clock(int64_t nanoseconds) const;
  // Arrivals at the sampled collectives on the common clock, for the other ranks.
  std::vector<int64_t> arrivals() const;
  // Moves the time before the last rank's arrival from `communication` to `waiting`. `all`: arrivals of each rank of
  // the job. The share of this time in the sampled waits of a group is applied to all its waits. Call it once, at the
  // end.
  void split_waits(const std::vector<std::vector<int64_t>>& all);

 private:
  bool begin(TimePart part, TimePart& previous);
  int64_t change(TimePart part);
  int64_t end_detail(TimePart previous, int64_t from);

  std::atomic<std::thread::id> owner_;
  std::array<int64_t, time_parts> nanoseconds_{};
  TimePart part_ = TimePart::start_up;
  bool detailed_ = false;  // details count in this part of the loop
  int64_t changed_;        // nanoseconds of the steady clock
  TraceLog trace_;
  std::atomic<TraceLog*> recording_{nullptr};
  int64_t phase_from_ = 0;  // begin of the part of the loop
  std::map<int, double> waits_;
  struct Offset {
    int64_t at, nanoseconds;
  };
  std::vector<Offset> offsets_;  // at most two: the first and the last
  std::mutex mutex_;
  std::vector<std::shared_ptr<CollectiveTimes>> groups_;
};

}  // namespace convoy
