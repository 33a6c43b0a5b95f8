// Backend nccl: adapts c10d's ProcessGroupNCCL, which is part of LibTorch with CUDA. Tensors on the host are staged on
// the rank's GPU. `wait` orders the current stream after the result by an event and does not block the host.
//
// Time limits: `wait` records an event after the result, and a DeadlineWatch follows it. A late event fails the group,
// so that its next operation throws, and aborts NCCL's communicators, so that a blocked host returns. c10d's own
// watchdog acts later: it would end the process without naming step or tensor.
// CUDA graphs: this file makes no device queries while the current stream is captured. Captured operations have no
// separate time limit; the trainer limits the graph's launches.
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "backends/c10d/store.h"
#include "backends/communicator/call.h"
#include "backends/communicator/completion.h"
#include "backends/communicator/group.h"
#include "backends/cuda/module/registry.h"

namespace convoy {
namespace {

// Returns a function of the CUDA runtime that LibTorch has loaded; null if the runtime is linked into LibTorch.
template <class Function>
Function* cuda_runtime(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

// True while the current stream is captured into a graph: its events must not be queried then.
bool capturing() {
  static auto* const ask = cuda_runtime<cudaError_t(cudaStream_t, cudaStreamCaptureStatus*)>("cudaStreamIsCapturing");
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return ask != nullptr && ask(c10::cuda::getCurrentCUDAStream().stream(), &status) == cudaSuccess &&
         status != cudaStreamCaptureStatusNone;
}

// A capture in another thread forbids calls on this thread, unless this thread selects the relaxed mode.
void allow_during_captures() {
  static auto* const exchange =
      cuda_runtime<cudaError_t(cudaStreamCaptureMode*)>("cudaThreadExchangeStreamCaptureMode");
  cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;
  if (exchange != nullptr) exchange(&mode);
}

// State that the operations of one group share.
class NcclGroup {
 public:
  NcclGroup(c10::intrusive_ptr<c10d::ProcessGroupNCCL> group, std::shared_ptr<DeadlineWatch> watch)
      : group_(std::move(group)), watch_(std::move(watch)) {}

  c10d::ProcessGroupNCCL& operator*() const { return *group_; }

  void check() const {
    std::lock_guard lock(mutex_);
    if (failure_) throw *failure_;
  }

  bool failed() const {
    std::lock_guard lock(mutex_);
    return failure_.has_value();
  }

  void fail(const CommError& error) {
    {
      std::lock_guard lock(mutex_);
      if (failure_) return;
      failure_ = error;
    }
    // Aborting communicators may take long, and the thread that reports a failure must not wait.
    std::thread([group = group_] {
      try {
        group->abort();
      } catch (const std::exception&) {
        // The group has failed in any case.
      }
    }).detach();
  }

  DeadlineWatch& watch() const { return *watch_; }

 private:
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> group_;
  std::shared_ptr<DeadlineWatch> watch_;
  mutable std::mutex mutex_;
  std::optional<CommError> failure_;
};

// Keeps the tensors until the host has seen the end of the operation, or has ordered its stream after that end. If no
// thread waits for the work, c10d keeps the tensors. The allocator keeps memory that a stream still uses.
class NcclPendingOperation final : public PendingOperation {
 public:
  NcclPendingOperation(std::shared_ptr<NcclGroup> group, const Call& call, c10::intrusive_ptr<c10d::Work> work,
                       std::vector<at::Tensor> tensors)
      : group_(std::move(group)), call_(call), work_(std::move(work)), tensors_(std::move(tensors)) {}

  bool done() override { return group_->failed() || (!capturing() && work_->isCompleted()); }
  bool soon() override { return true; }  // wait_until only orders streams
  bool wait_until(Clock::time_point) override {
    group_->check();
    try {
      work_->wait();
    } catch (const std::exception& error) {
      throw CommError(Failure::peer_lost, -1, "NCCL: ", message_without_backtrace(error));
    }
    if (!capturing()) follow();
    return true;
  }

 private:
  // Records an event on the current stream, after the result and all earlier work, and watches it.
  void follow() {
    auto event = std::make_shared<c10::Event>(at::kCUDA);
    event->record(c10::cuda::getCurrentCUDAStream().unwrap());
    auto late = [group = std::weak_ptr<NcclGroup>(group_), call = call_] {
      if (auto alive = group.lock())
        alive->fail(CommError(Failure::hang, -1, describe_call(call), " did not end on the device within ",
                              human_seconds(1e-3 * double(call.timeout.count())),
                              ". A peer is stopped, slow or waits elsewhere; where it is only slow, raise "
                              "launch.collective."));
    };
    group_->watch().follow([event] { return event->query(); }, issued_ + call_.timeout, std::move(late));
  }

  std::shared_ptr<NcclGroup> group_;
  const Call call_;
  const Clock::time_point issued_ = Clock::now();
  c10::intrusive_ptr<c10d::Work> work_;
  std::vector<at::Tensor> tensors_;
};

class NcclTransport final : public Transport {
 public:
  NcclTransport(const BackendRequest& request, const std::string& label, int rank, int size,
                std::chrono::milliseconds rendezvous, std::shared_ptr<DeadlineWatch> watch)
      : request_(request), rank_(rank), size_(size), watch_(std::move(watch)) {
    // The control channel reports a lost peer; c10d would end this process instead and hide the failure cause.
    static const int unhandled = setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", 0);
    (void)unhandled;
    auto store = c10::make_intrusive<ChannelBackedStore>(request.channel, str("nccl/", request.job, "/", label, "/"),
                                                         rendezvous);
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = c10d_limit(request.timeout);
    group_ =
        std::make_shared<NcclGroup>(c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options), watch_);
  }

  std::vector<at::DeviceType> devices() const override { return {at::kCUDA}; }

  PendingOperationPtr all_reduce(const Call& call, at::Tensor tensor, ReduceOp op) override {
    group_->check();
    auto options = c10d_options<c10d::AllreduceOptions>(call);
    options.reduceOp = translate(op);
    std::vector<at::Tensor> tensors{tensor};
    return follow(call, (**group_).allreduce(tensors, options), {tensor});
  }

  PendingOperationPtr all_gather(const Call& call, at::Tensor output, const Offsets& bounds,
                                 at::Tensor input) override {
    group_->check();
    auto bytes = lengths(bounds);
    if (std::all_of(bytes.begin(), bytes.end(), [&](int64_t b) { return b == bytes[0]; })) {
      const auto options = c10d_options<c10d::AllgatherOptions>(call);
      return follow(call, (**group_)._allgather_base(output, input, options), {output, input});
    }
    // Uneven shares: every rank sends to every rank, in one launch.
    output.narrow(0, bounds[rank_], input.numel()).copy_(input);
    std::vector<Transfer> transfers;
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      if (input.numel() > 0) transfers.push_back({Transfer::Kind::send, input, r});
      if (bytes[r] > 0) transfers.push_back({Transfer::Kind::receive, output.narrow(0, bounds[r], bytes[r]), r});
    }
    return exchange(call, transfers);
  }

