// State machines of transfers and collectives in shared memory, and the transport that uses them.
#include "backends/communicator/shared_memory_operations.h"

#include <ATen/ops/from_blob.h>
#include <algorithm>
#include <cstring>

#include "backends/communicator/reduce.h"

namespace convoy {

// --- Transfers between two ranks ---

namespace {

constexpr int64_t lane_bytes = SharedSegment::lane_bytes;
constexpr int64_t length_bytes = 8;               // length of a message, sent before its bytes
constexpr int64_t shared_piece = lane_bytes / 4;  // the receiver copies one piece while the sender copies the next

// Messages begin at multiples of length_bytes, so a length never wraps around the end of the lane.
int64_t in_lane(int64_t bytes) { return (bytes + length_bytes - 1) / length_bytes * length_bytes; }

// One end of a message: the sender's or the receiver's.
struct MessageEnd {
  const bool sends;
  SharedSegment::Lane& lane;
  char* const memory;  // memory of the lane
  char* const data;
  const int64_t bytes;
  const int peer;
  const int64_t number;  // index of the message within its pair and direction
  bool begun = false;    // the length is sent or received
  int64_t moved = 0;     // number of `bytes` that are copied

  bool over() const { return begun && moved == bytes; }

  // Sends while the lane has room, or receives what has come. Returns true if it made progress. Throws
  // CommError(disagreement) if the arriving message has another length.
  bool advance() {
    std::atomic<int64_t>& position = sends ? lane.written : lane.read;
    int64_t at = position.load(std::memory_order_relaxed);
    const int64_t before = at;
    while (!over()) {
      const int64_t available = sends ? lane_bytes - (at - lane.read.load(std::memory_order_acquire))
                                      : lane.written.load(std::memory_order_acquire) - at;
      if (available < length_bytes) break;
      char* const in_memory = memory + at % lane_bytes;
      if (!begun) {
        move_length(in_memory);
        at += length_bytes;
        begun = true;
      } else {
        // At most `available` bytes, contiguous in the lane.
        const int64_t count = std::min({bytes - moved, available, shared_piece, lane_bytes - at % lane_bytes});
        sends ? std::memcpy(in_memory, data + moved, static_cast<size_t>(count))
              : std::memcpy(data + moved, in_memory, static_cast<size_t>(count));
        moved += count;
        at += moved == bytes ? in_lane(count) : count;
      }
      if (moved > 0 || over()) position.store(at, std::memory_order_release);
    }
    position.store(at, std::memory_order_release);
    return at != before;
  }

  void move_length(char* in_memory) const {
    if (sends) {
      std::memcpy(in_memory, &bytes, length_bytes);
      return;
    }
    int64_t sent = 0;
    std::memcpy(&sent, in_memory, length_bytes);
    if (sent != bytes)
      throw CommError(Failure::disagreement, peer, "rank ", peer, " sent ", sent, " bytes where ", bytes,
                      " were expected: the ranks called different operations");
  }
};

class SharedMemoryExchange final : public ProgressOperation {
 public:
  SharedMemoryExchange(const std::shared_ptr<SharedMemoryGroup>& group, const std::vector<Transfer>& transfers)
      : ProgressOperation(group, tensors_of(transfers)), group_(group), segment_(group->segment) {
    for (const auto kind : {Transfer::Kind::send, Transfer::Kind::receive}) {
      const bool sends = kind == Transfer::Kind::send;
      for (const Transfer& one : transfers) {
        if (one.kind != kind) continue;
        const int from = sends ? group->rank : one.peer, to = sends ? one.peer : group->rank;
        ends_.push_back({sends, segment_->lane(from, to), segment_->lane_memory(from, to),
                         static_cast<char*>(one.tensor.data_ptr()), one.tensor.numel(), one.peer,
                         order_of(sends, one.peer).issued++});
      }
    }
  }

  std::string missing() const override {
    std::vector<int> ranks;
    for (const MessageEnd& one : ends_)
      if (!one.over()) ranks.push_back(one.peer);
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return nothing_from(ranks);
  }

 protected:
  bool advance(bool& moved) override {
    bool all = true;
    for (MessageEnd& one : ends_) all = advance(one, moved) && all;
    return all;
  }

