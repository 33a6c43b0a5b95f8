#include "launch/rank/bench.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "core/control/protocol.h"
#include "core/control/stop.h"
#include "launch/bench_report.h"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int rounds = 5;
constexpr double round_seconds = 0.02;
constexpr int64_t most_iterations = 2000;
constexpr int64_t checked_at_once = 1 << 20;  // elements: what is expected is made in pieces

at::ScalarType dtype_named(const std::string& name) {
  static const std::map<std::string, at::ScalarType> all{
      {"fp32", at::kFloat}, {"fp64", at::kDouble}, {"fp16", at::kHalf}, {"bf16", at::kBFloat16},
      {"int32", at::kInt},  {"int64", at::kLong},  {"uint8", at::kByte}};
  const auto found = all.find(name);
  CONVOY_CHECK(found != all.end(), "bench: no dtype '", name, "'");
  return found->second;
}

// Integers up to here are exact.
int64_t exact_limit(at::ScalarType dtype) {
  switch (dtype) {
    case at::kByte:
      return 255;
    case at::kBFloat16:
      return 256;
    case at::kHalf:
      return 2048;
    default:
      return 1 << 24;
  }
}

class Bench {
 public:
  Bench(const Context& context, const Json& request)
      : context_(context),
        world_(*context.world),
        operation_(request.at("operation").get<std::string>()),
        dtype_name_(request.at("dtype").get<std::string>()),
        dtype_(dtype_named(dtype_name_)),
        ranks_(context.size),
        me_(context.rank),
        device_(context.devices.front()),
        modulus_(std::clamp<int64_t>(exact_limit(dtype_) / std::max(ranks_, 1), 2, 127)) {
    const int64_t element = static_cast<int64_t>(c10::elementSize(dtype_));
    const bool sliced = operation_ == "all_gather" || operation_ == "reduce_scatter";
    for (const Json& size : request.at("sizes")) {
      // Of a sliced operation `count` is one rank's slice.
      const int64_t share = element * (sliced ? ranks_ : 1);
      counts_.push_back(std::max<int64_t>(size.get<int64_t>() / share, 1));
    }
    sliced_ = sliced;
  }

  TrainingResult run() {
    StopAgreement stop(context_.channel, me_, ranks_,
                       Timeout(static_cast<int64_t>(context_.config.launch.collective * 1000)));
    TrainingResult result;
    Json rows = Json::array();
    context_.state->phase("benchmark");
    join();
    for (size_t i = 0; i < counts_.size(); ++i) {
      const auto step = static_cast<int64_t>(i);
      result.stopped = stop.stops_before(step);
      if (result.stopped) break;
      context_.state->step(step);
      tell_progress(i);
      rows.push_back(row_of(i));
      if (me_ == 0) context_.channel->post(bench_topic, rows.back());
    }
    result.summary = {{"bench", rows}};
    result.rank = {{"wait_seconds", world_.wait_seconds()}};
    return result;
  }

 private:
  void join() {
    world_.barrier({"all ranks are here", {}})->wait();
    if (me_ == 0) context_.channel->post(protocol::first_step, Json::object());
  }

  void tell_progress(size_t i) const {
    if (me_ != 0) return;
    const std::string text = str(operation_, " of ", human_bytes(static_cast<double>(bytes(counts_[i]))), ", size ",
                                 i + 1, " of ", counts_.size());
    context_.channel->post(protocol::progress, {{"text", text}});
  }

  int64_t elements(int64_t count) const { return sliced_ ? count * ranks_ : count; }
  int64_t bytes(int64_t count) const { return elements(count) * static_cast<int64_t>(c10::elementSize(dtype_)); }

  Json row_of(size_t i) {
    const int64_t count = counts_[i];
    make_tensors(count);
    int64_t wrong = checked(count);
    input_.zero_();
    output_.zero_();
    const int64_t iterations = iterations_wanted();
    std::vector<double> seconds;
    for (int round = 0; round < rounds; ++round) seconds.push_back(timed(iterations));
    seconds = slowest_of_ranks(seconds);
    std::sort(seconds.begin(), seconds.end());
    wrong += checked(count);
    const double median = seconds[seconds.size() / 2];
    const double bandwidth = static_cast<double>(bytes(count)) / median;
    return {{"operation", operation_},
            {"dtype", dtype_name_},
            {"backend", world_.backend()},
            {"device", device_.is_cuda() ? "cuda" : device_.str()},
            {"ranks", ranks_},
            {"index", i},
            {"bytes", bytes(count)},
            {"count", elements(count)},
            {"seconds", median},
            {"seconds_least", seconds.front()},
            {"seconds_most", seconds.back()},
            {"iterations", iterations * rounds},
            {"algorithm_bandwidth", bandwidth},
            {"bus_bandwidth", bandwidth * bus_factor()},
            {"wrong", total(wrong)}};
  }

  double bus_factor() const {
    const double others = static_cast<double>(ranks_ - 1) / ranks_;
    if (operation_ == "all_reduce") return 2 * others;
    return sliced_ ? others : 1;
  }

