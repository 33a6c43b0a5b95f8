// All-reduce of small tensors, optimised for latency: few allocations, one MPI call per poll.
#include <algorithm>

#include "backends/communicator/reduce.h"
#include "backends/mpi/mpi_operations.h"

namespace convoy {
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
    if (came_ < messages) moved = take(messages) || moved;
    if (came_ < messages) return false;
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
        ++came_;
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
  int came_ = 0;                               // messages that have arrived
  bool begun_ = false;
};

}  // namespace

MpiOperationPtr mpi_small_all_reduce(std::shared_ptr<MpiGroup> group, const at::Tensor& tensor, int tag, ReduceOp op) {
  return std::make_shared<SmallAllReduce>(std::move(group), tensor, tag, op);
}

}  // namespace convoy
