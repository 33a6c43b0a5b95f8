// gloo: adapts c10d's ProcessGroupGloo, which LibTorch carries. What it lacks is composed of what it has:
// reduce-scatter is an all-to-all and a reduction in order of ranks, all-gather of unequal parts is a padded one or a
// broadcast per rank.
//
// c10d's worker threads keep the tensors they are given a little longer than the operation lasts, so they are given
// views of foreign memory, and Completion keeps the tensors themselves exactly as long as it takes.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "backends/c10d_arguments.h"
#include "backends/c10d_store.h"
#include "backends/completion.h"
#include "backends/gloo_door.h"
#include "backends/group.h"
#include "backends/host_transport.h"
#include "backends/makers.h"
#include "backends/plain_what.h"
#include "backends/reduce.h"

namespace convoy {
namespace {

at::Tensor borrowed(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.options());
}

std::optional<Abort> abort_within(Channel& channel, std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  auto reason = channel.aborted();
  while (!reason && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    reason = channel.aborted();
  }
  return reason;
}

class GlooTransport final : public Transport {
 public:
  GlooTransport(const BackendRequest& request, const std::string& label, int rank, int size,
                std::chrono::milliseconds rendezvous)
      : request_(request), door_(request.address), rank_(rank), size_(size), waiters_(std::make_shared<WaiterPool>()) {
    // c10d's record of past operations is one for the whole process and not safe between groups of several threads.
    static const int unrecorded = setenv("TORCH_FR_BUFFER_SIZE", "0", 0);
    (void)unrecorded;
    const auto peers = std::make_shared<GlooInvitations>(rendezvous);
    auto store = c10::make_intrusive<InvitingStore>(request.channel, str("gloo/", request.job, "/", label, "/"),
                                                    rendezvous, door_.invitation(), peers);
    auto options = c10d::ProcessGroupGloo::Options::create(rendezvous);
    options->devices = {door_.device()};
    try {
      group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      const std::string who =
          str("rank ", rank, " of ", size, " (gloo, group ", label, "): the ranks did not connect: ");
      // A peer that died is the reason, not this; that it did comes over the control channel, a little later.
      if (const auto reason = abort_within(*request.channel, std::chrono::milliseconds(500)))
        throw CommError(Failure::peer_lost, -1, str(who, "the job ends: ", reason->message));
      throw CommError(Failure::rendezvous, -1, str(who, plain_what(error)));
    }
    door_.close();  // all pairs are connected
    peers->forget();
  }

  ~GlooTransport() override {
    // c10d's destructor waits for its threads; operations that nobody will finish must not hold them.
    if (signal_.busy()) wake_all();
  }

  Capabilities capabilities() const override {
    return {{at::kCPU}, {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kInt, at::kLong, at::kByte, at::kBool}};
  }

  PendingPtr all_reduce(const Call& call, at::Tensor tensor, ReduceOp op) override {
    c10d::AllreduceOptions options;
    options.reduceOp = translate(op);
    options.timeout = patience(call);
    std::vector<at::Tensor> tensors{borrowed(tensor)};
    return follow(group_->allreduce(tensors, options), {tensor});
  }

  PendingPtr all_gather(const Call& call, at::Tensor output, const Offsets& parts, at::Tensor input) override {
    auto bytes = lengths(parts);
    int64_t largest = *std::max_element(bytes.begin(), bytes.end());
    c10d::AllgatherOptions options;
    options.timeout = patience(call);
    if (largest * size_ == output.numel()) {
      at::Tensor to = borrowed(output), from = borrowed(input);
      return follow(group_->_allgather_base(to, from, options), {output, input});
    }
    if (largest * size_ > 2 * output.numel()) return gather_by_broadcasts(call, output, parts, input);
    at::Tensor padded = at::empty({largest}, input.options());
    at::Tensor all = at::empty({largest * size_}, input.options());
    padded.narrow(0, 0, input.numel()).copy_(input);
    at::Tensor to = borrowed(all), from = borrowed(padded);
    return follow(group_->_allgather_base(to, from, options), {all, padded}, [=] {
      for (int r = 0; r < size_; ++r) {
        output.narrow(0, parts[r], bytes[r]).copy_(all.narrow(0, r * largest, bytes[r]));
      }
    });
  }

  PendingPtr all_to_all(const Call& call, at::Tensor output, const Offsets& output_parts, at::Tensor input,
                        const Offsets& input_parts) override {
    c10d::AllToAllOptions options;
    options.timeout = patience(call);
    auto to_counts = lengths(output_parts), from_counts = lengths(input_parts);
    at::Tensor to = borrowed(output), from = borrowed(input);
    return follow(group_->alltoall_base(to, from, to_counts, from_counts, options), {output, input});
  }

