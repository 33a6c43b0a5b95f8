// Which operation goes which way.
#include "backends/host_transport.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "backends/host_exchange.h"
#include "core/text.h"

namespace convoy {
namespace {

class HostTransport final : public Transport {
 public:
  HostTransport(std::shared_ptr<Transport> inner, const BackendRequest& request, std::shared_ptr<ProgressEngine> engine,
                std::shared_ptr<HostGroup> group, std::string label)
      : inner_(std::move(inner)),
        request_(request),
        engine_(std::move(engine)),
        group_(std::move(group)),
        label_(std::move(label)) {}

  Capabilities capabilities() const override { return inner_->capabilities(); }

  PendingPtr all_reduce(const Call& call, at::Tensor tensor, ReduceOp op) override {
    if (!tensor.is_cpu()) return inner().all_reduce(call, tensor, op);
    return start(host_all_reduce(group_, call, tensor, op));
  }
  PendingPtr all_gather(const Call& call, at::Tensor output, const Offsets& parts, at::Tensor input) override {
    if (!output.is_cpu() || !input.is_cpu()) return inner().all_gather(call, output, parts, input);
    return start(host_all_gather(group_, call, output, parts, input, in_common(output)));
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

  at::Tensor common_memory(int64_t bytes, std::chrono::milliseconds timeout) override {
    auto memory = HostMemory::meet(*request_.channel, str(request_.job, "/", label_, "/common/", commons_made_++),
                                   group_->rank, group_->size(), bytes, timeout);
    if (memory == nullptr) return {};
    std::lock_guard lock(commons_mutex_);
    commons_.erase(std::remove_if(commons_.begin(), commons_.end(), [](const auto& one) { return one.expired(); }),
                   commons_.end());
    commons_.push_back(memory);
    return at::from_blob(
        memory->data(), {bytes}, [memory](void*) {}, at::kByte);
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
    return std::make_shared<HostTransport>(std::move(inner), request, std::move(engine), std::move(group), label);
  }

 private:
  // Whether all ranks see the same output.
  bool in_common(const at::Tensor& output) {
    const char* const begin = static_cast<const char*>(output.const_data_ptr());
    std::lock_guard lock(commons_mutex_);
    return std::any_of(commons_.begin(), commons_.end(), [&](const std::weak_ptr<HostMemory>& one) {
      const std::shared_ptr<HostMemory> memory = one.lock();
      return memory && begin >= memory->data() && begin < memory->data() + memory->bytes();
    });
  }

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
  const std::string label_;
  int64_t commons_made_ = 0;
  std::mutex commons_mutex_;
  std::vector<std::weak_ptr<HostMemory>> commons_;
};

}  // namespace

std::shared_ptr<Transport> over_host_memory(std::shared_ptr<Transport> inner, const BackendRequest& request,
                                            std::shared_ptr<ProgressEngine> engine) {
  if (!engine) engine = std::make_shared<ProgressEngine>("convoy-host");
  return HostTransport::share(std::move(inner), request, std::move(engine), "world", request.rank, request.size,
                              request.rendezvous);
}

}  // namespace convoy
