// State machines of the mpi backend's collectives.
#include "backends/mpi/mpi_operations.h"

#include <algorithm>

#include "backends/communicator/reduce.h"

namespace convoy {

// --- All-reduce of small tensors, optimised for latency: few allocations, one MPI call per poll ---

namespace {

// Open MPI's shared memory carries up to 4 KiB with header at once. A longer message costs a handshake and a system
// call that reads the peer's memory, so a few short pieces are faster.
constexpr int piece_bytes = 3968, most_pieces = 4;

int pieces_of(int bytes) {
  const int pieces = (bytes + piece_bytes - 1) / piece_bytes;
  return pieces <= most_pieces ? std::max(pieces, 1) : 1;
}

class SmallAllReduce final : public MpiOperation {
 public:
  SmallAllReduce(std::shared_ptr<MpiGroup> group, const at::Tensor& tensor, int tag, ReduceOp op)
      : MpiOperation(std::move(group), {tensor}),
        mine_(static_cast<char*>(tensor.data_ptr())),
        bytes_(int(tensor.nbytes())),
        elements_(tensor.numel()),
        dtype_(tensor.scalar_type()),
        op_(op),
        tag_(tag),
        others_(group_->size() - 1),
        pieces_(pieces_of(bytes_)),
        piece_((bytes_ + pieces_ - 1) / pieces_),
        received_(new char[size_t(others_) * size_t(bytes_)]) {}

  std::string missing() const override {
    std::vector<int> peers;
    for (int i = 0; begun_ && i < others_; ++i) {
      const auto first = receives_.begin() + i * pieces_;
      if (std::any_of(first, first + pieces_, [](MPI_Request one) { return one != MPI_REQUEST_NULL; }))
        peers.push_back(peer(i));
    }
    return nothing_from(peers);
  }

 protected:
  bool advance(bool& moved) override {
    if (!begun_) begin();
    const int messages = others_ * pieces_;
    if (arrived_ < messages) moved = take(messages) || moved;
    if (arrived_ < messages) return false;
    int sent = 0;
    check_mpi(MPI_Testall(messages, sends_.data(), &sent, MPI_STATUSES_IGNORE), "send");
    if (!sent) return false;
    moved = true;
    std::vector<const void*> in;
    in.reserve(size_t(others_) + 1);
    for (int i = 0; i < others_; ++i) {
      if (i == group_->rank) in.push_back(mine_);
      in.push_back(buffer(i));
    }
    if (others_ == group_->rank) in.push_back(mine_);
    reduce(mine_, in, elements_, dtype_, op_);
    return true;
  }

 private:
  int peer(int i) const { return i < group_->rank ? i : i + 1; }
  char* buffer(int i) const { return received_.get() + size_t(i) * size_t(bytes_); }

  int length(int k) const { return std::min(piece_, bytes_ - k * piece_); }

  // Starts receives first, so that arriving messages find their buffers. Pieces arrive in the order of their sends.
  void begin() {
    begun_ = true;
    const auto count = size_t(others_ * pieces_);
    receives_.assign(count, MPI_REQUEST_NULL);
    sends_.assign(count, MPI_REQUEST_NULL);
    for (int i = 0; i < others_ * pieces_; ++i) {
      const int from = i / pieces_, k = i % pieces_;
      check_mpi(MPI_Irecv(buffer(from) + k * piece_, length(k), MPI_BYTE, group_->world[size_t(peer(from))], tag_,
                          group_->comm, &receives_[size_t(i)]),
                "receive", peer(from));
    }
    for (int i = 0; i < others_ * pieces_; ++i) {
      const int to = i / pieces_, k = i % pieces_;
      check_mpi(MPI_Isend(mine_ + k * piece_, length(k), MPI_BYTE, group_->world[size_t(peer(to))], tag_, group_->comm,
                          &sends_[size_t(i)]),
                "send", peer(to));
    }
  }

