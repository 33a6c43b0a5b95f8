// nccl: adapts c10d's ProcessGroupNCCL, which LibTorch with CUDA carries. Tensors on the host are staged on the rank's
// GPU. `wait` orders the current stream after the result and does not block the host; what hangs on the device is the
// watchdog's of c10d, which ends the communicator when the time limit has passed.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "backends/c10d_arguments.h"
#include "backends/c10d_store.h"
#include "backends/group.h"
#include "backends/makers.h"
#include "backends/plain_what.h"

namespace convoy {
namespace {

struct NcclState {
  std::mutex mutex;
  std::optional<std::string> failure;
};

// The tensors stay until the host has seen the end or has ordered its stream after it: c10d keeps those of works that
// were not waited for, and the allocator those that a stream still uses.
class NcclPending final : public Pending {
 public:
  NcclPending(std::shared_ptr<NcclState> state, c10::intrusive_ptr<c10d::Work> work, std::vector<at::Tensor> tensors)
      : state_(std::move(state)), work_(std::move(work)), tensors_(std::move(tensors)) {}

  bool done() override { return work_->isCompleted(); }
  bool wait_until(Clock::time_point) override {
    {
      std::lock_guard lock(state_->mutex);
      if (state_->failure) throw CommError(Failure::peer_lost, -1, *state_->failure);
    }
    try {
      work_->wait();
    } catch (const std::exception& error) {
      throw CommError(Failure::peer_lost, -1, str("NCCL: ", plain_what(error)));
    }
    return true;
  }

 private:
  std::shared_ptr<NcclState> state_;
  c10::intrusive_ptr<c10d::Work> work_;
  std::vector<at::Tensor> tensors_;
};

class NcclTransport final : public Transport {
 public:
  NcclTransport(const BackendRequest& request, const std::string& label, int rank, int size,
                std::chrono::milliseconds rendezvous)
      : request_(request), rank_(rank), size_(size) {
    auto store = c10::make_intrusive<ChannelBackedStore>(request.channel, str("nccl/", request.job, "/", label, "/"),
                                                         rendezvous);
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = request.timeout;
    group_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
  }

  Capabilities capabilities() const override {
    return {{at::kCUDA},
            {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kInt, at::kLong, at::kByte, at::kBool},
            true};
  }

  PendingPtr all_reduce(const Call& call, at::Tensor tensor, ReduceOp op) override {
    c10d::AllreduceOptions options;
    options.reduceOp = translate(op);
    options.timeout = call.timeout;
    std::vector<at::Tensor> tensors{tensor};
    return follow(group_->allreduce(tensors, options), {tensor});
  }

  PendingPtr all_gather(const Call& call, at::Tensor output, const Offsets& parts, at::Tensor input) override {
    auto bytes = lengths(parts);
    if (std::all_of(bytes.begin(), bytes.end(), [&](int64_t b) { return b == bytes[0]; })) {
      c10d::AllgatherOptions options;
      options.timeout = call.timeout;
      return follow(group_->_allgather_base(output, input, options), {output, input});
    }
    // Unequal parts: everyone sends to everyone, in one launch.
    output.narrow(0, parts[rank_], input.numel()).copy_(input);
    std::vector<Transfer> transfers;
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      if (input.numel() > 0) transfers.push_back({Transfer::Kind::send, input, r});
      if (bytes[r] > 0) transfers.push_back({Transfer::Kind::receive, output.narrow(0, parts[r], bytes[r]), r});
    }
    return exchange(call, transfers);
  }

  PendingPtr all_to_all(const Call& call, at::Tensor output, const Offsets& output_parts, at::Tensor input,
                        const Offsets& input_parts) override {
    c10d::AllToAllOptions options;
    options.timeout = call.timeout;
    auto to = lengths(output_parts), from = lengths(input_parts);
    return follow(group_->alltoall_base(output, input, to, from, options), {output, input});
  }

  PendingPtr reduce_scatter(const Call& call, at::Tensor output, at::Tensor input, ReduceOp op) override {
    c10d::ReduceScatterOptions options;
    options.reduceOp = translate(op);
    options.timeout = call.timeout;
    return follow(group_->_reduce_scatter_base(output, input, options), {output, input});
  }

  PendingPtr broadcast(const Call& call, at::Tensor tensor, int root) override {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = call.timeout;
    std::vector<at::Tensor> tensors{tensor};
    return follow(group_->broadcast(tensors, options), {tensor});
  }

  PendingPtr exchange(const Call&, const std::vector<Transfer>& transfers) override {
    std::vector<at::Tensor> kept;
    group_->startCoalescing();
    for (const Transfer& one : transfers) {
      std::vector<at::Tensor> tensors{one.tensor};
      kept.push_back(one.tensor);
      if (one.kind == Transfer::Kind::send) {
        group_->send(tensors, one.peer, 0);
      } else {
        group_->recv(tensors, one.peer, 0);
      }
    }
    return follow(group_->endCoalescing(), std::move(kept));
  }

  PendingPtr barrier(const Call& call) override {
    // An all-reduce of one number, and not c10d's own barrier, which blocks the host.
    at::Tensor one = at::empty({1}, at::TensorOptions().dtype(at::kByte).device(request_.device)).zero_();
    return all_reduce(call, one, ReduceOp::max);
  }

  std::shared_ptr<Transport> split(const std::vector<int>& members, int rank, const std::string& label, int64_t,
                                   std::chrono::milliseconds timeout) override {
    if (members.size() == 1) return nullptr;
    return std::make_shared<NcclTransport>(request_, label, rank, static_cast<int>(members.size()), timeout);
  }

  void fail(const std::string& reason) override {
    {
      std::lock_guard lock(state_->mutex);
      if (!state_->failure) state_->failure = reason;
    }
    // Ending communicators may take a while, and whoever tells of a failure must not wait.
    std::thread([group = group_] {
      try {
        group->abort();
      } catch (const std::exception&) {
        // The group is given up in any case.
      }
    }).detach();
  }

 private:
  PendingPtr follow(c10::intrusive_ptr<c10d::Work> work, std::vector<at::Tensor> tensors) {
    return std::make_unique<NcclPending>(state_, std::move(work), std::move(tensors));
  }

  BackendRequest request_;
  int rank_;
  int size_;
  std::shared_ptr<NcclState> state_ = std::make_shared<NcclState>();
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> group_;
};

CommunicatorPtr make_nccl(const BackendRequest& request) {
  if (!request.device.is_cuda()) {
    throw Error(Failure::device_missing, str("backend nccl needs a GPU per rank, and rank ", request.rank, " has ",
                                             request.device.str(), "; use backend gloo or mpi on the CPU"));
  }
  std::shared_ptr<Transport> transport;
  if (request.size > 1) {
    transport = std::make_shared<NcclTransport>(request, "world", request.rank, request.size, request.rendezvous);
  }
  return make_world(request, "nccl", transport);
}

}  // namespace

BackendFactory nccl_backend() { return make_nccl; }

}  // namespace convoy
