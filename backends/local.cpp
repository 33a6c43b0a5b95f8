// local: ranks that are threads of one process, reducing through shared memory.
#include <condition_variable>
#include <map>

#include "backends/group.h"
#include "backends/local_group.h"
#include "backends/makers.h"

namespace convoy {
namespace {

using MeetingPtr = std::shared_ptr<Meeting>;

// A meeting, and this rank's place in it.
struct Attended {
  MeetingPtr meeting;
  size_t place;
};

class LocalPending final : public Pending {
 public:
  LocalPending(std::shared_ptr<LocalGroup> group, std::vector<Attended> meetings)
      : group_(std::move(group)), meetings_(std::move(meetings)) {}

  bool done() override {
    bool all = true;
    for (auto& [meeting, place] : meetings_) all = group_->help(*meeting, place) && all;
    return all;
  }
  bool wait_until(Clock::time_point deadline) override {
    for (auto& [meeting, place] : meetings_) {
      if (!group_->wait(*meeting, place, deadline)) return false;
    }
    return true;
  }
  std::string missing() override {
    for (auto& [meeting, place] : meetings_) {
      std::string text = group_->missing(*meeting);
      if (!text.empty()) return text;
    }
    return "";
  }

 private:
  std::shared_ptr<LocalGroup> group_;
  std::vector<Attended> meetings_;
};

class LocalTransport final : public Transport {
 public:
  LocalTransport(std::shared_ptr<LocalGroup> group, int rank)
      : group_(std::move(group)), rank_(rank), sent_(group_->size(), 0), received_(group_->size(), 0) {
    for (int i = 0; i < group_->size(); ++i) everyone_.push_back(i);
  }
  ~LocalTransport() override { group_->leave(rank_); }

  Capabilities capabilities() const override {
    return {{at::kCPU}, {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kInt, at::kLong, at::kByte, at::kBool}};
  }
  bool compares_calls() const override { return true; }

  PendingPtr all_reduce(const Call& call, at::Tensor tensor, ReduceOp op) override {
    Deposit deposit{call};
    deposit.output = tensor;
    deposit.op = op;
    return meet(std::move(deposit));
  }
  PendingPtr all_gather(const Call& call, at::Tensor output, const Offsets& parts, at::Tensor input) override {
    return meet({call, input, output, {}, parts});
  }
  PendingPtr all_to_all(const Call& call, at::Tensor output, const Offsets& output_parts, at::Tensor input,
                        const Offsets& input_parts) override {
    return meet({call, input, output, input_parts, output_parts});
  }
  PendingPtr reduce_scatter(const Call& call, at::Tensor output, at::Tensor input, ReduceOp op) override {
    return meet({call, input, output, {}, {}, op});
  }
  PendingPtr broadcast(const Call& call, at::Tensor tensor, int root) override {
    Deposit deposit{call};
    deposit.output = tensor;
    deposit.root = root;
    return meet(std::move(deposit));
  }
  PendingPtr barrier(const Call& call) override { return meet(Deposit{call}); }

  PendingPtr exchange(const Call& call, const std::vector<Transfer>& transfers) override {
    std::vector<Attended> meetings;
    for (const Transfer& one : transfers) {
      bool sends = one.kind == Transfer::Kind::send;
      int from = sends ? rank_ : one.peer;
      int to = sends ? one.peer : rank_;
      int64_t number = sends ? sent_[one.peer]++ : received_[one.peer]++;
      Deposit deposit{call};
      deposit.call.elements = one.tensor.numel();
      deposit.call.dtype = at::kByte;
      (sends ? deposit.input : deposit.output) = one.tensor;
      const size_t place = sends ? 0 : 1;
      meetings.push_back({group_->meet({from, to, number}, place, {from, to}, std::move(deposit)), place});
    }
    return std::make_unique<LocalPending>(group_, std::move(meetings));
  }

  std::shared_ptr<Transport> split(const std::vector<int>& members, int rank, const std::string& label, int64_t,
                                   std::chrono::milliseconds timeout) override {
    if (members.size() == 1) return nullptr;
    auto child = group_->child(label, static_cast<int>(members.size()));
    child->join(rank, Clock::now() + timeout);
    return std::make_shared<LocalTransport>(child, rank);
  }

  // Ranks are threads, to whom an address is the same: what already lies where it belongs is not copied.
  at::Tensor common_memory(int64_t bytes, std::chrono::milliseconds) override {
    return group_->common_memory(commons_++, bytes);
  }

  void fail(const std::string& reason) override { group_->fail(reason); }

 private:
  PendingPtr meet(Deposit deposit) {
    const auto place = static_cast<size_t>(rank_);
    auto meeting = group_->meet(LocalGroup::collective(number_++), place, everyone_, std::move(deposit));
    return std::make_unique<LocalPending>(group_, std::vector<Attended>{{std::move(meeting), place}});
  }

  std::shared_ptr<LocalGroup> group_;
  int rank_;
  std::vector<int> everyone_;
  int64_t number_ = 0, commons_ = 0;
  std::vector<int64_t> sent_, received_;
};

// Where the ranks of a process find each other, by job.
class Hub {
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
  return [hub = std::make_shared<Hub>()](const BackendRequest& request) {
    std::shared_ptr<Transport> transport;
    if (request.size > 1) {
      auto group = hub->group(request.job, request.size);
      group->join(request.rank, Clock::now() + request.rendezvous);
      transport = std::make_shared<LocalTransport>(group, request.rank);
    }
    return make_world(request, "local", transport);
  };
}

}  // namespace convoy
