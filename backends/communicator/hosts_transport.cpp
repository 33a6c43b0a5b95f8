#include "backends/communicator/hosts_transport.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <optional>
#include <utility>

#include "backends/communicator/completion.h"
#include "core/base/text.h"
#include "core/control/connection.h"
#include "core/control/shared_memory.h"

namespace convoy {
namespace {

// A group on several hosts with `each` consecutive ranks on every host.
struct HostGroups {
  int each = 1;
  std::shared_ptr<Transport> local;  // ranks of this host
  std::shared_ptr<Transport> first;  // first ranks of the hosts; null on other ranks
};

at::Tensor flat_bytes(const at::Tensor& tensor) { return tensor.view(at::kByte); }

// Joins `each` blocks at a time into one, `count` times, from block `from` on. Returns the bounds of the joined blocks,
// relative to the begin of block `from`.
Offsets joined_bounds(const Offsets& bounds, int from, int count, int each) {
  Offsets joined;
  for (int block = 0; block <= count; ++block)
    joined.push_back(bounds[size_t(from + block * each)] - bounds[size_t(from)]);
  return joined;
}

void wait_for_end(const PendingOperationPtr& operation) {
  while (!operation->wait_until(Clock::now() + std::chrono::hours(1))) {  // Transport::fail wakes it
  }
}

std::shared_ptr<Transport> over_hosts(std::shared_ptr<Transport> inner, const BackendRequest& request,
                                      const GroupDescription& described, const std::shared_ptr<ProgressEngine>& engine);

class HostsTransport final : public Transport {
 public:
  HostsTransport(std::shared_ptr<Transport> inner, const BackendRequest& request, const GroupDescription& described,
                 std::shared_ptr<ProgressEngine> engine, HostGroups groups)
      : inner_(std::move(inner)),
        request_(request),
        rank_(described.rank),
        size_(described.size),
        engine_(std::move(engine)),
        groups_(std::move(groups)) {
    if (groups_.local) jobs_.emplace("convoy-hosts");
  }

  ~HostsTransport() override {
    if (signal_.busy()) fail_parts("the group ends");
    jobs_.reset();
  }

  std::vector<at::DeviceType> devices() const override { return inner_->devices(); }
  std::vector<at::DeviceType> reduction_devices() const override { return inner_->reduction_devices(); }

  PendingOperationPtr all_reduce(const Call& call, at::Tensor tensor, ReduceOp op) override {
    if (!groups_.local) return inner_->all_reduce(call, tensor, op);
    return start({tensor}, [this, call, tensor, op] {
      wait_for_end(groups_.local->all_reduce(call, tensor, op));
      if (groups_.first) wait_for_end(groups_.first->all_reduce(call, tensor, op));
      wait_for_end(groups_.local->broadcast(call, flat_bytes(tensor), 0));
    });
  }

  PendingOperationPtr all_gather(const Call& call, at::Tensor output, const Offsets& bounds,
                                 at::Tensor input) override {
    if (!groups_.local) return inner_->all_gather(call, output, bounds, input);
    return start({output, input}, [this, call, output, bounds, input] {
      const int begin = host() * groups_.each;
      const at::Tensor mine = part(output, bounds, begin);
      if (mine.numel() > 0)
        wait_for_end(groups_.local->all_gather(call, mine, joined_bounds(bounds, begin, groups_.each, 1), input));
      if (groups_.first)
        wait_for_end(groups_.first->all_gather(call, output, joined_bounds(bounds, 0, hosts(), groups_.each), mine));
      wait_for_end(groups_.local->broadcast(call, output, 0));
    });
  }

  PendingOperationPtr reduce_scatter(const Call& call, at::Tensor output, at::Tensor input, ReduceOp op) override {
    if (!groups_.local) return inner_->reduce_scatter(call, output, input, op);
    return start({output, input}, [this, call, output, input, op] {
      const at::Tensor sums = input.clone();
      wait_for_end(groups_.local->all_reduce(call, sums, op));
      const at::Tensor mine = at::empty({groups_.each * output.numel()}, output.options());
      if (groups_.first) wait_for_end(groups_.first->reduce_scatter(call, mine, sums, op));
      wait_for_end(groups_.local->broadcast(call, flat_bytes(mine), 0));
      at::Tensor(output).copy_(mine.narrow(0, rank_ % groups_.each * output.numel(), output.numel()));
    });
  }

  PendingOperationPtr broadcast(const Call& call, at::Tensor tensor, int root) override {
    if (!groups_.local) return inner_->broadcast(call, tensor, root);
    return start({tensor}, [this, call, tensor, root] {
      const bool here = root / groups_.each == host();
      if (here) wait_for_end(groups_.local->broadcast(call, tensor, root % groups_.each));
      if (groups_.first) wait_for_end(groups_.first->broadcast(call, tensor, root / groups_.each));
      if (!here) wait_for_end(groups_.local->broadcast(call, tensor, 0));
    });
  }

  PendingOperationPtr all_to_all(const Call& call, at::Tensor output, const Offsets& output_bounds, at::Tensor input,
                                 const Offsets& input_bounds) override {
    return inner_->all_to_all(call, output, output_bounds, input, input_bounds);
  }
  PendingOperationPtr exchange(const Call& call, const std::vector<Transfer>& transfers) override {
    return inner_->exchange(call, transfers);
  }
  PendingOperationPtr barrier(const Call& call) override { return inner_->barrier(call); }

