#include "launch/rank/measure/timed_exchange.h"

#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <algorithm>

#include "core/files/limits.h"

namespace convoy {
namespace {

constexpr int64_t least = 3, most = 400;  // number of exchanges

// Repeats one kind of exchange on existing tensors.
class Exchanger {
 public:
  Exchanger(Communicator& group, Exchange kind, int64_t bytes, at::Device device)
      : group_(group), kind_(kind), device_(device) {
    const auto options = at::TensorOptions(at::kFloat).device(device);
    const int64_t elements = std::max<int64_t>(1, bytes / 4);
    mine_ = at::ones({elements}, options);
    if (kind == Exchange::gather || kind == Exchange::scatter) all_ = at::ones({group.size(), elements}, options);
    if (kind == Exchange::send) all_ = at::ones({elements}, options);
  }

  // Writes the tensors on this rank's core, as a step would.
  void touch() {
    mine_.fill_(1);
    if (kind_ == Exchange::scatter) all_.fill_(1);
    synchronise(device_);
  }

  void once() {
    const CallOptions call{"calibration", {}};
    switch (kind_) {
      case Exchange::all_reduce:
        group_.all_reduce(mine_, ReduceOp::sum, call)->wait();
        break;
      case Exchange::gather:
        group_.all_gather(all_, mine_, call)->wait();
        break;
      case Exchange::scatter:
        group_.reduce_scatter(mine_, all_, ReduceOp::sum, call)->wait();
        break;
      case Exchange::send:
        there_and_back(call);
        break;
    }
    synchronise(device_);
  }

 private:
  void there_and_back(const CallOptions& call) {
    if (group_.rank() > 1) return;
    const int peer = 1 - group_.rank();
    if (group_.rank() == 0) group_.send(mine_, peer, call)->wait();
    group_.receive(all_, peer, call)->wait();
    if (group_.rank() == 1) group_.send(mine_, peer, call)->wait();
  }

  Communicator& group_;
  Exchange kind_;
  at::Device device_;
  at::Tensor mine_, all_;
};

}  // namespace

void synchronise(const at::Device& device) {
  if (device.is_cuda()) at::detail::getCUDAHooks().deviceSynchronize(device.index());
}

ExchangeTimes time_exchange(Communicator& group, Exchange kind, int64_t bytes, double limit, at::Device device) {
  Exchanger exchanger(group, kind, bytes, device);
  exchanger.once();  // connects, and faults memory in
  Clock::time_point start = Clock::now();
  exchanger.touch();
  exchanger.once();
  // The slowest rank's estimate determines the number of exchanges on all ranks.
  at::Tensor count =
      at::full({1}, limit / std::max(1e-6, seconds_since(start)), at::TensorOptions(at::kDouble).device(device));
  group.all_reduce(count, ReduceOp::min, {"calibration", {}})->wait();
  const auto times = std::clamp(static_cast<int64_t>(count.cpu().item<double>()), least, most);
  ExchangeTimes result;
  double busy = 0, all = 0;
  for (int64_t number = 0; number < times; ++number) {
    exchanger.touch();
    const double before = process_cpu_seconds();
    start = Clock::now();
    exchanger.once();
    const double took = seconds_since(start);
    busy += process_cpu_seconds() - before;
    all += took;
    result.seconds.push_back(kind == Exchange::send ? took / 2 : took);
  }
  result.busy = all > 0 ? std::min(1.0, busy / all) : 0;
  return result;
}

}  // namespace convoy
