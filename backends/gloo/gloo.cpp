// Backend gloo: adapts c10d's ProcessGroupGloo, which is part of LibTorch. Missing operations are composed:
// reduce-scatter is an all-to-all and a reduction in order of ranks; all-gather of uneven shares is a padded all-gather
// or one broadcast per rank.
//
// c10d's worker threads keep tensors a little longer than the operation lasts. So they receive views of foreign memory,
// and Completion keeps the tensors exactly until the end of the operation.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "backends/c10d/store.h"
#include "backends/communicator/call.h"
#include "backends/communicator/completion.h"
#include "backends/communicator/group.h"
#include "backends/communicator/hosts_transport.h"
#include "backends/communicator/reduce.h"
#include "backends/gloo/gloo_accept_filter.h"
#include "backends/registry.h"
#include "core/tensors/tensor_memory.h"

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
      : request_(request),
        accept_filter_(std::make_shared<GlooAcceptFilter>(request.address)),
        rank_(rank),
        size_(size),
        waiters_(std::make_shared<WaiterPool>()) {
    // c10d's flight recorder is one per process and not safe for groups in several threads.
    static const int unrecorded = setenv("TORCH_FR_BUFFER_SIZE", "0", 0);
    (void)unrecorded;
    const auto peers = std::make_shared<GlooConnectionKeys>(rendezvous);
    auto store = c10::make_intrusive<KeyedStore>(request.channel, str("gloo/", request.job, "/", label, "/"),
                                                 rendezvous, accept_filter_->connection_key(), peers);
    auto options = c10d::ProcessGroupGloo::Options::create(rendezvous);
    options->devices = {accept_filter_->device()};
    try {
      const auto connect = [store, rank, size, options] {
        return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
      };
      group_ = request.abandons_rendezvous ? connect_or_abandon(connect) : connect();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      const std::string who =
          str("rank ", rank, " of ", size, " (gloo, group ", label, "): the ranks did not connect: ");
      if (const std::string lack = out_of_memory_text(); !lack.empty()) throw Error(Failure::out_of_memory, who, lack);
      // If a peer died, its failure is the cause and not this one. It arrives over the control channel a little later.
      if (const auto reason = abort_within(*request.channel, std::chrono::milliseconds(500)))
        throw CommError(Failure::peer_lost, -1, who, "the job ends: ", reason->message);
      if (const std::string& key = store->unset_key(); !key.empty()) {
        const std::string absent = key.substr(key.rfind('/') + 1);
        const bool world = label == "world";  // other groups number their ranks themselves
        throw CommError(Failure::rendezvous, world ? std::stoi(absent) : -1, who, "rank ", absent,
                        " has not joined within ", human_seconds(rendezvous), " (launch.rendezvous)",
                        world ? str("; see logs/rank", absent, ".log") : "");
      }
      throw CommError(Failure::rendezvous, -1, who, message_without_backtrace(error));
    }
    accept_filter_->close();  // all pairs are connected
    peers->forget();
  }

  ~GlooTransport() override {
    // c10d's destructor joins its threads; a thread in an operation that cannot complete would block it.
    if (signal_.busy()) wake_all();
  }

  std::vector<at::DeviceType> devices() const override { return {at::kCPU}; }

  PendingOperationPtr all_reduce(const Call& call, at::Tensor tensor, ReduceOp op) override {
    auto options = c10d_options<c10d::AllreduceOptions>(call);
    options.reduceOp = translate(op);
    std::vector<at::Tensor> tensors{borrowed(tensor)};
    return follow(group_->allreduce(tensors, options), {tensor});
  }

  PendingOperationPtr all_gather(const Call& call, at::Tensor output, const Offsets& bounds,
                                 at::Tensor input) override {
    auto bytes = lengths(bounds);
    int64_t largest = *std::max_element(bytes.begin(), bytes.end());
    auto options = c10d_options<c10d::AllgatherOptions>(call);
    if (largest * size_ == output.numel()) {
      at::Tensor to = borrowed(output), from = borrowed(input);
      return follow(group_->_allgather_base(to, from, options), {output, input});
    }
    if (largest * size_ > 2 * output.numel()) return gather_by_broadcasts(call, output, bounds, input);
    at::Tensor padded = at::empty({largest}, input.options());
    at::Tensor all = at::empty({largest * size_}, input.options());
    padded.narrow(0, 0, input.numel()).copy_(input);
    at::Tensor to = borrowed(all), from = borrowed(padded);
    return follow(group_->_allgather_base(to, from, options), {all, padded}, [=] {
      for (int r = 0; r < size_; ++r) {
        output.narrow(0, bounds[r], bytes[r]).copy_(all.narrow(0, r * largest, bytes[r]));
      }
    });
  }

  PendingOperationPtr all_to_all(const Call& call, at::Tensor output, const Offsets& output_bounds, at::Tensor input,
                                 const Offsets& input_bounds) override {
    auto options = c10d_options<c10d::AllToAllOptions>(call);
    auto to_counts = lengths(output_bounds), from_counts = lengths(input_bounds);
    at::Tensor to = borrowed(output), from = borrowed(input);
    return follow(group_->alltoall_base(to, from, to_counts, from_counts, options), {output, input});
  }

  PendingOperationPtr reduce_scatter(const Call& call, at::Tensor output, at::Tensor input, ReduceOp op) override {
    int64_t bytes = int64_t(output.nbytes());
    Offsets bounds(size_ + 1);
    for (int r = 0; r <= size_; ++r) bounds[r] = r * bytes;
    at::Tensor received = at::empty({bytes * size_}, input.options().dtype(at::kByte));
    auto options = c10d_options<c10d::AllToAllOptions>(call);
    auto counts = lengths(bounds);
    at::Tensor to = borrowed(received), from = borrowed(input.view(at::kByte));
    return follow(group_->alltoall_base(to, from, counts, counts, options), {received, input}, [=] {
      std::vector<const void*> in;
      for (int r = 0; r < size_; ++r) in.push_back(received.const_data_ptr<uint8_t>() + r * bytes);
      reduce(output.mutable_data_ptr(), in, output.numel(), output.scalar_type(), op);
    });
  }

  PendingOperationPtr broadcast(const Call& call, at::Tensor tensor, int root) override {
    return follow(begin_broadcast(call, tensor, root), {tensor});
  }

  PendingOperationPtr exchange(const Call&, const std::vector<Transfer>& transfers) override {
    auto pending = std::make_unique<CompletionPendingOperation>();
    for (const Transfer& one : transfers) {
      std::vector<at::Tensor> tensors{borrowed(one.tensor)};
      bool sends = one.kind == Transfer::Kind::send;
      auto work = sends ? group_->send(tensors, one.peer, 0) : group_->recv(tensors, one.peer, 0);
      auto completion = std::make_shared<Completion>(signal_, std::vector<at::Tensor>{one.tensor});
      // c10d's point-to-point work reports its end only to a thread that waits for it.
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

  PendingOperationPtr barrier(const Call& call) override {
    auto options = c10d_options<c10d::BarrierOptions>(call);
    return follow(group_->barrier(options), {});
  }

  std::shared_ptr<Transport> split(const std::vector<int>& members, int rank, const std::string& label, int64_t,
                                   std::chrono::milliseconds timeout) override {
    return std::make_shared<GlooTransport>(request_, label, rank, int(members.size()), timeout);
  }

  void fail(const std::string& reason) override {
    signal_.fail(reason);
    wake_all();
  }

 private:
  using Group = c10::intrusive_ptr<c10d::ProcessGroupGloo>;

  // gloo waits for a dead peer until its time limit, and cannot be interrupted. So another thread connects. If the job
  // ends first, this rank throws and leaves that thread alone.
  Group connect_or_abandon(const std::function<Group()>& connect) {
    struct Rendezvous {
      std::mutex mutex;
      std::condition_variable changed;
      bool connected = false, abandoned = false;
      std::exception_ptr error;
      Group group;
    };
    const auto rendezvous = std::make_shared<Rendezvous>();
    std::thread([rendezvous, connect, filter = accept_filter_] {
      Group group;
      std::exception_ptr error;
      try {
        group = connect();
      } catch (...) {
        error = std::current_exception();
      }
      const std::lock_guard lock(rendezvous->mutex);
      if (!rendezvous->abandoned) rendezvous->group = std::move(group);
      rendezvous->error = error;
      rendezvous->connected = true;
      rendezvous->changed.notify_all();
    }).detach();
    request_.channel->on_abort([rendezvous](const Abort&) {
      const std::lock_guard lock(rendezvous->mutex);
      rendezvous->abandoned = true;
      rendezvous->changed.notify_all();
    });
    std::unique_lock lock(rendezvous->mutex);
    rendezvous->changed.wait(lock, [&] { return rendezvous->connected || rendezvous->abandoned; });
    if (rendezvous->abandoned) {
      lock.unlock();
      accept_filter_->close();
      throw CommError(Failure::peer_lost, -1, "a peer was lost while the ranks connected");
    }
    if (rendezvous->error) std::rethrow_exception(rendezvous->error);
    return std::move(rendezvous->group);
  }

  static constexpr std::chrono::milliseconds forever = std::chrono::hours(24 * 365);

  c10::intrusive_ptr<c10d::Work> begin_broadcast(const Call& call, const at::Tensor& tensor, int root) {
    auto options = c10d_options<c10d::BroadcastOptions>(call);
    options.rootRank = root;
    std::vector<at::Tensor> tensors{borrowed(tensor)};
    return group_->broadcast(tensors, options);
  }

  // c10d cannot cancel an operation that one of its threads runs. But if one receive times out, gloo closes all
  // connections of the group, and every waiting thread wakes.
  void wake_all() noexcept {
    try {
      std::vector<at::Tensor> nothing{at::empty({1}, at::kByte)};
      constexpr int unused_tag = 0x7fffffff;
      group_->recv(nothing, rank_ == 0 ? 1 : 0, unused_tag)->wait(std::chrono::milliseconds(1));
    } catch (const std::exception&) {
      // The timeout is expected.
    }
  }

  PendingOperationPtr gather_by_broadcasts(const Call& call, const at::Tensor& output, const Offsets& bounds,
                                           const at::Tensor& input) {
    auto pending = std::make_unique<CompletionPendingOperation>();
    output.narrow(0, bounds[rank_], input.numel()).copy_(input);
    for (int r = 0; r < size_; ++r) {
      if (bounds[r] == bounds[r + 1]) continue;
      at::Tensor part = output.narrow(0, bounds[r], bounds[r + 1] - bounds[r]);
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

  PendingOperationPtr follow(const c10::intrusive_ptr<c10d::Work>& work, std::vector<at::Tensor> tensors,
                             std::function<void()> after = {}) {
    auto pending = std::make_unique<CompletionPendingOperation>(std::move(after));
    pending->add(attend(work, std::move(tensors)));
    return pending;
  }

  BackendRequest request_;
  std::shared_ptr<GlooAcceptFilter> accept_filter_;  // one per group: it closes when the group is connected
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
    transport = over_hosts(std::move(transport), request);
  }
  return make_world(request, "gloo", transport);
}

}  // namespace

BackendFactory gloo_backend() { return make_gloo; }

}  // namespace convoy