  // Checks messages as they arrive: a wrong length is reported before all messages have arrived.
  bool take(int messages) {
    constexpr int at_once = 8;
    int done = 0, which[at_once];
    MPI_Status statuses[at_once];
    bool any = false;
    for (int first = 0; first < messages; first += at_once) {
      const int count = std::min(at_once, messages - first);
      const int code = MPI_Testsome(count, &receives_[size_t(first)], &done, which, statuses);
      for (int i = 0; i < done && done != MPI_UNDEFINED; ++i) {
        const int message = first + which[i];
        if (code == MPI_ERR_IN_STATUS) check_mpi(statuses[i].MPI_ERROR, "receive", peer(message / pieces_));
        check_mpi_length(statuses[i], length(message % pieces_), peer(message / pieces_));
        ++arrived_;
        any = true;
      }
      if (code != MPI_ERR_IN_STATUS) check_mpi(code, "receive");
    }
    return any;
  }

  char* const mine_;
  const int bytes_;
  const int64_t elements_;
  const at::ScalarType dtype_;
  const ReduceOp op_;
  const int tag_;
  const int others_;
  const int pieces_, piece_;                   // messages per peer, and bytes of each; the last may be shorter
  const std::unique_ptr<char[]> received_;     // from the other ranks, in order of ranks
  std::vector<MPI_Request> receives_, sends_;  // by peer and piece
  int arrived_ = 0;                            // messages
  bool begun_ = false;
};

}  // namespace

MpiOperationPtr mpi_small_all_reduce(std::shared_ptr<MpiGroup> group, const at::Tensor& tensor, int tag, ReduceOp op) {
  return std::make_shared<SmallAllReduce>(std::move(group), tensor, tag, op);
}

namespace {

constexpr int64_t largest_message = int64_t{1} << 30;
constexpr int64_t segment_bytes = 256 << 10;  // a sum and its operands stay in the second-level cache
constexpr int64_t window = 4;                 // active segments per peer and direction

// An ordered stream of messages to or from one peer; at most `window` are active.
class Lane {
 public:
  Lane(const MpiGroup& group, bool send, int peer, int tag) : group_(&group), send_(send), peer_(peer), tag_(tag) {}

  int peer() const { return peer_; }
  int64_t posted() const { return posted_; }
  int64_t completed() const { return completed_; }
  bool has_room() const { return posted_ - completed_ < window; }

  void post(void* data, int64_t bytes) {
    MPI_Request request = MPI_REQUEST_NULL;
    int count = int(bytes);
    int to = group_->world[peer_];
    if (send_) {
      check_mpi(MPI_Isend(data, count, MPI_BYTE, to, tag_, group_->comm, &request), "send", peer_);
    } else {
      check_mpi(MPI_Irecv(data, count, MPI_BYTE, to, tag_, group_->comm, &request), "receive", peer_);
    }
    if (first_ == requests_.size()) {
      requests_.clear();
      first_ = 0;
    }
    requests_.emplace_back(request, count);
    ++posted_;
  }

  // Completes finished messages in order; true if there was one.
  bool take() {
    int64_t before = completed_;
    while (first_ < requests_.size()) {
      int done = 0;
      MPI_Status status;
      auto& [request, count] = requests_[first_];
      check_mpi(MPI_Test(&request, &done, &status), send_ ? "send" : "receive", peer_);
      if (!done) break;
      if (!send_) check_mpi_length(status, count, peer_);
      ++first_;
      ++completed_;
    }
    return completed_ != before;
  }

 private:
  const MpiGroup* group_;
  bool send_;
  int peer_;
  int tag_;
  int64_t posted_ = 0, completed_ = 0;
  std::vector<std::pair<MPI_Request, int>> requests_;  // requests from first_ on are active
  size_t first_ = 0;
};

// Posts segments in order, up to `limit`, while the lane has room.
void fill(Lane& lane, const Segments& segments, int64_t limit) {
  while (lane.posted() < limit && lane.has_room())
    lane.post(segments.at(lane.posted()), segments.length(lane.posted()));
}

class Exchange final : public MpiOperation {
 public:
  Exchange(std::shared_ptr<MpiGroup> group, std::vector<at::Tensor> tensors, int tag,
           const std::vector<MpiMessage>& messages)
      : MpiOperation(std::move(group), std::move(tensors)) {
    // Starts receives first, so that arriving messages find their buffers.
    for (bool send : {false, true}) {
      for (const MpiMessage& message : messages) {
        if (message.send == send)
          streams_.push_back(
              {Lane(*group_, send, message.peer, tag), {message.data, message.bytes, largest_message}, send});
      }
    }
  }

  std::string missing() const override {
    std::vector<int> peers;
    for (const Stream& one : streams_)
      if (!one.send && !one.over()) peers.push_back(one.lane.peer());
    return nothing_from(peers);
  }

