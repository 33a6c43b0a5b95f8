// SharedSegment: memory that the ranks of a group map if all of them run on one host, as processes or threads.
//
// Each rank has slots, through which its tensors are transferred in chunks, and counters of its progress in the group's
// stream of chunks. In a small group each rank also has a lane to each other rank, for point-to-point operations.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "core/backend.h"
#include "core/control/shared_memory.h"

namespace convoy {

class SharedSegment {
 public:
  static constexpr int64_t chunk_bytes = 256 << 10;  // size of a slot; several slots fit into the second-level cache
  static constexpr int64_t slots = 8;

  // Counts the chunks of the group's stream that a rank has processed. Only that rank writes the counters; they only
  // grow.
  struct alignas(64) Progress {
    std::atomic<int64_t> in{0};       // the rank's input is in its slot
    std::atomic<int64_t> reduced{0};  // the rank's share of the sum is in its slot
    std::atomic<int64_t> out{0};      // the rank has read all slots that it needs
    std::atomic<uint64_t> signature[slots] = {};
    // A rank that finds a different signature describes its own call here and then sets `reported`.
    std::atomic<bool> reported{false};
    int job_rank = 0;
    char description[240] = "";
  };

  // Counts the bytes that one rank has sent to another since the start. The lane contains the last lane_bytes of them.
  // Each end writes one counter.
  static constexpr int64_t lane_bytes = 256 << 10;
  static constexpr int most_with_lanes = 16;  // largest number of ranks for which there are lanes
  struct Lane {
    alignas(64) std::atomic<int64_t> written{0};
    alignas(64) std::atomic<int64_t> read{0};
  };

  // Collective. All ranks pass the same label, unique within the job. Returns null on all ranks if the ranks are on
  // several hosts, may not map each other's memory, or one rank forbids it (allow_shared_memory).
  static std::shared_ptr<SharedSegment> create(const BackendRequest& request, const std::string& label, int rank,
                                               int size, std::chrono::milliseconds timeout);
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  int size() const { return size_; }
  Progress& progress(int rank) const { return progress_[rank]; }
  // True if messages on the CPU may use lanes: all ranks compute on the CPU, and they are few.
  bool has_lanes() const { return has_lanes_; }
  Lane& lane(int from, int to) const { return lanes_[from * size_ + to]; }
  char* lane_memory(int from, int to) const { return lane_data_ + (from * size_ + to) * lane_bytes; }
  char* slot(int rank, int64_t chunk) const { return data_ + (rank * slots + chunk % slots) * chunk_bytes; }

 private:
  SharedSegment(std::shared_ptr<SharedMemory> memory, int size);
  static int64_t lanes_for(int size) { return size > most_with_lanes ? 0 : int64_t{size} * size; }
  static int64_t counter_bytes(int size);
  static int64_t bytes_for(int size);

  std::shared_ptr<SharedMemory> memory_;
  int size_;
  bool has_lanes_ = false;
  Progress* progress_;
  Lane* lanes_;
  char* data_;
  char* lane_data_;
};

}  // namespace convoy