  PendingPtr reduce_scatter(const Call& call, at::Tensor output, at::Tensor input, ReduceOp op) override {
    int64_t bytes = static_cast<int64_t>(output.nbytes());
    Offsets parts(size_ + 1);
    for (int r = 0; r <= size_; ++r) parts[r] = r * bytes;
    at::Tensor received = at::empty({bytes * size_}, input.options().dtype(at::kByte));
    c10d::AllToAllOptions options;
    options.timeout = patience(call);
    auto counts = lengths(parts);
    at::Tensor to = borrowed(received), from = borrowed(input.view(at::kByte));
    return follow(group_->alltoall_base(to, from, counts, counts, options), {received, input}, [=] {
      std::vector<const void*> in;
      for (int r = 0; r < size_; ++r) in.push_back(received.const_data_ptr<uint8_t>() + r * bytes);
      reduce(output.mutable_data_ptr(), in, output.numel(), output.scalar_type(), op);
    });
  }

  PendingPtr broadcast(const Call& call, at::Tensor tensor, int root) override {
    return follow(begin_broadcast(call, tensor, root), {tensor});
  }

  PendingPtr exchange(const Call&, const std::vector<Transfer>& transfers) override {
    auto pending = std::make_unique<CompletionPending>(signal_);
    for (const Transfer& one : transfers) {
      std::vector<at::Tensor> tensors{borrowed(one.tensor)};
      bool sends = one.kind == Transfer::Kind::send;
      auto work = sends ? group_->send(tensors, one.peer, 0) : group_->recv(tensors, one.peer, 0);
      auto completion = std::make_shared<Completion>(signal_, std::vector<at::Tensor>{one.tensor});
      // c10d's transfers tell their end only to a thread that waits for them.
      waiters_->run([work, completion] {
        std::exception_ptr error;
        try {
          work->wait(forever);
        } catch (...) {
          error = std::current_exception();
        }
        completion->finish(error);
      });
      pending->add(std::move(completion));
    }
    return pending;
  }

  PendingPtr barrier(const Call& call) override {
    c10d::BarrierOptions options;
    options.timeout = patience(call);
    return follow(group_->barrier(options), {});
  }

  std::shared_ptr<Transport> split(const std::vector<int>& members, int rank, const std::string& label, int64_t,
                                   std::chrono::milliseconds timeout) override {
    if (members.size() == 1) return nullptr;
    return std::make_shared<GlooTransport>(request_, label, rank, static_cast<int>(members.size()), timeout);
  }

  void fail(const std::string& reason) override {
    signal_.fail(reason);
    wake_all();
  }

 private:
  static constexpr std::chrono::milliseconds forever = std::chrono::hours(24 * 365);

  // The work's own limit ends first and with the better message; this one only ends threads.
  static std::chrono::milliseconds patience(const Call& call) { return 2 * call.timeout + std::chrono::seconds(10); }

  c10::intrusive_ptr<c10d::Work> begin_broadcast(const Call& call, const at::Tensor& tensor, int root) {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = patience(call);
    std::vector<at::Tensor> tensors{borrowed(tensor)};
    return group_->broadcast(tensors, options);
  }

  // Nothing in c10d ends an operation that a thread of its has begun. But where one receive runs out of time, gloo
  // closes all connections of the group, and every thread that waits for one of them wakes.
  void wake_all() noexcept {
    try {
      std::vector<at::Tensor> nothing{at::empty({1}, at::kByte)};
      constexpr int unused_tag = 0x7fffffff;
      group_->recv(nothing, rank_ == 0 ? 1 : 0, unused_tag)->wait(std::chrono::milliseconds(1));
    } catch (const std::exception&) {
      // As it should.
    }
  }

  PendingPtr gather_by_broadcasts(const Call& call, const at::Tensor& output, const Offsets& parts,
                                  const at::Tensor& input) {
    auto pending = std::make_unique<CompletionPending>(signal_);
    output.narrow(0, parts[rank_], input.numel()).copy_(input);
    for (int r = 0; r < size_; ++r) {
      if (parts[r] == parts[r + 1]) continue;
      at::Tensor part = output.narrow(0, parts[r], parts[r + 1] - parts[r]);
      pending->add(attend(begin_broadcast(call, part, r), {part}));
    }
    return pending;
  }

  std::shared_ptr<Completion> attend(const c10::intrusive_ptr<c10d::Work>& work, std::vector<at::Tensor> tensors) {
    auto completion = std::make_shared<Completion>(signal_, std::move(tensors));
    work->getFuture()->addCallback(
        [completion](c10::ivalue::Future& future) { completion->finish(future.exception_ptr()); },
        /*uses_future=*/false);
    return completion;
  }

  PendingPtr follow(const c10::intrusive_ptr<c10d::Work>& work, std::vector<at::Tensor> tensors,
                    std::function<void()> after = {}) {
    auto pending = std::make_unique<CompletionPending>(signal_, std::move(after));
    pending->add(attend(work, std::move(tensors)));
    return pending;
  }

  BackendRequest request_;
  GlooDoor door_;  // each group has its own: it closes when the group is connected
  int rank_;
  int size_;
  CompletionSignal signal_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  std::shared_ptr<WaiterPool> waiters_;
};

CommunicatorPtr make_gloo(const BackendRequest& request) {
  std::shared_ptr<Transport> transport;
  if (request.size > 1) {
    transport = std::make_shared<GlooTransport>(request, "world", request.rank, request.size, request.rendezvous);
    transport = over_host_memory(std::move(transport), request);
  }
  return make_world(request, "gloo", transport);
}

}  // namespace

BackendFactory gloo_backend() { return make_gloo; }

}  // namespace convoy