 protected:
  bool advance(bool& moved) override {
    bool all = true;
    for (Stream& one : streams_) fill(one.lane, one.segments, one.segments.count());
    for (Stream& one : streams_) {
      moved = one.lane.take() || moved;
      all = all && one.over();
    }
    return all;
  }

 private:
  struct Stream {
    Lane lane;
    Segments segments;
    bool send;
    bool over() const { return lane.completed() == segments.count(); }
  };
  std::vector<Stream> streams_;
};

class ReduceScatter final : public MpiOperation {
 public:
  ReduceScatter(std::shared_ptr<MpiGroup> group, std::vector<at::Tensor> tensors, int tag,
                const MpiReduction& reduction)
      : MpiOperation(std::move(group), std::move(tensors)), what_(reduction) {
    int me = group_->rank;
    for (int r = 0; r < group_->size(); ++r) {
      shards_.push_back({what_.input + what_.shards[r], what_.shards[r + 1] - what_.shards[r], segment_bytes});
      if (r == me) continue;
      peers_.push_back({r, Lane(*group_, true, r, tag), Lane(*group_, false, r, tag), Lane(*group_, true, r, tag + 1),
                        Lane(*group_, false, r, tag + 1)});
    }
    mine_ = shards_[me];
    int64_t slots = std::min(window, mine_.count());
    scratch_.reset(new char[slots * peers_.size() * segment_bytes]);
  }

  std::string missing() const override {
    std::vector<int> ranks;
    for (const Peer& peer : peers_) {
      bool waits = peer.parts_in.completed() < mine_.count() ||
                   (what_.gather && peer.sums_in.completed() < shards_[peer.rank].count());
      if (waits) ranks.push_back(peer.rank);
    }
    return nothing_from(ranks);
  }

 protected:
  bool advance(bool& moved) override {
    bool all = true;
    for (size_t i = 0; i < peers_.size(); ++i) {
      Peer& peer = peers_[i];
      const Segments& theirs = shards_[peer.rank];
      while (peer.parts_in.posted() < std::min(mine_.count(), reduced_ + window)) {
        int64_t k = peer.parts_in.posted();
        peer.parts_in.post(slot(k, i), mine_.length(k));
      }
      fill(peer.parts_out, theirs, theirs.count());
      moved = peer.parts_out.take() || moved;
      moved = peer.parts_in.take() || moved;
    }
    while (reduced_ < mine_.count() && arrived(reduced_)) add_up(reduced_++);
    for (Peer& peer : peers_) {
      const Segments& theirs = shards_[peer.rank];
      all = all && peer.parts_out.completed() == theirs.count() && reduced_ == mine_.count();
      if (!what_.gather) continue;
      fill(peer.sums_out, mine_, reduced_);
      // A received sum overwrites the bytes that were sent to its owner, so that send must complete first.
      fill(peer.sums_in, theirs, peer.parts_out.completed());
      moved = peer.sums_out.take() || moved;
      moved = peer.sums_in.take() || moved;
      all = all && peer.sums_out.completed() == mine_.count() && peer.sums_in.completed() == theirs.count();
    }
    return all;
  }

 private:
  struct Peer {
    int rank;
    Lane parts_out, parts_in, sums_out, sums_in;
  };

  char* slot(int64_t k, size_t peer) { return scratch_.get() + ((k % window) * peers_.size() + peer) * segment_bytes; }
  bool arrived(int64_t k) const {
    return std::all_of(peers_.begin(), peers_.end(), [k](const Peer& peer) { return peer.parts_in.completed() > k; });
  }
  void add_up(int64_t k) {
    std::vector<const void*> in;
    for (size_t i = 0; i < peers_.size(); ++i) {
      if (int(in.size()) == group_->rank) in.push_back(mine_.at(k));
      in.push_back(slot(k, i));
    }
    if (int(in.size()) == group_->rank) in.push_back(mine_.at(k));
    int64_t elements = mine_.length(k) / int64_t(c10::elementSize(what_.dtype));
    reduce(what_.output + k * segment_bytes, in, elements, what_.dtype, what_.op);
  }