 private:
  static std::vector<at::Tensor> tensors_of(const std::vector<Transfer>& transfers) {
    std::vector<at::Tensor> tensors;
    for (const Transfer& one : transfers) tensors.push_back(one.tensor);
    return tensors;
  }

  SharedMemoryGroup::MessageOrder& order_of(bool sends, int peer) const {
    return (sends ? group_->sends : group_->receives)[static_cast<size_t>(peer)];
  }

  bool advance(MessageEnd& one, bool& moved) {
    if (one.over()) return true;
    SharedMemoryGroup::MessageOrder& order = order_of(one.sends, one.peer);
    if (order.turn != one.number) return false;
    try {
      moved = one.advance() || moved;
    } catch (const CommError& error) {
      // A message of another length breaks the stream: later messages have no known start.
      group_->fail(error);
      throw;
    }
    if (one.over()) ++order.turn;
    return one.over();
  }

  std::shared_ptr<SharedMemoryGroup> group_;
  std::shared_ptr<SharedSegment> segment_;
  std::vector<MessageEnd> ends_;  // sends first
};

}  // namespace

ProgressOperationPtr shared_memory_exchange(const std::shared_ptr<SharedMemoryGroup>& group,
                                            const std::vector<Transfer>& transfers) {
  return std::make_shared<SharedMemoryExchange>(group, transfers);
}

// --- Collectives ---

namespace {

constexpr int64_t chunk_bytes = SharedSegment::chunk_bytes;
constexpr int64_t cached_bytes = 8 << 10;      // sums of this size are copied from the first-level cache
constexpr int64_t one_phase_bytes = 32 << 10;  // up to this size each rank sums everything: one synchronisation only

char* data_of(const at::Tensor& tensor) { return static_cast<char*>(tensor.data_ptr()); }

Segments chunks_of(const at::Tensor& tensor, int64_t chunk = chunk_bytes) {
  return {data_of(tensor), static_cast<int64_t>(tensor.nbytes()), chunk};
}

// Hashes the facts that all ranks must share. Chunks of different calls are then detected and never summed.
uint64_t signature_of(std::initializer_list<int64_t> facts) {
  uint64_t mixed = 0x9e3779b97f4a7c15ULL;
  for (int64_t fact : facts) mixed = (mixed ^ static_cast<uint64_t>(fact)) * 0xff51afd7ed558ccdULL + (mixed >> 29);
  return mixed;
}

uint64_t signature_of(int64_t kind, ReduceOp op, const at::Tensor& tensor) {
  return signature_of({kind, static_cast<int64_t>(op), static_cast<int64_t>(tensor.scalar_type()),
                       static_cast<int64_t>(tensor.nbytes())});
}

class SharedMemoryOperation : public ProgressOperation {
 public:
  SharedMemoryOperation(const std::shared_ptr<SharedMemoryGroup>& group, const Call& call,
                        std::vector<at::Tensor> tensors, int64_t chunks, uint64_t signature)
      : ProgressOperation(group, std::move(tensors)),
        group_(group),
        call_(call),
        segment_(*group->segment),
        first_(group->issued),
        chunks_(chunks),
        signature_(signature ^ call.hash),
        mine_(segment_.progress(group->rank)),
        inputs_(static_cast<size_t>(segment_.size())) {
    group->issued += chunks;
  }

  std::string missing() const override {
    std::vector<int> ranks;
    for (int rank = 0; rank < segment_.size(); ++rank)
      if (segment_.progress(rank).in.load(std::memory_order_acquire) < first_ + chunks_) ranks.push_back(rank);
    ranks.erase(std::remove(ranks.begin(), ranks.end(), group_->rank), ranks.end());
    return nothing_from(ranks);
  }

 protected:
  virtual void put(int64_t k, char* slot) = 0;  // copies this rank's chunk k into its slot
  virtual bool two_phases() const { return false; }
  virtual void reduce_share(int64_t) {}  // sums this rank's share of chunk k over all slots
  virtual void take(int64_t k) = 0;      // copies the result of chunk k from the slots

