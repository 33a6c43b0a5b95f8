// mpi: ours, on Open MPI's sends and receives. One rank per process. Tensors on GPUs are staged through pinned memory; where
// the library takes pointers to GPU memory it is given them for what is only moved, and sums alone are made on the host.
#include <algorithm>
#include <cstring>
#include <thread>

#include "backends/group.h"
#include "backends/host_transport.h"
#include "backends/makers.h"
#include "backends/mpi_engine.h"
#include "backends/mpi_operations.h"

namespace convoy {
namespace {

// Up to here a rank sends the whole tensor to all: one message's latency instead of two.
constexpr int64_t small_bytes = 64 << 10;

char* data_of(const at::Tensor& tensor) { return static_cast<char*>(tensor.data_ptr()); }

// An operation on host copies of tensors on a GPU.
class StagedPending final : public Pending {
 public:
  StagedPending(Staging staging, PendingPtr inner) : staging_(std::move(staging)), inner_(std::move(inner)) {}
  bool done() override { return inner_->done(); }
  bool soon() override { return inner_->soon(); }
  bool wait_until(Clock::time_point deadline) override {
    if (!inner_->wait_until(deadline)) return false;
    staging_.finish();
    staging_.drop();
    return true;
  }
  std::string missing() override { return inner_->missing(); }

 private:
  Staging staging_;
  PendingPtr inner_;
};

// MPI knows no streams: it is given memory that is ready.
void copy_own(const at::Tensor& to, int64_t to_byte, const at::Tensor& from, int64_t from_byte, int64_t bytes) {
  if (bytes == 0) return;
  if (to.is_cpu()) {
    std::memcpy(data_of(to) + to_byte, data_of(from) + from_byte, static_cast<size_t>(bytes));
  } else {
    to.narrow(0, to_byte, bytes).copy_(from.narrow(0, from_byte, bytes));
  }
}

class MpiTransport final : public Transport {
 public:
  MpiTransport(std::shared_ptr<MpiEngine> engine, std::shared_ptr<MpiGroup> group)
      : engine_(std::move(engine)), group_(std::move(group)) {}

  Capabilities capabilities() const override {
    std::vector<at::DeviceType> devices{at::kCPU};
    if (engine_->takes_cuda()) devices.push_back(at::kCUDA);
    return {devices,
            {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kInt, at::kLong, at::kByte, at::kBool},
            engine_->takes_cuda()};
  }

  PendingPtr all_reduce(const Call& call, at::Tensor tensor, ReduceOp op) override {
    if (!tensor.is_cpu()) {
      Staging staging({at::kCPU}, at::kCPU);
      PendingPtr inner = all_reduce(call, staging.output(tensor, true), op);
      return std::make_unique<StagedPending>(std::move(staging), std::move(inner));
    }
    int64_t bytes = static_cast<int64_t>(tensor.nbytes());
    if (bytes * (size() - 1) <= small_bytes) return start(mpi_small_all_reduce(group_, tensor, next_tag(), op));
    int64_t unit = tensor.element_size();
    MpiReduction reduction{data_of(tensor), {}, nullptr, true, tensor.scalar_type(), op};
    // Slices begin at multiples of a cache line.
    int64_t share = (bytes / size() + 63) / 64 * 64;
    for (int r = 0; r <= size(); ++r) reduction.slices.push_back(r == size() ? bytes : std::min(bytes, r * share));
    CONVOY_CHECK(64 % unit == 0, "elements of ", unit, " bytes");
    reduction.output = reduction.input + reduction.slices[group_->rank];
    return start(mpi_reduce_scatter(group_, {tensor}, next_tag(), reduction));
  }

  PendingPtr all_gather(const Call&, at::Tensor output, const Offsets& parts, at::Tensor input) override {
    copy_own(output, parts[group_->rank], input, 0, input.numel());
    finish_stream(output.device());
    std::vector<MpiMessage> messages;
    for (int r = 0; r < size(); ++r) {
      if (r == group_->rank) continue;
      messages.push_back({false, data_of(output) + parts[r], parts[r + 1] - parts[r], r});
      messages.push_back({true, data_of(input), input.numel(), r});
    }
    return exchange({output, input}, next_tag(), messages);
  }

  PendingPtr all_to_all(const Call&, at::Tensor output, const Offsets& output_parts, at::Tensor input,
                        const Offsets& input_parts) override {
    int me = group_->rank;
    int64_t own = input_parts[me + 1] - input_parts[me];
    copy_own(output, output_parts[me], input, input_parts[me], own);
    finish_stream(output.device());
    std::vector<MpiMessage> messages;
    for (int step = 1; step < size(); ++step) {
      int to = (me + step) % size(), from = (me - step + size()) % size();
      messages.push_back(
          {false, data_of(output) + output_parts[from], output_parts[from + 1] - output_parts[from], from});
      messages.push_back({true, data_of(input) + input_parts[to], input_parts[to + 1] - input_parts[to], to});
    }
    return exchange({output, input}, next_tag(), messages);
  }

