// State machines of the collectives within a host.
#include "backends/host_operations.h"

#include <algorithm>
#include <cstring>

#include "backends/reduce.h"

namespace convoy {
namespace {

constexpr int64_t chunk_bytes = HostSegment::chunk_bytes;
constexpr int64_t alone_bytes = 32 << 10;  // up to here each rank adds up everything: one meeting instead of two

char* bytes_of(const at::Tensor& tensor) { return static_cast<char*>(tensor.data_ptr()); }

int64_t chunks_of(int64_t bytes, int64_t chunk) { return (bytes + chunk - 1) / chunk; }

// What all ranks have to call alike, so that chunks that do not belong together are told and never added.
uint64_t signature_of(std::initializer_list<int64_t> facts) {
  uint64_t mixed = 0x9e3779b97f4a7c15ULL;
  for (int64_t fact : facts) mixed = (mixed ^ static_cast<uint64_t>(fact)) * 0xff51afd7ed558ccdULL + (mixed >> 29);
  return mixed;
}

class HostOperation : public ProgressOperation {
 public:
  HostOperation(const std::shared_ptr<HostGroup>& group, const Call& call, std::vector<at::Tensor> tensors,
                int64_t chunks, uint64_t signature)
      : ProgressOperation(group, std::move(tensors)),
        group_(group),
        call_(call),
        segment_(*group->segment),
        first_(group->issued),
        chunks_(chunks),
        signature_(signature ^ call.hash),
        mine_(segment_.progress(group->rank)) {
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
  virtual void put(int64_t k, char* slot) = 0;  // this rank's chunk k into its slot
  virtual bool in_two() const { return false; }
  virtual void add_up(int64_t) {}    // this rank's part of chunk k, in the slots
  virtual void take(int64_t k) = 0;  // what this rank wants of everybody's slots

  bool advance(bool& moved) override {
    if (group_->turn.load(std::memory_order_acquire) != first_) return false;
    for (bool again = true; again;) {
      again = false;
      if (in_ < chunks_ && first_ + in_ < least(&HostSegment::Progress::out) + HostSegment::slots) {
        put(in_, slot(group_->rank, in_));
        mine_.signature[(first_ + in_) % HostSegment::slots].store(signature_, std::memory_order_relaxed);
        mine_.in.store(first_ + ++in_, std::memory_order_release);
        again = true;
      }
      if (reduced_ < in_ && first_ + reduced_ < least(&HostSegment::Progress::in)) {
        if (reduced_ == 0 && !alike()) return false;
        if (in_two()) add_up(reduced_);
        mine_.reduced.store(first_ + ++reduced_, std::memory_order_release);
        again = true;
      }
      if (out_ < reduced_ && (!in_two() || first_ + out_ < least(&HostSegment::Progress::reduced))) {
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

  // Adds up `bytes` that lie `offset` bytes behind the beginning of everybody's slot.
  void reduce_slots(char* to, int64_t k, int64_t offset, int64_t bytes, at::ScalarType dtype, ReduceOp op) const {
    std::vector<const void*> in(static_cast<size_t>(size()));
    for (int one = 0; one < size(); ++one) in[static_cast<size_t>(one)] = slot(one, k) + offset;
    reduce(to, in, bytes / static_cast<int64_t>(c10::elementSize(dtype)), dtype, op);
  }

 private:
  int64_t least(std::atomic<int64_t> HostSegment::Progress::*counter) const {
    int64_t least = INT64_MAX;
    for (int one = 0; one < size(); ++one)
      least = std::min(least, (segment_.progress(one).*counter).load(std::memory_order_acquire));
    return least;
  }

  // Every rank finds a difference, says what it called, and throws once it knows what the others did, or not for a second.
  bool alike() {
    bool alike = true, all_told = true;
    for (int one = 0; one < size(); ++one) {
      const HostSegment::Progress& theirs = segment_.progress(one);
      alike = alike && theirs.signature[first_ % HostSegment::slots].load(std::memory_order_relaxed) == signature_;
      all_told = all_told && theirs.told.load(std::memory_order_acquire);
    }
    if (alike) return true;
    if (!mine_.told) {
      found_ = Clock::now();
      const std::string words = describe(call_);
      mine_.job_rank = call_.rank;
      mine_.words[words.copy(mine_.words, sizeof mine_.words - 1)] = 0;
      mine_.told.store(true, std::memory_order_release);
      return false;
    }
    if (!all_told && Clock::now() < found_ + std::chrono::seconds(1)) return false;
    std::vector<int> ranks;
    std::vector<std::string> texts;
    for (int one = 0; one < size(); ++one) {
      const HostSegment::Progress& theirs = segment_.progress(one);
      if (!theirs.told.load(std::memory_order_acquire)) continue;
      ranks.push_back(theirs.job_rank);
      texts.emplace_back(theirs.words);
    }
    const Difference difference = difference_of(ranks, texts);
    {
      std::lock_guard lock(group_->mutex);
      group_->reason = difference.message;
      group_->failed = true;
    }
    const auto odd = std::find(ranks.begin(), ranks.end(), difference.odd);
    throw CommError(Failure::disagreement, odd == ranks.end() ? -1 : static_cast<int>(odd - ranks.begin()),
                    difference.message);
  }

  std::shared_ptr<HostGroup> group_;
  const Call call_;
  Clock::time_point found_;  // a difference
  HostSegment& segment_;
  const int64_t first_, chunks_;
  const uint64_t signature_;
  HostSegment::Progress& mine_;
  int64_t in_ = 0, reduced_ = 0, out_ = 0;  // chunks of this operation
};

class AllReduce final : public HostOperation {
 public:
  AllReduce(const std::shared_ptr<HostGroup>& group, const Call& call, const at::Tensor& tensor, ReduceOp op)
      : HostOperation(group, call, {tensor}, chunks_of(static_cast<int64_t>(tensor.nbytes()), chunk_bytes),
                      signature_of({1, static_cast<int64_t>(op), static_cast<int64_t>(tensor.scalar_type()),
                                    static_cast<int64_t>(tensor.nbytes())})),
        data_(bytes_of(tensor)),
        bytes_(static_cast<int64_t>(tensor.nbytes())),
        dtype_(tensor.scalar_type()),
        op_(op) {}

 protected:
  bool in_two() const override { return bytes_ > alone_bytes; }
  // Its own part nobody else reads before it is the sum.
  void put(int64_t k, char* slot) override {
    const char* from = data_ + k * chunk_bytes;
    const auto [begin, end] = in_two() ? part(k, rank()) : std::pair<int64_t, int64_t>(0, 0);
    std::memcpy(slot, from, static_cast<size_t>(begin));
    std::memcpy(slot + end, from + end, static_cast<size_t>(length(k) - end));
  }
  void add_up(int64_t k) override {
    const auto [begin, end] = part(k, rank());
    if (begin == end) return;
    std::vector<const void*> in;
    for (int one = 0; one < size(); ++one)
      in.push_back((one == rank() ? data_ + k * chunk_bytes : slot(one, k)) + begin);
    reduce(slot(rank(), k) + begin, in, (end - begin) / static_cast<int64_t>(c10::elementSize(dtype_)), dtype_, op_);
  }
  void take(int64_t k) override {
    char* to = data_ + k * chunk_bytes;
    if (!in_two()) return reduce_slots(to, k, 0, length(k), dtype_, op_);
    for (int one = 0; one < size(); ++one) {
      const auto [begin, end] = part(k, one);
      std::memcpy(to + begin, slot(one, k) + begin, static_cast<size_t>(end - begin));
    }
  }

 private:
  int64_t length(int64_t k) const { return std::min(chunk_bytes, bytes_ - k * chunk_bytes); }
  // Parts begin at multiples of a cache line, or two ranks would write to one.
  std::pair<int64_t, int64_t> part(int64_t k, int rank) const {
    const int64_t all = length(k), share = (all / size() + 63) / 64 * 64;
    return {std::min(all, rank * share), rank + 1 == size() ? all : std::min(all, (rank + 1) * share)};
  }

  char* const data_;
  const int64_t bytes_;
  const at::ScalarType dtype_;
  const ReduceOp op_;
};

class AllGather final : public HostOperation {
 public:
  AllGather(const std::shared_ptr<HostGroup>& group, const Call& call, const at::Tensor& output, const Offsets& parts,
            const at::Tensor& input, bool in_common)
      : HostOperation(group, call, {output, input}, in_common ? 1 : chunks_of(longest(parts), chunk_bytes),
                      signature_of({in_common ? 5 : 2, longest(parts), parts.back()})),
        output_(bytes_of(output)),
        input_(bytes_of(input)),
        parts_(parts),
        in_common_(in_common) {}

 protected:
  void put(int64_t k, char* slot) override {
    if (in_common_) return put_in_place();
    if (length(k, rank()) > 0) std::memcpy(slot, input_ + k * chunk_bytes, static_cast<size_t>(length(k, rank())));
  }
  void take(int64_t k) override {
    if (in_common_) return;
    for (int one = 0; one < size(); ++one) {
      const int64_t bytes = length(k, one);
      if (bytes <= 0) continue;
      const char* from = one == rank() ? input_ + k * chunk_bytes : slot(one, k);
      char* to = output_ + parts_[static_cast<size_t>(one)] + k * chunk_bytes;
      if (to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
    }
  }

 private:
  static int64_t longest(const Offsets& parts) {
    int64_t most = 0;
    for (size_t one = 0; one + 1 < parts.size(); ++one) most = std::max(most, parts[one + 1] - parts[one]);
    return most;
  }
  void put_in_place() {
    const auto own = static_cast<size_t>(rank());
    char* const place = output_ + parts_[own];
    const int64_t bytes = parts_[own + 1] - parts_[own];
    if (bytes > 0 && place != input_) std::memcpy(place, input_, static_cast<size_t>(bytes));
  }
  int64_t length(int64_t k, int rank) const {
    const auto one = static_cast<size_t>(rank);
    return std::min(chunk_bytes, parts_[one + 1] - parts_[one] - k * chunk_bytes);
  }

  char* const output_;
  const char* const input_;
  const Offsets parts_;
  const bool in_common_;
};

class ReduceScatter final : public HostOperation {
 public:
  ReduceScatter(const std::shared_ptr<HostGroup>& group, const Call& call, const at::Tensor& output,
                const at::Tensor& input, ReduceOp op)
      : HostOperation(group, call, {output, input},
                      chunks_of(static_cast<int64_t>(output.nbytes()), piece_of(group->size())),
                      signature_of({3, static_cast<int64_t>(op), static_cast<int64_t>(output.scalar_type()),
                                    static_cast<int64_t>(output.nbytes())})),
        output_(bytes_of(output)),
        input_(bytes_of(input)),
        bytes_(static_cast<int64_t>(output.nbytes())),
        piece_(piece_of(group->size())),
        dtype_(output.scalar_type()),
        op_(op) {}

 protected:
  void put(int64_t k, char* slot) override {
    for (int one = 0; one < size(); ++one)
      std::memcpy(slot + one * piece_, input_ + one * bytes_ + k * piece_, static_cast<size_t>(length(k)));
  }
  void take(int64_t k) override { reduce_slots(output_ + k * piece_, k, rank() * piece_, length(k), dtype_, op_); }

 private:
  static int64_t piece_of(int size) { return chunk_bytes / size / 64 * 64; }
  int64_t length(int64_t k) const { return std::min(piece_, bytes_ - k * piece_); }

  char* const output_;
  const char* const input_;
  const int64_t bytes_, piece_;  // of one rank's part; of it in a slot
  const at::ScalarType dtype_;
  const ReduceOp op_;
};

class Broadcast final : public HostOperation {
 public:
  Broadcast(const std::shared_ptr<HostGroup>& group, const Call& call, const at::Tensor& tensor, int root)
      : HostOperation(group, call, {tensor}, chunks_of(tensor.numel(), chunk_bytes),
                      signature_of({4, root, tensor.numel()})),
        data_(bytes_of(tensor)),
        bytes_(tensor.numel()),
        root_(root) {}

 protected:
  void put(int64_t k, char* slot) override {
    if (rank() == root_) std::memcpy(slot, data_ + k * chunk_bytes, static_cast<size_t>(length(k)));
  }
  void take(int64_t k) override {
    if (rank() != root_) std::memcpy(data_ + k * chunk_bytes, slot(root_, k), static_cast<size_t>(length(k)));
  }

 private:
  int64_t length(int64_t k) const { return std::min(chunk_bytes, bytes_ - k * chunk_bytes); }

  char* const data_;
  const int64_t bytes_;
  const int root_;
};

}  // namespace

HostOperationPtr host_all_reduce(const std::shared_ptr<HostGroup>& group, const Call& call, const at::Tensor& tensor,
                                 ReduceOp op) {
  return std::make_shared<AllReduce>(group, call, tensor, op);
}

HostOperationPtr host_all_gather(const std::shared_ptr<HostGroup>& group, const Call& call, const at::Tensor& output,
                                 const Offsets& parts, const at::Tensor& input, bool in_common) {
  return std::make_shared<AllGather>(group, call, output, parts, input, in_common);
}

HostOperationPtr host_reduce_scatter(const std::shared_ptr<HostGroup>& group, const Call& call,
                                     const at::Tensor& output, const at::Tensor& input, ReduceOp op) {
  return std::make_shared<ReduceScatter>(group, call, output, input, op);
}

HostOperationPtr host_broadcast(const std::shared_ptr<HostGroup>& group, const Call& call, const at::Tensor& tensor,
                                int root) {
  return std::make_shared<Broadcast>(group, call, tensor, root);
}

}  // namespace convoy