  bool advance(bool& moved) override {
    if (group_->turn.load(std::memory_order_acquire) != first_) return false;
    for (bool again = true; again;) {
      again = false;
      if (in_ < chunks_ && first_ + in_ < least(&SharedSegment::Progress::out) + SharedSegment::slots) {
        put(in_, slot(group_->rank, in_));
        mine_.signature[(first_ + in_) % SharedSegment::slots].store(signature_, std::memory_order_relaxed);
        mine_.in.store(first_ + ++in_, std::memory_order_release);
        again = true;
      }
      if (reduced_ < in_ && first_ + reduced_ < least(&SharedSegment::Progress::in)) {
        if (reduced_ == 0 && !calls_match()) return false;
        if (two_phases()) reduce_share(reduced_);
        mine_.reduced.store(first_ + ++reduced_, std::memory_order_release);
        again = true;
      }
      if (out_ < reduced_ && (!two_phases() || first_ + out_ < least(&SharedSegment::Progress::reduced))) {
        take(out_);
        mine_.out.store(first_ + ++out_, std::memory_order_release);
        again = true;
      }
      moved = moved || again;
    }
    if (out_ < chunks_) return false;
    group_->turn.store(first_ + chunks_, std::memory_order_release);
    return true;
  }

  char* slot(int rank, int64_t k) const { return segment_.slot(rank, first_ + k); }
  int size() const { return segment_.size(); }
  int rank() const { return group_->rank; }

  // Sums `bytes` bytes at `own`, of this rank, and at `offset` in the slots of the others. `to` may be `own`.
  void reduce_with(const char* own, char* to, int64_t k, int64_t offset, int64_t bytes, at::ScalarType dtype,
                   ReduceOp op) {
    for (int one = 0; one < size(); ++one)
      inputs_[static_cast<size_t>(one)] = one == rank() ? own : slot(one, k) + offset;
    reduce(to, inputs_, bytes / static_cast<int64_t>(c10::elementSize(dtype)), dtype, op);
  }

 private:
  int64_t least(std::atomic<int64_t> SharedSegment::Progress::*counter) const {
    int64_t least = INT64_MAX;
    for (int one = 0; one < size(); ++one)
      least = std::min(least, (segment_.progress(one).*counter).load(std::memory_order_acquire));
    return least;
  }

  // Returns true if all ranks run the same operation. On a difference every rank reports its call, waits for the
  // others' reports for at most one second, and throws.
  bool calls_match() {
    bool match = true, all_reported = true;
    for (int one = 0; one < size(); ++one) {
      const SharedSegment::Progress& theirs = segment_.progress(one);
      match = match && theirs.signature[first_ % SharedSegment::slots].load(std::memory_order_relaxed) == signature_;
      all_reported = all_reported && theirs.reported.load(std::memory_order_acquire);
    }
    if (match) return true;
    if (!mine_.reported) {
      found_ = Clock::now();
      const std::string description = describe_call(call_);
      mine_.job_rank = call_.rank;
      mine_.description[description.copy(mine_.description, sizeof mine_.description - 1)] = 0;
      mine_.reported.store(true, std::memory_order_release);
      return false;
    }
    if (!all_reported && Clock::now() < found_ + std::chrono::seconds(1)) return false;
    std::vector<int> ranks;
    std::vector<std::string> texts;
    for (int one = 0; one < size(); ++one) {
      const SharedSegment::Progress& theirs = segment_.progress(one);
      if (!theirs.reported.load(std::memory_order_acquire)) continue;
      ranks.push_back(theirs.job_rank);
      texts.emplace_back(theirs.description);
    }
    const CallDifference difference = difference_of(ranks, texts);
    const auto odd = std::find(ranks.begin(), ranks.end(), difference.odd);
    const CommError error(Failure::disagreement, odd == ranks.end() ? -1 : static_cast<int>(odd - ranks.begin()),
                          difference.message);
    group_->fail(error);
    throw CommError(error);
  }

