// Backend mpi: convoy's collectives on Open MPI's sends and receives. One rank per process. Tensors on GPUs are staged
// through pinned memory. If the library accepts GPU pointers, it gets them for data movement; sums still run on the
// host.
#include <algorithm>
#include <cstring>
#include <thread>

#include "backends/communicator/group.h"
#include "backends/communicator/shared_memory_operations.h"
#include "backends/mpi/mpi_engine.h"
#include "backends/mpi/mpi_operations.h"
#include "backends/registry.h"

namespace convoy {
namespace {

// Up to this number of sent bytes a rank sends the whole tensor to all ranks: one message's latency instead of two.
constexpr int64_t small_bytes = 64 << 10;

char* data_of(const at::Tensor& tensor) { return static_cast<char*>(tensor.data_ptr()); }

// Copies within this rank. MPI does not wait for CUDA streams, so the caller has made the memory ready.
void copy_local(const at::Tensor& to, int64_t to_byte, const at::Tensor& from, int64_t from_byte, int64_t bytes) {
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

  std::vector<at::DeviceType> devices() const override {
    return engine_->takes_cuda() ? std::vector<at::DeviceType>{at::kCPU, at::kCUDA}
                                 : std::vector<at::DeviceType>{at::kCPU};
  }
  std::vector<at::DeviceType> reduction_devices() const override { return {at::kCPU}; }

  PendingOperationPtr all_reduce(const Call&, at::Tensor tensor, ReduceOp op) override {
    int64_t bytes = static_cast<int64_t>(tensor.nbytes());
    if (bytes * (size() - 1) <= small_bytes) return start(mpi_small_all_reduce(group_, tensor, next_tag(), op));
    int64_t unit = tensor.element_size();
    MpiReduction reduction{data_of(tensor), {}, nullptr, true, tensor.scalar_type(), op};
    // Shards begin at multiples of a cache line.
    int64_t share = (bytes / size() + 63) / 64 * 64;
    for (int r = 0; r <= size(); ++r) reduction.shards.push_back(r == size() ? bytes : std::min(bytes, r * share));
    CONVOY_CHECK(64 % unit == 0, "elements of ", unit, " bytes");
    reduction.output = reduction.input + reduction.shards[group_->rank];
    return start(mpi_reduce_scatter(group_, {tensor}, next_tag(), reduction));
  }

  PendingOperationPtr all_gather(const Call&, at::Tensor output, const Offsets& bounds, at::Tensor input) override {
    copy_local(output, bounds[group_->rank], input, 0, input.numel());
    finish_stream(output.device());
    std::vector<MpiMessage> messages;
    for (int r = 0; r < size(); ++r) {
      if (r == group_->rank) continue;
      messages.push_back({false, data_of(output) + bounds[r], bounds[r + 1] - bounds[r], r});
      messages.push_back({true, data_of(input), input.numel(), r});
    }
    return exchange({output, input}, next_tag(), messages);
  }

  PendingOperationPtr all_to_all(const Call&, at::Tensor output, const Offsets& output_bounds, at::Tensor input,
                                 const Offsets& input_bounds) override {
    int me = group_->rank;
    int64_t local_bytes = input_bounds[me + 1] - input_bounds[me];
    copy_local(output, output_bounds[me], input, input_bounds[me], local_bytes);
    finish_stream(output.device());
    std::vector<MpiMessage> messages;
    for (int step = 1; step < size(); ++step) {
      int to = (me + step) % size(), from = (me - step + size()) % size();
      messages.push_back(
          {false, data_of(output) + output_bounds[from], output_bounds[from + 1] - output_bounds[from], from});
      messages.push_back({true, data_of(input) + input_bounds[to], input_bounds[to + 1] - input_bounds[to], to});
    }
    return exchange({output, input}, next_tag(), messages);
  }

  PendingOperationPtr reduce_scatter(const Call&, at::Tensor output, at::Tensor input, ReduceOp op) override {
    MpiReduction reduction{data_of(input), {}, data_of(output), false, output.scalar_type(), op};
    for (int r = 0; r <= size(); ++r) reduction.shards.push_back(r * static_cast<int64_t>(output.nbytes()));
    return start(mpi_reduce_scatter(group_, {output, input}, next_tag(), reduction));
  }

  PendingOperationPtr broadcast(const Call&, at::Tensor tensor, int root) override {
    finish_stream(tensor.device());
    return start(mpi_broadcast(group_, tensor, next_tag(), root));
  }

  PendingOperationPtr exchange(const Call&, const std::vector<Transfer>& transfers) override {
    std::vector<MpiMessage> messages;
    std::vector<at::Tensor> tensors;
    for (const Transfer& one : transfers) {
      messages.push_back({one.kind == Transfer::Kind::send, data_of(one.tensor), one.tensor.numel(), one.peer});
      tensors.push_back(one.tensor);
      finish_stream(one.tensor.device());
    }
    return exchange(std::move(tensors), mpi_transfer_tag(*group_), messages);
  }

  PendingOperationPtr barrier(const Call&) override { return start(mpi_barrier(group_, next_tag())); }

  int64_t propose() override { return engine_->reserve_id(); }

  std::shared_ptr<Transport> split(const std::vector<int>& members, int rank, const std::string&, int64_t agreed,
                                   std::chrono::milliseconds) override {
    engine_->observe_id(static_cast<int>(agreed));
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

  PendingOperationPtr start(MpiOperationPtr operation) {
    engine_->start(operation);
    return std::make_unique<ProgressPendingOperation>(engine_, std::move(operation));
  }
  PendingOperationPtr exchange(std::vector<at::Tensor> tensors, int tag, const std::vector<MpiMessage>& messages) {
    return start(mpi_exchange(group_, std::move(tensors), tag, messages));
  }

  std::shared_ptr<MpiEngine> engine_;
  std::shared_ptr<MpiGroup> group_;
  int64_t number_ = 0;
};

constexpr auto straggler_patience = std::chrono::seconds(1);

// MPI of this process, created at the first request.
class MpiProcess {
 public:
  MpiProcess() = default;
  // The channel's thread may still hold a group. This thread calls MPI_Finalize before the process ends: mpirun reports
  // a rank that ends without it as a failure.
  ~MpiProcess() {
    const auto deadline = Clock::now() + straggler_patience;
    while (engine_.use_count() > 1 && Clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  MpiProcess(const MpiProcess&) = delete;
  MpiProcess& operator=(const MpiProcess&) = delete;

  CommunicatorPtr make(const BackendRequest& request) {
    std::lock_guard lock(mutex_);
    if (request.size == 1) return make_world(request, "mpi", nullptr);
    auto before = world_.lock();
    if (before && before->rank() != request.rank) {
      throw Error(Failure::config,
                  "backend mpi takes one rank per process, and this process has several; use backend "
                  "local or gloo for ranks that are threads");
    }
    if (!engine_) engine_ = std::make_shared<MpiEngine>(request.mpi_communicator);
    if (engine_->rank() != request.rank || engine_->size() != request.size) {
      throw CommError(Failure::rendezvous, -1, "MPI reports rank ", engine_->rank(), " of ", engine_->size(),
                      ", but the plan has rank ", request.rank, " of ", request.size,
                      ": start as many ranks as the plan has, with mpirun -n ", request.size,
                      " convoy run …, or srun --mpi=pmix -n ", request.size);
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
    auto world = make_world(request, "mpi",
                            over_shared_memory(std::make_shared<MpiTransport>(engine_, group), request,
                                               world_description(request), engine_));
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
  return [home = std::make_shared<MpiProcess>()](const BackendRequest& request) { return home->make(request); };
}

}  // namespace convoy
