// HostSegment: memory that the ranks of a group map when all of them are processes (or threads) of one host.
//
// Each rank has slots of its own in it, through which what it exchanges goes in chunks, and counters that say how far it is
// in the group's stream of chunks; where ranks are few, each has a lane to each other too, for messages between two
// (host_exchange.h).
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "core/host_memory.h"
#include "core/registry.h"

namespace convoy {

class HostSegment {
 public:
  static constexpr int64_t chunk_bytes = 256 << 10;  // of a slot: several ranks' fit into the second-level cache
  static constexpr int64_t slots = 8;

  // Chunks of the group's stream that a rank has dealt with; each only grows, and only by its rank.
  struct alignas(64) Progress {
    std::atomic<int64_t> in{0};       // what it contributes lies in its slot
    std::atomic<int64_t> reduced{0};  // so does its part of the sum
    std::atomic<int64_t> out{0};      // it needs nothing more of anybody's slot
    std::atomic<uint64_t> signature[slots] = {};
    // What it called where signatures differ: its rank in the job and its words, once `told`.
    std::atomic<bool> told{false};
    int job_rank = 0;
    char words[240] = "";
  };

  // From one rank to another: bytes since the beginning, of which lane_bytes lie there. Each counter is of one end.
  static constexpr int64_t lane_bytes = 256 << 10;
  static constexpr int most_with_lanes = 16;  // ranks
  struct Lane {
    alignas(64) std::atomic<int64_t> written{0};
    alignas(64) std::atomic<int64_t> read{0};
  };

  // All ranks of the group call it with the same label, unique within the job. Null, on all of them, where they are not on
  // one host, may not see each other's memory, or one was told not to (allow_host_memory).
  static std::shared_ptr<HostSegment> meet(const BackendRequest& request, const std::string& label, int rank, int size,
                                           std::chrono::milliseconds timeout);
  HostSegment(const HostSegment&) = delete;
  HostSegment& operator=(const HostSegment&) = delete;

  int size() const { return size_; }
  Progress& progress(int rank) const { return progress_[rank]; }
  // Messages on the CPU may take lanes: all ranks are of that device, and few.
  bool has_lanes() const { return has_lanes_; }
  Lane& lane(int from, int to) const { return lanes_[from * size_ + to]; }
  char* lane_memory(int from, int to) const { return lane_data_ + (from * size_ + to) * lane_bytes; }
  char* slot(int rank, int64_t chunk) const { return data_ + (rank * slots + chunk % slots) * chunk_bytes; }

 private:
  HostSegment(std::shared_ptr<HostMemory> memory, int size);
  static int64_t lanes_for(int size) { return size > most_with_lanes ? 0 : int64_t{size} * size; }
  static int64_t counter_bytes(int size);
  static int64_t bytes_for(int size);

  std::shared_ptr<HostMemory> memory_;
  int size_;
  bool has_lanes_ = false;
  Progress* progress_;
  Lane* lanes_;
  char* data_;
  char* lane_data_;
};

}  // namespace convoy