  // In place operations have their tensor in both.
  void make_tensors(int64_t count) {
    const auto options = at::TensorOptions().dtype(dtype_).device(device_);
    input_ = output_ = at::Tensor();
    const std::vector<int64_t> whole{ranks_, count}, slice{count};
    if (operation_ == "all_gather") {
      input_ = at::empty(slice, options);
      output_ = at::empty(whole, options);
    } else if (operation_ == "reduce_scatter") {
      input_ = at::empty(whole, options);
      output_ = at::empty(slice, options);
    } else {
      input_ = at::empty(slice, options);
      output_ = operation_ == "send" ? at::empty(slice, options) : input_;
    }
  }

  WorkPtr issue() {
    const CallOptions call{"bench", {}};
    if (operation_ == "all_reduce") return world_.all_reduce(output_, ReduceOp::sum, call);
    if (operation_ == "all_gather") return world_.all_gather(output_, input_, call);
    if (operation_ == "reduce_scatter") return world_.reduce_scatter(output_, input_, ReduceOp::sum, call);
    if (operation_ == "broadcast") return world_.broadcast(output_, 0, call);
    CONVOY_CHECK(operation_ == "send", "bench: no operation '", operation_, "'");
    return world_.group({{Transfer::Kind::send, input_, (me_ + 1) % ranks_},
                         {Transfer::Kind::receive, output_, (me_ + ranks_ - 1) % ranks_}},
                        call);
  }

  // Seconds of each of so many operations on this rank, begun when all ranks are ready.
  double timed(int64_t iterations) {
    world_.barrier({"bench", {}})->wait();
    finish_device();
    const auto start = Clock::now();
    for (int64_t i = 0; i < iterations; ++i) issue()->wait();
    finish_device();
    return std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(iterations);
  }

  void finish_device() const {
    if (device_.is_cpu()) return;
    c10::impl::VirtualGuardImpl(device_.type()).getStream(device_).synchronize();
  }

  // As many as fill a round: all ranks agree on what the slowest of them measures.
  int64_t iterations_wanted() {
    timed(2);
    const double seconds = slowest_of_ranks({timed(3)})[0];
    return std::clamp<int64_t>(static_cast<int64_t>(round_seconds / std::max(seconds, 1e-9)), 1, most_iterations);
  }

  std::vector<double> slowest_of_ranks(const std::vector<double>& seconds) {
    at::Tensor all = at::tensor(seconds, at::kDouble);
    world_.all_reduce(all, ReduceOp::max, {"times", {}})->wait();
    finish_device();
    const double* first = all.const_data_ptr<double>();
    return {first, first + all.numel()};
  }

  int64_t total(int64_t wrong) {
    at::Tensor all = at::full({1}, wrong, at::kLong);
    world_.all_reduce(all, ReduceOp::sum, {"wrong elements", {}})->wait();
    finish_device();
    return all.item<int64_t>();
  }

  // What rank `rank` gives at flat positions from `begin` on.
  at::Tensor values(int rank, int64_t begin, int64_t n) const {
    return at::arange(begin, begin + n, at::kLong).mul_(7).add_(13 * rank).remainder_(modulus_);
  }
  at::Tensor sum_of_values(int64_t begin, int64_t n) const {
    at::Tensor sum = values(0, begin, n);
    for (int rank = 1; rank < ranks_; ++rank) sum.add_(values(rank, begin, n));
    return sum;
  }

  // What must be in this rank's output at flat positions from `begin` on; a piece lies in one slice.
  at::Tensor expected(int64_t count, int64_t slice, int64_t begin, int64_t n) const {
    if (operation_ == "all_reduce") return sum_of_values(begin, n);
    if (operation_ == "reduce_scatter") return sum_of_values(me_ * count + begin, n);
    if (operation_ == "all_gather") return values(static_cast<int>(slice), begin, n);
    return values(operation_ == "broadcast" ? 0 : (me_ + ranks_ - 1) % ranks_, begin, n);
  }

  // Fills, runs once, and counts what is wrong on this rank.
  int64_t checked(int64_t count) {
    at::Tensor in = input_.view({-1});
    output_.zero_();
    for (int64_t begin = 0; begin < in.numel(); begin += checked_at_once) {
      const int64_t n = std::min(checked_at_once, in.numel() - begin);
      in.narrow(0, begin, n).copy_(values(me_, begin, n));
    }
    issue()->wait();
    finish_device();
    int64_t wrong = 0;
    at::Tensor slices = output_.view({-1, count});
    for (int64_t slice = 0; slice < slices.size(0); ++slice) {
      for (int64_t begin = 0; begin < count; begin += checked_at_once) {
        const int64_t n = std::min(checked_at_once, count - begin);
        const at::Tensor wanted = expected(count, slice, begin, n).to(dtype_);
        wrong += slices[slice].narrow(0, begin, n).cpu().ne(wanted).sum().item<int64_t>();
      }
    }
    return wrong;
  }

  const Context& context_;
  Communicator& world_;
  const std::string operation_, dtype_name_;
  const at::ScalarType dtype_;
  const int ranks_, me_;
  const at::Device device_;
  const int64_t modulus_;  // of the numbers that are exchanged: their sum over ranks is exact
  bool sliced_ = false;
  std::vector<int64_t> counts_;  // elements of a rank's tensor, or of its slice
  at::Tensor input_, output_;
};

}  // namespace

TrainingResult run_bench(const Context& context, const Json& request) { return Bench(context, request).run(); }

}  // namespace convoy