  std::shared_ptr<SharedMemoryGroup> group_;
  const Call call_;
  Clock::time_point found_;  // when this rank found a difference
  SharedSegment& segment_;
  const int64_t first_, chunks_;
  const uint64_t signature_;
  SharedSegment::Progress& mine_;
  int64_t in_ = 0, reduced_ = 0, out_ = 0;  // counts of chunks of this operation
  std::vector<const void*> inputs_;         // inputs of one reduction; reused by the next one
};

class AllReduce final : public SharedMemoryOperation {
 public:
  AllReduce(const std::shared_ptr<SharedMemoryGroup>& group, const Call& call, const at::Tensor& tensor, ReduceOp op)
      : SharedMemoryOperation(group, call, {tensor}, chunks_of(tensor).count(), signature_of(1, op, tensor)),
        data_(chunks_of(tensor)),
        dtype_(tensor.scalar_type()),
        op_(op) {}

 protected:
  bool two_phases() const override { return data_.bytes > one_phase_bytes; }
  // With two phases, leaves out this rank's share: other ranks read it only after it holds the sum.
  void put(int64_t k, char* slot) override {
    const char* from = data_.at(k);
    const auto [begin, end] = two_phases() ? share_of(k, rank()) : std::pair<int64_t, int64_t>(0, 0);
    std::memcpy(slot, from, static_cast<size_t>(begin));
    std::memcpy(slot + end, from + end, static_cast<size_t>(data_.length(k) - end));
  }
  void reduce_share(int64_t k) override {
    const auto [begin, end] = share_of(k, rank());
    for (int64_t at = begin; at < end; at += cached_bytes) {
      const int64_t bytes = std::min(cached_bytes, end - at);
      char* const sum = data_.at(k) + at;
      reduce_with(sum, sum, k, at, bytes, dtype_, op_);
      std::memcpy(slot(rank(), k) + at, sum, static_cast<size_t>(bytes));
    }
  }
  void take(int64_t k) override {
    char* to = data_.at(k);
    if (!two_phases()) return reduce_with(to, to, k, 0, data_.length(k), dtype_, op_);
    for (int one = 0; one < size(); ++one) {
      if (one == rank()) continue;  // its sum is there already
      const auto [begin, end] = share_of(k, one);
      std::memcpy(to + begin, slot(one, k) + begin, static_cast<size_t>(end - begin));
    }
  }

 private:
  // Shares begin at multiples of a cache line, so that no two ranks write to one line.
  std::pair<int64_t, int64_t> share_of(int64_t k, int rank) const {
    const int64_t all = data_.length(k), share = (all / size() + 63) / 64 * 64;
    return {std::min(all, rank * share), rank + 1 == size() ? all : std::min(all, (rank + 1) * share)};
  }

  const Segments data_;
  const at::ScalarType dtype_;
  const ReduceOp op_;
};

class AllGather final : public SharedMemoryOperation {
 public:
  AllGather(const std::shared_ptr<SharedMemoryGroup>& group, const Call& call, const at::Tensor& output,
            const Offsets& bounds, const at::Tensor& input, bool shared_output)
      : SharedMemoryOperation(group, call, {output, input},
                              shared_output ? 1 : Segments{nullptr, longest(bounds), chunk_bytes}.count(),
                              signature_of({shared_output ? 5 : 2, longest(bounds), bounds.back()})),
        output_(data_of(output)),
        input_(data_of(input)),
        bounds_(bounds),
        shared_output_(shared_output) {}

 protected:
  void put(int64_t k, char* slot) override {
    if (shared_output_) return put_in_place();
    if (length(k, rank()) > 0) std::memcpy(slot, input_ + k * chunk_bytes, static_cast<size_t>(length(k, rank())));
  }
  void take(int64_t k) override {
    if (shared_output_) return;
    for (int one = 0; one < size(); ++one) {
      const int64_t bytes = length(k, one);
      if (bytes <= 0) continue;
      const char* from = one == rank() ? input_ + k * chunk_bytes : slot(one, k);
      char* to = output_ + bounds_[static_cast<size_t>(one)] + k * chunk_bytes;
      if (to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
    }
  }

 private:
  static int64_t longest(const Offsets& bounds) {
    int64_t most = 0;
    for (size_t one = 0; one + 1 < bounds.size(); ++one) most = std::max(most, bounds[one + 1] - bounds[one]);
    return most;
  }
  void put_in_place() {
    const auto mine = static_cast<size_t>(rank());
    char* const to = output_ + bounds_[mine];
    const int64_t bytes = bounds_[mine + 1] - bounds_[mine];
    if (bytes > 0 && to != input_) std::memcpy(to, input_, static_cast<size_t>(bytes));
  }
  int64_t length(int64_t k, int rank) const {
    const auto one = static_cast<size_t>(rank);
    return std::min(chunk_bytes, bounds_[one + 1] - bounds_[one] - k * chunk_bytes);
  }

  char* const output_;
  const char* const input_;
  const Offsets bounds_;
  const bool shared_output_;
};

class ReduceScatter final : public SharedMemoryOperation {
 public:
  ReduceScatter(const std::shared_ptr<SharedMemoryGroup>& group, const Call& call, const at::Tensor& output,
                const at::Tensor& input, ReduceOp op)
      : SharedMemoryOperation(group, call, {output, input}, chunks_of(output, piece_of(group->size())).count(),
                              signature_of(3, op, output)),
        output_(chunks_of(output, piece_of(group->size()))),
        input_(data_of(input)),
        dtype_(output.scalar_type()),
        op_(op) {}