  PendingOperationPtr all_to_all(const Call& call, at::Tensor output, const Offsets& output_bounds, at::Tensor input,
                                 const Offsets& input_bounds) override {
    group_->check();
    auto options = c10d_options<c10d::AllToAllOptions>(call);
    auto to = lengths(output_bounds), from = lengths(input_bounds);
    return follow(call, (**group_).alltoall_base(output, input, to, from, options), {output, input});
  }

  PendingOperationPtr reduce_scatter(const Call& call, at::Tensor output, at::Tensor input, ReduceOp op) override {
    group_->check();
    auto options = c10d_options<c10d::ReduceScatterOptions>(call);
    options.reduceOp = translate(op);
    return follow(call, (**group_)._reduce_scatter_base(output, input, options), {output, input});
  }

  PendingOperationPtr broadcast(const Call& call, at::Tensor tensor, int root) override {
    group_->check();
    auto options = c10d_options<c10d::BroadcastOptions>(call);
    options.rootRank = root;
    std::vector<at::Tensor> tensors{tensor};
    return follow(call, (**group_).broadcast(tensors, options), {tensor});
  }

  PendingOperationPtr exchange(const Call& call, const std::vector<Transfer>& transfers) override {
    group_->check();
    std::vector<at::Tensor> kept;
    (**group_).startCoalescing();
    for (const Transfer& one : transfers) {
      std::vector<at::Tensor> tensors{one.tensor};
      kept.push_back(one.tensor);
      if (one.kind == Transfer::Kind::send) {
        (**group_).send(tensors, one.peer, 0);
      } else {
        (**group_).recv(tensors, one.peer, 0);
      }
    }
    return follow(call, (**group_).endCoalescing(), std::move(kept));
  }

  PendingOperationPtr barrier(const Call& call) override {
    // Uses an all-reduce of one number: c10d's own barrier blocks the host.
    at::Tensor one = at::empty({1}, at::TensorOptions().dtype(at::kByte).device(request_.device)).zero_();
    return all_reduce(call, one, ReduceOp::max);
  }

  std::shared_ptr<Transport> split(const std::vector<int>& members, int rank, const std::string& label, int64_t,
                                   std::chrono::milliseconds timeout) override {
    return std::make_shared<NcclTransport>(request_, label, rank, int(members.size()), timeout, watch_);
  }

  bool must_begin_now() const override { return capturing(); }

  void fail(const std::string& reason) override { group_->fail(CommError(Failure::peer_lost, -1, reason)); }

 private:
  PendingOperationPtr follow(const Call& call, c10::intrusive_ptr<c10d::Work> work, std::vector<at::Tensor> tensors) {
    return std::make_unique<NcclPendingOperation>(group_, call, std::move(work), std::move(tensors));
  }

  BackendRequest request_;
  int rank_;
  int size_;
  std::shared_ptr<DeadlineWatch> watch_;
  std::shared_ptr<NcclGroup> group_;
};

// Returns "node1 GPU-5f2a91c4-…", unique in the job.
std::string gpu_of(const at::Device& device) {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  const auto& bytes = at::cuda::getDeviceProperties(device.index())->uuid.bytes;
  std::string text = str(host, " GPU-");
  for (size_t i = 0; i < sizeof bytes; ++i) {
    text += hex_text(reinterpret_cast<const unsigned char*>(&bytes[i]), 1);
    if (i == 3 || i == 5 || i == 7 || i == 9) text += '-';
  }
  return text;
}

}  // namespace
}  // namespace convoy

void convoy_make_nccl(const convoy::BackendRequest& request, convoy::CommunicatorPtr& made) {
  using namespace convoy;
  std::shared_ptr<Transport> transport;
  if (request.size > 1) {
    check_one_gpu_each(request.channel->agree(str("nccl/", request.job, "/gpus"), request.rank, request.size,
                                              gpu_of(request.device), request.rendezvous));
    transport = std::make_shared<NcclTransport>(request, "world", request.rank, request.size, request.rendezvous,
                                                std::make_shared<DeadlineWatch>(allow_during_captures));
  }
  made = make_world(request, "nccl", transport);
}
