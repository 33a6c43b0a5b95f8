// Which operation goes which way.
#include "backends/host_transport.h"

#include "backends/host_exchange.h"

namespace convoy {
namespace {

class HostTransport final : public Transport {
 public:
  HostTransport(std::shared_ptr<Transport> inner, const BackendRequest& request, std::shared_ptr<ProgressEngine> engine,
                std::shared_ptr<HostGroup> group)
      : inner_(std::move(inner)), request_(request), engine_(std::move(engine)), group_(std::move(group)) {}

  Capabilities capabilities() const override { return inner_->capabilities(); }

  PendingPtr all_reduce(const Call& call, at::Tensor tensor, ReduceOp op) override {
    if (!tensor.is_cpu()) return inner().all_reduce(call, tensor, op);
    return start(host_all_reduce(group_, call, tensor, op));
  }
  PendingPtr all_gather(const Call& call, at::Tensor output, const Offsets& parts, at::Tensor input) override {
    if (!output.is_cpu() || !input.is_cpu()) return inner().all_gather(call, output, parts, input);
    return start(host_all_gather(group_, call, output, parts, input));
  }
  PendingPtr reduce_scatter(const Call& call, at::Tensor output, at::Tensor input, ReduceOp op) override {
    if (!output.is_cpu() || !input.is_cpu()) return inner().reduce_scatter(call, output, input, op);
    return start(host_reduce_scatter(group_, call, output, input, op));
  }
  PendingPtr broadcast(const Call& call, at::Tensor tensor, int root) override {
    if (!tensor.is_cpu()) return inner().broadcast(call, tensor, root);
    return start(host_broadcast(group_, call, tensor, root));
  }
  PendingPtr all_to_all(const Call& call, at::Tensor output, const Offsets& output_parts, at::Tensor input,
                        const Offsets& input_parts) override {
    return inner().all_to_all(call, output, output_parts, input, input_parts);
  }
  PendingPtr exchange(const Call& call, const std::vector<Transfer>& transfers) override {
    if (!group_->segment->has_lanes()) return inner().exchange(call, transfers);
    return start(host_exchange(group_, transfers));
  }
  PendingPtr barrier(const Call& call) override { return inner().barrier(call); }

  int64_t propose() override { return inner_->propose(); }
  std::shared_ptr<Transport> split(const std::vector<int>& members, int rank, const std::string& label, int64_t agreed,
                                   std::chrono::milliseconds timeout) override {
    std::shared_ptr<Transport> inner = inner_->split(members, rank, label, agreed, timeout);
    if (inner == nullptr) return nullptr;
    return share(std::move(inner), request_, engine_, label, rank, static_cast<int>(members.size()), timeout);
  }

  void fail(const std::string& reason) override {
    engine_->fail(*group_, reason);
    inner_->fail(reason);
  }

  static std::shared_ptr<Transport> share(std::shared_ptr<Transport> inner, const BackendRequest& request,
                                          std::shared_ptr<ProgressEngine> engine, const std::string& label, int rank,
                                          int size, std::chrono::milliseconds timeout) {
    auto group = std::make_shared<HostGroup>();
    group->segment = HostSegment::meet(request, label, rank, size, timeout);
    if (group->segment == nullptr) return inner;
    group->rank = rank;
    group->sends.resize(static_cast<size_t>(size));
    group->receives.resize(static_cast<size_t>(size));
    return std::make_shared<HostTransport>(std::move(inner), request, std::move(engine), std::move(group));
  }

 private:
  // What ranks called differently before belongs together no more.
  Transport& inner() const {
    check();
    return *inner_;
  }
  void check() const {
    if (!group_->failed) return;
    std::lock_guard lock(group_->mutex);
    throw CommError(Failure::peer_lost, -1, group_->reason);
  }

  PendingPtr start(const HostOperationPtr& operation) {
    check();
    engine_->start(operation);
    return std::make_unique<ProgressPending>(engine_, operation);
  }

  std::shared_ptr<Transport> inner_;
  BackendRequest request_;
  std::shared_ptr<ProgressEngine> engine_;
  std::shared_ptr<HostGroup> group_;
};

}  // namespace

std::shared_ptr<Transport> over_host_memory(std::shared_ptr<Transport> inner, const BackendRequest& request,
                                            std::shared_ptr<ProgressEngine> engine) {
  if (!engine) engine = std::make_shared<ProgressEngine>("convoy-host");
  return HostTransport::share(std::move(inner), request, std::move(engine), "world", request.rank, request.size,
                              request.rendezvous);
}

}  // namespace convoy