 protected:
  void put(int64_t k, char* slot) override {
    for (int one = 0; one < size(); ++one)
      if (one != rank())
        std::memcpy(slot + one * output_.segment, input_of(one, k), static_cast<size_t>(output_.length(k)));
  }
  void take(int64_t k) override {
    reduce_with(input_of(rank(), k), output_.at(k), k, rank() * output_.segment, output_.length(k), dtype_, op_);
  }

 private:
  static int64_t piece_of(int size) { return chunk_bytes / size / 64 * 64; }
  const char* input_of(int rank, int64_t k) const { return input_ + rank * output_.bytes + k * output_.segment; }

  const Segments output_;  // this rank's shard, in pieces; a slot has one piece for each rank
  const char* const input_;
  const at::ScalarType dtype_;
  const ReduceOp op_;
};

class Broadcast final : public SharedMemoryOperation {
 public:
  Broadcast(const std::shared_ptr<SharedMemoryGroup>& group, const Call& call, const at::Tensor& tensor, int root)
      : SharedMemoryOperation(group, call, {tensor}, chunks_of(tensor).count(),
                              signature_of({4, root, tensor.numel()})),
        data_(chunks_of(tensor)),
        root_(root) {}

 protected:
  void put(int64_t k, char* slot) override {
    if (rank() == root_) std::memcpy(slot, data_.at(k), static_cast<size_t>(data_.length(k)));
  }
  void take(int64_t k) override {
    if (rank() != root_) std::memcpy(data_.at(k), slot(root_, k), static_cast<size_t>(data_.length(k)));
  }

 private:
  const Segments data_;
  const int root_;
};

// --- The transport: selects shared memory or the inner transport ---

class SharedMemoryTransport final : public Transport {
 public:
  SharedMemoryTransport(std::shared_ptr<Transport> inner, const BackendRequest& request,
                        std::shared_ptr<ProgressEngine> engine, std::shared_ptr<SharedMemoryGroup> group,
                        std::string label)
      : inner_(std::move(inner)),
        request_(request),
        engine_(std::move(engine)),
        group_(std::move(group)),
        label_(std::move(label)) {}

  std::vector<at::DeviceType> devices() const override { return inner_->devices(); }
  std::vector<at::DeviceType> reduction_devices() const override { return inner_->reduction_devices(); }

  PendingOperationPtr all_reduce(const Call& call, at::Tensor tensor, ReduceOp op) override {
    if (!tensor.is_cpu()) return inner().all_reduce(call, tensor, op);
    return start<AllReduce>(call, tensor, op);
  }
  PendingOperationPtr all_gather(const Call& call, at::Tensor output, const Offsets& bounds,
                                 at::Tensor input) override {
    if (!output.is_cpu() || !input.is_cpu()) return inner().all_gather(call, output, bounds, input);
    return start<AllGather>(call, output, bounds, input, is_shared(output));
  }
  PendingOperationPtr reduce_scatter(const Call& call, at::Tensor output, at::Tensor input, ReduceOp op) override {
    if (!output.is_cpu() || !input.is_cpu()) return inner().reduce_scatter(call, output, input, op);
    return start<ReduceScatter>(call, output, input, op);
  }
  PendingOperationPtr broadcast(const Call& call, at::Tensor tensor, int root) override {
    if (!tensor.is_cpu()) return inner().broadcast(call, tensor, root);
    return start<Broadcast>(call, tensor, root);
  }
  PendingOperationPtr all_to_all(const Call& call, at::Tensor output, const Offsets& output_bounds, at::Tensor input,
                                 const Offsets& input_bounds) override {
    return inner().all_to_all(call, output, output_bounds, input, input_bounds);
  }
  PendingOperationPtr exchange(const Call& call, const std::vector<Transfer>& transfers) override {
    if (!group_->segment->has_lanes()) return inner().exchange(call, transfers);
    return start(shared_memory_exchange(group_, transfers));
  }
  PendingOperationPtr barrier(const Call& call) override { return inner().barrier(call); }

