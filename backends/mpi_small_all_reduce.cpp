// The all-reduce of small tensors, where each microsecond counts: few allocations, one call of MPI a poll.
#include <algorithm>

#include "backends/mpi_operations.h"
#include "backends/reduce.h"

namespace convoy {
namespace {

class SmallAllReduce final : public MpiOperation {
 public:
  SmallAllReduce(std::shared_ptr<MpiGroup> group, const at::Tensor& tensor, int tag, ReduceOp op)
      : MpiOperation(std::move(group), {tensor}),
        mine_(static_cast<char*>(tensor.data_ptr())),
        bytes_(static_cast<int>(tensor.nbytes())),
        elements_(tensor.numel()),
        dtype_(tensor.scalar_type()),
        op_(op),
        tag_(tag),
        others_(group_->size() - 1),
        received_(new char[static_cast<size_t>(others_) * static_cast<size_t>(bytes_)]) {}

  std::string missing() const override {
    std::vector<int> peers;
    for (int i = 0; begun_ && i < others_; ++i)
      if (receives_[static_cast<size_t>(i)] != MPI_REQUEST_NULL) peers.push_back(peer(i));
    return nothing_from(peers);
  }

 protected:
  bool advance(bool& moved) override {
    if (!begun_) begin();
    if (came_ < others_) moved = take() || moved;
    if (came_ < others_) return false;
    int sent = 0;
    check_mpi(MPI_Testall(others_, sends_.data(), &sent, MPI_STATUSES_IGNORE), "send");
    if (!sent) return false;
    moved = true;
    std::vector<const void*> in;
    in.reserve(static_cast<size_t>(others_) + 1);
    for (int i = 0; i < others_; ++i) {
      if (i == group_->rank) in.push_back(mine_);
      in.push_back(place(i));
    }
    if (others_ == group_->rank) in.push_back(mine_);
    reduce(mine_, in, elements_, dtype_, op_);
    return true;
  }

 private:
  int peer(int i) const { return i < group_->rank ? i : i + 1; }
  char* place(int i) const { return received_.get() + static_cast<size_t>(i) * static_cast<size_t>(bytes_); }

  // Receives first, so that what arrives finds its place.
  void begin() {
    begun_ = true;
    const auto count = static_cast<size_t>(others_);
    receives_.assign(count, MPI_REQUEST_NULL);
    sends_.assign(count, MPI_REQUEST_NULL);
    for (int i = 0; i < others_; ++i)
      check_mpi(MPI_Irecv(place(i), bytes_, MPI_BYTE, group_->world[static_cast<size_t>(peer(i))], tag_, group_->comm,
                          &receives_[static_cast<size_t>(i)]),
                "receive", peer(i));
    for (int i = 0; i < others_; ++i)
      check_mpi(MPI_Isend(mine_, bytes_, MPI_BYTE, group_->world[static_cast<size_t>(peer(i))], tag_, group_->comm,
                          &sends_[static_cast<size_t>(i)]),
                "send", peer(i));
  }

  // Whatever has come, each as it comes: a message of another length is told then and not when all are there.
  bool take() {
    constexpr int at_once = 8;
    int done = 0, which[at_once];
    MPI_Status statuses[at_once];
    bool any = false;
    for (int first = 0; first < others_; first += at_once) {
      const int count = std::min(at_once, others_ - first);
      const int code = MPI_Testsome(count, &receives_[static_cast<size_t>(first)], &done, which, statuses);
      for (int k = 0; k < done && done != MPI_UNDEFINED; ++k) {
        if (code == MPI_ERR_IN_STATUS) check_mpi(statuses[k].MPI_ERROR, "receive", peer(first + which[k]));
        check_mpi_length(statuses[k], bytes_, peer(first + which[k]));
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
  const std::unique_ptr<char[]> received_;  // from the others, in order of ranks
  std::vector<MPI_Request> receives_, sends_;
  int came_ = 0;
  bool begun_ = false;
};

}  // namespace

MpiOperationPtr mpi_small_all_reduce(std::shared_ptr<MpiGroup> group, const at::Tensor& tensor, int tag, ReduceOp op) {
  return std::make_shared<SmallAllReduce>(std::move(group), tensor, tag, op);
}

}  // namespace convoy