  PendingPtr reduce_scatter(const Call& call, at::Tensor output, at::Tensor input, ReduceOp op) override {
    if (!output.is_cpu()) {
      Staging staging({at::kCPU}, at::kCPU);
      at::Tensor from = staging.input(input);
      PendingPtr inner = reduce_scatter(call, staging.output(output), from, op);
      return std::make_unique<StagedPending>(std::move(staging), std::move(inner));
    }
    MpiReduction reduction{data_of(input), {}, data_of(output), false, output.scalar_type(), op};
    for (int r = 0; r <= size(); ++r) reduction.slices.push_back(r * static_cast<int64_t>(output.nbytes()));
    return start(mpi_reduce_scatter(group_, {output, input}, next_tag(), reduction));
  }

  PendingPtr broadcast(const Call&, at::Tensor tensor, int root) override {
    finish_stream(tensor.device());
    return start(mpi_broadcast(group_, {tensor}, next_tag(), data_of(tensor), tensor.numel(), root));
  }

  PendingPtr exchange(const Call&, const std::vector<Transfer>& transfers) override {
    std::vector<MpiMessage> messages;
    std::vector<at::Tensor> tensors;
    for (const Transfer& one : transfers) {
      messages.push_back({one.kind == Transfer::Kind::send, data_of(one.tensor), one.tensor.numel(), one.peer});
      tensors.push_back(one.tensor);
      finish_stream(one.tensor.device());
    }
    return exchange(std::move(tensors), mpi_transfer_tag(*group_), std::move(messages));
  }

  PendingPtr barrier(const Call&) override { return start(mpi_barrier(group_, next_tag())); }

  int64_t propose() override { return engine_->reserve_id(); }

  std::shared_ptr<Transport> split(const std::vector<int>& members, int rank, const std::string&, int64_t agreed,
                                   std::chrono::milliseconds) override {
    engine_->know_id(static_cast<int>(agreed));
    if (members.size() == 1) return nullptr;
    auto group = std::make_shared<MpiGroup>();
    group->comm = group_->comm;
    group->rank = rank;
    group->id = static_cast<int>(agreed);
    for (int member : members) group->world.push_back(group_->world[member]);
    return std::make_shared<MpiTransport>(engine_, group);
  }

  void fail(const std::string& reason) override { engine_->fail(*group_, reason); }

 private:
  int size() const { return group_->size(); }
  int next_tag() { return mpi_tag(*group_, number_++); }

  PendingPtr start(MpiOperationPtr operation) {
    engine_->start(operation);
    return std::make_unique<ProgressPending>(engine_, std::move(operation));
  }
  PendingPtr exchange(std::vector<at::Tensor> tensors, int tag, std::vector<MpiMessage> messages,
                      std::function<void()> finish = {}) {
    return start(mpi_exchange(group_, std::move(tensors), tag, std::move(messages), std::move(finish)));
  }

  std::shared_ptr<MpiEngine> engine_;
  std::shared_ptr<MpiGroup> group_;
  int64_t number_ = 0;
};

constexpr auto straggler_patience = std::chrono::seconds(1);

// MPI of this process, made when it is first asked for.
class MpiHome {
 public:
  MpiHome() = default;
  // The channel's thread may still hold a group that it was told about. MPI_Finalize is this thread's, and before the process
  // ends: a rank that leaves without it is a failure to whoever started it.
  ~MpiHome() {
    const auto deadline = Clock::now() + straggler_patience;
    while (engine_.use_count() > 1 && Clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  MpiHome(const MpiHome&) = delete;
  MpiHome& operator=(const MpiHome&) = delete;

  CommunicatorPtr make(const BackendRequest& request) {
    std::lock_guard lock(mutex_);
    if (request.size == 1) return make_world(request, "mpi", nullptr);
    auto before = world_.lock();
    if (before && before->rank() != request.rank) {
      throw Error(Failure::config,
                  "backend mpi takes one rank per process, and this process has several; use backend "
                  "local or gloo for ranks that are threads");
    }
    if (!engine_) engine_ = std::make_shared<MpiEngine>();
    if (engine_->rank() != request.rank || engine_->size() != request.size) {
      throw CommError(
          Failure::rendezvous, -1,
          str("MPI says that this is rank ", engine_->rank(), " of ", engine_->size(), ", and the plan says rank ",
              request.rank, " of ", request.size, ": start as many ranks as the plan has, by mpirun -n ", request.size,
              " convoy run …, or srun --mpi=pmix -n ", request.size));
    }
    if (request.channel) {
      std::weak_ptr<MpiEngine> weak = engine_;
      auto stop = [weak] {
        if (auto engine = weak.lock()) engine->never_finalize();
      };
      request.channel->on_abort([stop](const Abort&) { stop(); });
      request.channel->on_lost(stop);
    }
    auto group = engine_->world(Clock::now() + request.rendezvous);
    auto world =
        make_world(request, "mpi", over_host_memory(std::make_shared<MpiTransport>(engine_, group), request, engine_));
    world_ = world;
    return world;
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<MpiEngine> engine_;
  std::weak_ptr<Communicator> world_;
};

}  // namespace

BackendFactory mpi_backend() {
  return [home = std::make_shared<MpiHome>()](const BackendRequest& request) { return home->make(request); };
}

}  // namespace convoy