  int64_t propose() override { return inner_->propose(); }
  std::shared_ptr<Transport> split(const std::vector<int>& members, int rank, const std::string& label, int64_t agreed,
                                   std::chrono::milliseconds timeout) override {
    std::shared_ptr<Transport> inner = inner_->split(members, rank, label, agreed, timeout);
    if (inner == nullptr) return nullptr;
    return over_shared_memory(std::move(inner), request_, {label, rank, static_cast<int>(members.size()), timeout},
                              engine_);
  }

  at::Tensor common_memory(int64_t bytes, std::chrono::milliseconds timeout) override {
    auto memory =
        SharedMemory::create_together(*request_.channel, str(request_.job, "/", label_, "/common/", commons_made_++),
                                      group_->rank, group_->size(), bytes, timeout);
    if (memory == nullptr) return {};
    std::lock_guard lock(commons_mutex_);
    commons_.erase(std::remove_if(commons_.begin(), commons_.end(), [](const auto& one) { return one.expired(); }),
                   commons_.end());
    commons_.push_back(memory);
    return at::from_blob(
        memory->data(), {bytes}, [memory](void*) {}, at::kByte);
  }

  void fail(const std::string& reason) override {
    engine_->fail(*group_, reason);
    inner_->fail(reason);
  }

 private:
  // Returns true if `output` is memory that all ranks map.
  bool is_shared(const at::Tensor& output) {
    const char* const begin = static_cast<const char*>(output.const_data_ptr());
    std::lock_guard lock(commons_mutex_);
    return std::any_of(commons_.begin(), commons_.end(), [&](const std::weak_ptr<SharedMemory>& one) {
      const std::shared_ptr<SharedMemory> memory = one.lock();
      return memory && begin >= memory->data() && begin < memory->data() + memory->bytes();
    });
  }

  // After a mismatch the later calls of the ranks do not match either, so the group stays failed.
  Transport& inner() const {
    group_->check();
    return *inner_;
  }

  template <class Operation, class... Arguments>
  PendingOperationPtr start(const Call& call, const Arguments&... arguments) {
    return start(std::make_shared<Operation>(group_, call, arguments...));
  }
  PendingOperationPtr start(const ProgressOperationPtr& operation) {
    group_->check();
    engine_->start(operation);
    return std::make_unique<ProgressPendingOperation>(engine_, operation);
  }

  std::shared_ptr<Transport> inner_;
  BackendRequest request_;
  std::shared_ptr<ProgressEngine> engine_;
  std::shared_ptr<SharedMemoryGroup> group_;
  const std::string label_;
  int64_t commons_made_ = 0;
  std::mutex commons_mutex_;
  std::vector<std::weak_ptr<SharedMemory>> commons_;
};

}  // namespace

std::shared_ptr<Transport> over_shared_memory(std::shared_ptr<Transport> inner, const BackendRequest& request,
                                              const GroupDescription& described,
                                              std::shared_ptr<ProgressEngine> engine) {
  auto group = std::make_shared<SharedMemoryGroup>();
  group->segment = SharedSegment::create(request, described.label, described.rank, described.size, described.timeout);
  if (group->segment == nullptr) return inner;
  group->rank = described.rank;
  group->sends.resize(static_cast<size_t>(described.size));
  group->receives.resize(static_cast<size_t>(described.size));
  return std::make_shared<SharedMemoryTransport>(std::move(inner), request, std::move(engine), std::move(group),
                                                 described.label);
}

}  // namespace convoy