  int64_t propose() override { return inner_->propose(); }
  std::shared_ptr<Transport> split(const std::vector<int>& members, int rank, const std::string& label, int64_t agreed,
                                   std::chrono::milliseconds timeout) override {
    return over_hosts(inner_->split(members, rank, label, agreed, timeout), request_,
                      {label, rank, static_cast<int>(members.size()), timeout}, engine_);
  }

  void fail(const std::string& reason) override {
    signal_.fail(reason);
    fail_parts(reason);
  }

 private:
  int host() const { return rank_ / groups_.each; }
  int hosts() const { return size_ / groups_.each; }
  // This host's part of a gathered tensor.
  at::Tensor part(const at::Tensor& output, const Offsets& bounds, int begin) const {
    const int64_t from = bounds[size_t(begin)];
    return output.narrow(0, from, bounds[size_t(begin + groups_.each)] - from);
  }

  // Runs one operation after the other, so that all ranks start the operations of the inner groups in one order.
  PendingOperationPtr start(std::vector<at::Tensor> tensors, std::function<void()> body) {
    auto completion = std::make_shared<Completion>(signal_, std::move(tensors));
    auto pending = std::make_unique<CompletionPendingOperation>();
    pending->add(completion);
    jobs_->post([body = std::move(body), completion]() mutable {
      std::exception_ptr error;
      try {
        body();
      } catch (...) {
        error = std::current_exception();
      }
      body = nullptr;  // the tensors are free before a waiter sees the end
      completion->finish(error);
    });
    return pending;
  }

  void fail_parts(const std::string& reason) {
    if (groups_.local) groups_.local->fail(reason);
    if (groups_.first) groups_.first->fail(reason);
    inner_->fail(reason);
  }

  std::shared_ptr<Transport> inner_;
  BackendRequest request_;
  const int rank_, size_;
  std::shared_ptr<ProgressEngine> engine_;
  HostGroups groups_;
  CompletionSignal signal_;
  std::optional<Dispatcher> jobs_;  // runs operations of groups with `local`
};

// Returns the number of consecutive ranks on each host; 1 if hosts have one rank, different numbers, or ranks that are
// not consecutive.
int ranks_of_each_host(const std::vector<std::string>& hosts) {
  const size_t each = size_t(std::count(hosts.begin(), hosts.end(), hosts.front()));
  if (hosts.size() % each != 0) return 1;
  for (size_t rank = 0; rank < hosts.size(); ++rank)
    if (hosts[rank] != hosts[rank / each * each] || size_t(std::count(hosts.begin(), hosts.end(), hosts[rank])) != each)
      return 1;
  return int(each);
}

// Collective. Returns groups without `local` if ranks_of_each_host is 1, or if ranks cannot share memory.
HostGroups host_groups(const std::shared_ptr<Transport>& inner, const BackendRequest& request,
                       const GroupDescription& described, const std::vector<std::string>& hosts,
                       const std::shared_ptr<ProgressEngine>& engine) {
  HostGroups groups;
  groups.each = ranks_of_each_host(hosts);
  if (groups.each == 1) return groups;
  const int host = described.rank / groups.each, within = described.rank % groups.each;
  groups.local = over_shared_memory(
      inner, request, {str(described.label, "/host ", host), within, groups.each, described.timeout}, engine);
  const bool shares = groups.local != inner;
  const auto all = request.channel->agree(str("hosts/", request.job, "/", described.label, "/shared"), described.rank,
                                          described.size, shares ? "+" : "-", described.timeout);
  if (std::find(all.begin(), all.end(), "-") != all.end()) {
    groups.local = nullptr;
    return groups;
  }
  std::vector<int> first;
  for (int rank = 0; rank < described.size; rank += groups.each) first.push_back(rank);
  if (within == 0) groups.first = inner->split(first, host, described.label + "/first ranks", 0, described.timeout);
  return groups;
}

std::shared_ptr<Transport> over_hosts(std::shared_ptr<Transport> inner, const BackendRequest& request,
                                      const GroupDescription& described,
                                      const std::shared_ptr<ProgressEngine>& engine) {
  if (!request.channel) return inner;
  const auto hosts = request.channel->agree(str("hosts/", request.job, "/", described.label), described.rank,
                                            described.size, str(request.host, " ", this_kernel()), described.timeout);
  if (std::all_of(hosts.begin(), hosts.end(), [&](const std::string& one) { return one == hosts.front(); }))
    return over_shared_memory(std::move(inner), request, described, engine);
  HostGroups groups = host_groups(inner, request, described, hosts, engine);
  return std::make_shared<HostsTransport>(std::move(inner), request, described, engine, std::move(groups));
}

}  // namespace

std::shared_ptr<Transport> over_hosts(std::shared_ptr<Transport> inner, const BackendRequest& request) {
  return over_hosts(std::move(inner), request, world_description(request),
                    std::make_shared<ProgressEngine>("convoy-host"));
}

}  // namespace convoy
