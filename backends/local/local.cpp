// Backend local: ranks are threads of one process and reduce through shared memory.
#include <map>

#include "backends/communicator/group.h"
#include "backends/local/local_group.h"
#include "backends/registry.h"

namespace convoy {
namespace {

using LocalOperationPtr = std::shared_ptr<LocalOperation>;

// An operation, and this rank's index among its participants.
struct Participation {
  LocalOperationPtr operation;
  size_t index;
};

class LocalPendingOperation final : public PendingOperation {
 public:
  LocalPendingOperation(std::shared_ptr<LocalGroup> group, std::vector<Participation> operations)
      : group_(std::move(group)), operations_(std::move(operations)) {}

  bool done() override {
    bool all = true;
    for (auto& [operation, index] : operations_) all = group_->help(*operation, index) && all;
    return all;
  }
  bool wait_until(Clock::time_point deadline) override {
    for (auto& [operation, index] : operations_) {
      if (!group_->wait(*operation, index, deadline)) return false;
    }
    return true;
  }
  std::string missing() override {
    for (auto& [operation, index] : operations_) {
      std::string text = group_->missing(*operation);
      if (!text.empty()) return text;
    }
    return "";
  }

 private:
  std::shared_ptr<LocalGroup> group_;
  std::vector<Participation> operations_;
};

class LocalTransport final : public Transport {
 public:
  LocalTransport(std::shared_ptr<LocalGroup> group, int rank)
      : group_(std::move(group)), rank_(rank), sent_(group_->size(), 0), received_(group_->size(), 0) {
    for (int i = 0; i < group_->size(); ++i) all_ranks_.push_back(i);
  }
  ~LocalTransport() override { group_->leave(rank_); }

  std::vector<at::DeviceType> devices() const override { return {at::kCPU}; }
  bool compares_calls() const override { return true; }

  PendingOperationPtr all_reduce(const Call& call, at::Tensor tensor, ReduceOp op) override {
    return start({call, {}, tensor, {}, {}, op});
  }
  PendingOperationPtr all_gather(const Call& call, at::Tensor output, const Offsets& bounds,
                                 at::Tensor input) override {
    return start({call, input, output, {}, bounds});
  }
  PendingOperationPtr all_to_all(const Call& call, at::Tensor output, const Offsets& output_bounds, at::Tensor input,
                                 const Offsets& input_bounds) override {
    return start({call, input, output, input_bounds, output_bounds});
  }
  PendingOperationPtr reduce_scatter(const Call& call, at::Tensor output, at::Tensor input, ReduceOp op) override {
    return start({call, input, output, {}, {}, op});
  }
  PendingOperationPtr broadcast(const Call& call, at::Tensor tensor, int root) override {
    return start({call, {}, tensor, {}, {}, ReduceOp::sum, root});
  }
  PendingOperationPtr barrier(const Call& call) override { return start(Deposit{call}); }

  PendingOperationPtr exchange(const Call& call, const std::vector<Transfer>& transfers) override {
    std::vector<Participation> operations;
    for (const Transfer& one : transfers) {
      bool sends = one.kind == Transfer::Kind::send;
      int from = sends ? rank_ : one.peer;
      int to = sends ? one.peer : rank_;
      int64_t number = sends ? sent_[one.peer]++ : received_[one.peer]++;
      Deposit deposit{call};
      deposit.call.elements = one.tensor.numel();
      deposit.call.dtype = at::kByte;
      (sends ? deposit.input : deposit.output) = one.tensor;
      const size_t index = sends ? 0 : 1;
      operations.push_back({group_->join_operation({from, to, number}, index, {from, to}, std::move(deposit)), index});
    }
    return std::make_unique<LocalPendingOperation>(group_, std::move(operations));
  }

  std::shared_ptr<Transport> split(const std::vector<int>& members, int rank, const std::string& label, int64_t,
                                   std::chrono::milliseconds timeout) override {
    auto child = group_->child(label, int(members.size()));
    child->join(rank, Clock::now() + timeout);
    return std::make_shared<LocalTransport>(child, rank);
  }

  // Ranks are threads, so an address is valid for all of them. all_gather does not copy rows that are already in place.
  at::Tensor common_memory(int64_t bytes, std::chrono::milliseconds) override {
    return group_->common_memory(common_memories_++, bytes);
  }

  void fail(const std::string& reason) override { group_->fail(reason); }

 private:
  PendingOperationPtr start(Deposit deposit) {
    const auto index = size_t(rank_);
    auto operation = group_->join_operation(LocalGroup::collective(number_++), index, all_ranks_, std::move(deposit));
    return std::make_unique<LocalPendingOperation>(group_, std::vector<Participation>{{std::move(operation), index}});
  }

  std::shared_ptr<LocalGroup> group_;
  int rank_;
  std::vector<int> all_ranks_;
  int64_t number_ = 0, common_memories_ = 0;
  std::vector<int64_t> sent_, received_;
};

// Finds the group of a job for the ranks of a process.
class GroupTable {
 public:
  std::shared_ptr<LocalGroup> group(const std::string& job, int size) {
    std::lock_guard lock(mutex_);
    for (auto it = groups_.begin(); it != groups_.end();) it = it->second.expired() ? groups_.erase(it) : std::next(it);
    auto group = groups_[job].lock();
    if (!group) groups_[job] = group = std::make_shared<LocalGroup>(size);
    CONVOY_CHECK(group->size() == size, "job '", job, "' has ", group->size(), " ranks for one and ", size,
                 " for another");
    return group;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<LocalGroup>> groups_;
};

}  // namespace

BackendFactory local_backend() {
  return [groups = std::make_shared<GroupTable>()](const BackendRequest& request) {
    std::shared_ptr<Transport> transport;
    if (request.size > 1) {
      auto group = groups->group(request.job, request.size);
      group->join(request.rank, Clock::now() + request.rendezvous);
      transport = std::make_shared<LocalTransport>(group, request.rank);
    }
    return make_world(request, "local", transport);
  };
}

}  // namespace convoy