  MpiReduction what_;
  std::vector<Segments> shards_;
  Segments mine_;
  std::vector<Peer> peers_;
  std::unique_ptr<char[]> scratch_;
  int64_t reduced_ = 0;
};

class Broadcast final : public MpiOperation {
 public:
  Broadcast(std::shared_ptr<MpiGroup> group, const at::Tensor& tensor, int tag, int root)
      : MpiOperation(std::move(group), {tensor}) {
    const int64_t bytes = tensor.numel();
    segments_ = {static_cast<char*>(tensor.data_ptr()), bytes, std::clamp(bytes / 16, segment_bytes, largest_message)};
    int n = group_->size();
    int relative_rank = (group_->rank - root + n) % n;
    auto rank_at = [&](int p) { return (p + root) % n; };
    int lowest = relative_rank == 0 ? n : relative_rank & -relative_rank;
    if (relative_rank != 0) parent_.emplace_back(*group_, false, rank_at(relative_rank - lowest), tag);
    for (int distance = 1; distance < lowest && relative_rank + distance < n; distance *= 2) {
      children_.emplace_back(*group_, true, rank_at(relative_rank + distance), tag);
    }
    std::reverse(children_.begin(), children_.end());  // largest subtree first
  }

  std::string missing() const override {
    bool waits = !parent_.empty() && parent_[0].completed() < segments_.count();
    return waits ? nothing_from({parent_[0].peer()}) : "";
  }

 protected:
  bool advance(bool& moved) override {
    int64_t here = segments_.count();
    if (!parent_.empty()) {
      Lane& in = parent_[0];
      fill(in, segments_, segments_.count());
      moved = in.take() || moved;
      here = in.completed();
    }
    bool all = here == segments_.count();
    for (Lane& out : children_) {
      fill(out, segments_, here);
      moved = out.take() || moved;
      all = all && out.completed() == segments_.count();
    }
    return all;
  }

 private:
  Segments segments_;
  std::vector<Lane> parent_;  // empty on the root
  std::vector<Lane> children_;
};

class Barrier final : public MpiOperation {
 public:
  Barrier(std::shared_ptr<MpiGroup> group, int tag) : MpiOperation(std::move(group), {}) {
    int n = group_->size(), me = group_->rank;
    for (int distance = 1; distance < n; distance *= 2) {
      rounds_.push_back(
          {Lane(*group_, true, (me + distance) % n, tag), Lane(*group_, false, (me - distance + n) % n, tag)});
    }
  }

  std::string missing() const override {
    return round_ < rounds_.size() ? nothing_from({rounds_[round_].second.peer()}) : "";
  }

 protected:
  bool advance(bool& moved) override {
    while (round_ < rounds_.size()) {
      auto& [out, in] = rounds_[round_];
      if (out.posted() == 0) {
        in.post(&nothing_, 0);
        out.post(&nothing_, 0);
      }
      out.take();
      in.take();
      if (out.completed() == 0 || in.completed() == 0) return false;
      moved = true;
      ++round_;
    }
    return true;
  }

 private:
  std::vector<std::pair<Lane, Lane>> rounds_;  // send lane, receive lane
  size_t round_ = 0;
  char nothing_ = 0;
};

}  // namespace

// 16 bits for the group, 13 for the number, 2 for the stream.
int mpi_tag(const MpiGroup& group, int64_t number) { return (group.id << 15) | int(number & 0x1fff) << 2; }
int mpi_transfer_tag(const MpiGroup& group) { return mpi_tag(group, 0) + 2; }

MpiOperationPtr mpi_exchange(std::shared_ptr<MpiGroup> group, std::vector<at::Tensor> tensors, int tag,
                             const std::vector<MpiMessage>& messages) {
  return std::make_shared<Exchange>(std::move(group), std::move(tensors), tag, messages);
}
MpiOperationPtr mpi_reduce_scatter(std::shared_ptr<MpiGroup> group, std::vector<at::Tensor> tensors, int tag,
                                   const MpiReduction& reduction) {
  return std::make_shared<ReduceScatter>(std::move(group), std::move(tensors), tag, reduction);
}
MpiOperationPtr mpi_broadcast(std::shared_ptr<MpiGroup> group, const at::Tensor& tensor, int tag, int root) {
  return std::make_shared<Broadcast>(std::move(group), tensor, tag, root);
}
MpiOperationPtr mpi_barrier(std::shared_ptr<MpiGroup> group, int tag) {
  return std::make_shared<Barrier>(std::move(group), tag);
}

}  // namespace convoy
