#include "launch/rank/measure/bench.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <algorithm>
#include <chrono>
#include <future>
#include <map>
#include <optional>

#include "api/components.h"
#include "backends/registry.h"
#include "core/files/limits.h"
#include "launch/diagnose/reports.h"
#include "launch/explain/calibration.h"
#include "launch/rank/measure/timed_step.h"
#include "launch/rank/rank.h"

namespace convoy {
namespace {

constexpr int rounds = 5;
constexpr double round_seconds = 0.02;
constexpr int64_t most_iterations = 2000;
constexpr int64_t checked_at_once = 1 << 20;  // elements; expected values are created in blocks of this size

at::ScalarType dtype_named(const std::string& name) {
  static const std::map<std::string, at::ScalarType> all{
      {"fp32", at::kFloat}, {"fp64", at::kDouble}, {"fp16", at::kHalf}, {"bf16", at::kBFloat16},
      {"int32", at::kInt},  {"int64", at::kLong},  {"uint8", at::kByte}};
  const auto found = all.find(name);
  CONVOY_CHECK(found != all.end(), "bench: no dtype '", name, "'");
  return found->second;
}

// Largest integer that the dtype holds exactly, like all smaller ones.
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
        modulus_(std::clamp<int64_t>(exact_limit(dtype_) / std::max(ranks_, 1), 2, 127)),
        sharded_(operation_ == "all_gather" || operation_ == "reduce_scatter") {
    // For a sharded operation a count is the size of one rank's shard.
    for (const Json& size : request.at("sizes"))
      counts_.push_back(std::max<int64_t>(size.get<int64_t>() / bytes(1), 1));
  }

  TrainingResult run() {
    StopAgreement stop(context_.channel, me_, ranks_, timeout_of(context_.config.launch.collective));
    TrainingResult result;
    Json rows = Json::array();
    context_.state->phase("benchmark");
    join();
    for (size_t i = 0; i < counts_.size(); ++i) {
      const auto step = static_cast<int64_t>(i);
      result.stopped = stop.stops_before(step);
      if (result.stopped) break;
      context_.state->step(step);
      report_progress(i);
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

  void report_progress(size_t i) const {
    if (me_ != 0) return;
    const std::string text = str(operation_, " of ", human_bytes(static_cast<double>(bytes(counts_[i]))), ", size ",
                                 i + 1, " of ", counts_.size());
    context_.channel->post(protocol::progress, {{"text", text}});
  }

  int64_t elements(int64_t count) const { return sharded_ ? count * ranks_ : count; }
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
    return sharded_ ? others : 1;
  }

  // An in-place operation has the same tensor as input and output.
  void make_tensors(int64_t count) {
    const auto options = at::TensorOptions().dtype(dtype_).device(device_);
    input_ = output_ = at::Tensor();
    const std::vector<int64_t> whole{ranks_, count}, slice{count};
    const bool in_place = operation_ == "all_reduce" || operation_ == "broadcast";
    input_ = at::empty(operation_ == "reduce_scatter" ? whole : slice, options);
    output_ = in_place ? input_ : at::empty(operation_ == "all_gather" ? whole : slice, options);
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

  // Returns the seconds of one operation on this rank, averaged over `iterations`; all ranks start together.
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

  // Returns the number of operations that fill a round, from the slowest rank's measurement.
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

  // Returns rank `rank`'s input at flat positions from `begin`.
  at::Tensor values(int rank, int64_t begin, int64_t n) const {
    return at::arange(begin, begin + n, at::kLong).mul_(7).add_(13 * rank).remainder_(modulus_);
  }
  at::Tensor sum_of_values(int64_t begin, int64_t n) const {
    at::Tensor sum = values(0, begin, n);
    for (int rank = 1; rank < ranks_; ++rank) sum.add_(values(rank, begin, n));
    return sum;
  }

  // Returns the expected output of this rank at flat positions from `begin`; the block is within one shard.
  at::Tensor expected(int64_t count, int64_t slice, int64_t begin, int64_t n) const {
    if (operation_ == "all_reduce") return sum_of_values(begin, n);
    if (operation_ == "reduce_scatter") return sum_of_values(me_ * count + begin, n);
    if (operation_ == "all_gather") return values(static_cast<int>(slice), begin, n);
    return values(operation_ == "broadcast" ? 0 : (me_ + ranks_ - 1) % ranks_, begin, n);
  }

  // Fills the input, runs once, and counts the wrong elements of this rank.
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
  const int64_t modulus_;  // input numbers are smaller: their sum over ranks is exact
  const bool sharded_;
  std::vector<int64_t> counts_;  // elements of a rank's tensor, or of its shard
  at::Tensor input_, output_;
};

}  // namespace

TrainingResult run_bench(const Context& context, const Json& request) { return Bench(context, request).run(); }

// --- CalibrationRun ---
//
// Phase 1 measures the reference strategy's step on process 0 alone. Phase 2 measures the same in all processes at
// once, which compete for cores, caches and memory as ranks do. Phase 3 measures each backend between two ranks.
// Each phase has its share of the time. The most important row counts and sizes come first; the rest is left out when
// time is short.

namespace {

constexpr Timeout process_limit{30000};  // for another process of the calibration
constexpr size_t most_samples = 400;
constexpr double alone_end = 0.32, together_end = 0.78;  // fraction of the time at which the phase ends

void bind_rank(const MeasuredRank& rank) {
  bind_this_thread(rank.cores);
  at::set_num_threads(std::max(1, rank.threads));
}

at::Device device_of(const MeasuredRank& rank) {
  if (rank.gpu < 0) return at::Device(at::kCPU);
  load_cuda_half();
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(rank.gpu));
}

class CalibrationRun {
 public:
  CalibrationRun(std::shared_ptr<Channel> channel, int process)
      : channel_(std::move(channel)),
        process_(process),
        request_(Json::parse(channel_->get(measurement_key::request, process_limit)).get<MeasurementRequest>()),
        processes_(static_cast<int>(std::max<size_t>(1, request_.together.size()))),
        config_(RunConfig::from_resolved(request_.config)),
        registry_(make_registry(config_, /*few_rows=*/true)),
        rank_(request_.together.empty() ? request_.alone : request_.together.at(static_cast<size_t>(process))),
        device_(device_of(rank_)) {}

  void run() {
    bind_rank(process_ == 0 ? request_.alone : rank_);
    std::vector<int64_t> blocks;
    for (const SampledBlock& block : request_.sampled) blocks.push_back(block.index);
    subject_.emplace(config_, registry_, device_, process_ == 0 ? request_.alone.threads : rank_.threads, blocks);
    synchronise("made");
    start_ = Clock::now();
    if (process_ == 0)
      measured_.alone = steps(request_.alone_rows, request_.alone_updated, alone_end * request_.seconds, false);
    synchronise("alone");
    bind_rank(rank_);
    if (!request_.together.empty())
      measured_.together = steps(request_.together_rows, request_.together_updated,
                                 together_end * request_.seconds - seconds_since(start_), true);
    for (const BlockTime& block : subject_->block_times()) measured_.blocks.emplace_back(block.name, block.seconds);
    subject_.reset();  // frees its memory and its loader's thread
    exchange_all();
    measured_.device = device_.is_cpu() ? "cpu" : "cuda";
    channel_->set(str(measurement_key::result, process_), Json(measured_).dump());
  }

 private:
  // Waits for all processes. Returns the smallest of their values.
  double synchronise(const std::string& where, double value = 0) {
    double least = value;
    for (const std::string& reply :
         channel_->agree("calibrate/" + where, process_, processes_, Json(value).dump(), process_limit))
      least = std::min(least, Json::parse(reply).get<double>());
    return least;
  }

  // The first row count is the most important and is always measured. The second is a small one, which separates the
  // update's time and predicts the others. A later row count is left out if there is no time to measure it twice. A
  // sparse update of few rows is too short to be measured there, so it is measured at the first row count.
  std::vector<StepSamples> steps(const std::vector<int64_t>& rows, const std::vector<UpdatedShare>& updated,
                                 double limit, bool all) {
    const size_t with_updates = rows.size() == 1 || !updated.empty() ? 0 : 1;
    std::vector<StepSamples> points;
    const Clock::time_point start = Clock::now();
    for (size_t index = 0; index < rows.size(); ++index) {
      const double left = limit - seconds_since(start);
      const double expected = 3.2 * expected_step(points, rows[index]);
      bool go = index < 2 || left > expected;
      if (all) go = synchronise(str("steps/", index), go ? 1 : 0) > 0;
      if (!go) continue;
      const double share =
          index == 0 && rows.size() > 1 ? 0.45 * limit : left / static_cast<double>(rows.size() - index);
      points.push_back(point(rows[index], std::max(expected, share), index == with_updates, all));
    }
    return points;
  }

  // Extrapolates the line through the first and last points; with one point, in proportion to the rows.
  static double expected_step(const std::vector<StepSamples>& points, int64_t rows) {
    if (points.empty()) return 0;
    const auto step_of = [](const StepSamples& samples) { return samples.steps.front(); };
    const StepSamples& last = points.back();
    if (points.size() == 1)
      return step_of(last) * std::max(1.0, static_cast<double>(rows) / static_cast<double>(last.rows));
    const StepSamples& other = points.front();
    const double slope = (step_of(other) - step_of(last)) / static_cast<double>(other.rows - last.rows);
    return step_of(other) + std::max(0.0, slope) * static_cast<double>(rows - other.rows);
  }

  StepSamples point(int64_t rows, double limit, bool with_updates, bool all) {
    StepSamples samples;
    samples.rows = subject_->batches_of(rows);
    const Clock::time_point start = Clock::now();
    // The first step allocates; small steps need some more until caches and the loader are warm.
    double last = 0;
    for (int number = 0; number < 12; ++number) {
      last = subject_->step(true);
      if (seconds_since(start) > 0.15 * limit) break;
    }
    double times =
        std::clamp((limit - seconds_since(start)) / std::max(1e-6, last), 2.0, static_cast<double>(most_samples));
    if (all) times = synchronise(str("point/", rows), times);
    // Two passes and an update give the update's time: the first pass writes gradients, the others add to them.
    const auto cycles = with_updates ? std::clamp<int64_t>(static_cast<int64_t>(times / 4), 1, 60) : 0;
    for (int64_t number = 0; number < cycles; ++number) {
      subject_->step(false);
      const double pass = subject_->step(false);
      samples.updates.push_back(subject_->step(true) - pass);
    }
    const auto steps = std::max<int64_t>(2, static_cast<int64_t>(times) - 3 * cycles);
    for (int64_t number = 0; number < steps; ++number) samples.steps.push_back(subject_->step(true));
    return samples;
  }

  // --- Exchanges ---

  void exchange_all() {
    if (request_.together.size() < 2) return;
    size_t kinds = 0;
    for (const WantedExchange& wanted : request_.exchanges) kinds += wanted.kinds.size();
    const double left = std::max(0.3, request_.seconds - seconds_since(start_));
    const double each = kinds > 0 ? left / static_cast<double>(kinds) : 0;
    for (const WantedExchange& wanted : request_.exchanges) {
      if (wanted.threads) {
        if (process_ == 0) exchange_threads(wanted, each);
      } else {
        exchange_on(wanted, process_, processes_, rank_, each, &measured_.exchanges);
      }
      synchronise("exchanged/" + wanted.backend);
    }
  }

  void exchange_threads(const WantedExchange& wanted, double each) {
    // The destructor waits for the thread, also after an exception.
    std::future<void> second = std::async(std::launch::async, [&] {
      bind_rank(request_.together[1]);
      exchange_on(wanted, 1, 2, request_.together[1], each, nullptr);
    });
    exchange_on(wanted, 0, 2, rank_, each, &measured_.exchanges);
    second.get();
  }

  // All ranks join; the first two exchange.
  void exchange_on(const WantedExchange& wanted, int rank, int ranks, const MeasuredRank& where, double each,
                   std::vector<ExchangeSamples>* into) {
    BackendRequest request;
    request.rank = rank;
    request.size = ranks;
    request.device = device_of(where);
    request.channel = channel_;
    request.job = "calibration";
    request.address = request_.address;
    request.timeout = request.rendezvous = process_limit;
    request.waiting = [](const char*) {};
    const CommunicatorPtr world = registry_.backends.make(wanted.backend, request);
    const CommunicatorPtr group = world->split(rank / 2, rank, {"calibration", {}});
    for (const Exchange kind : wanted.kinds) {
      if (rank >= 2) break;
      for (size_t index = 0; index < request_.bytes.size(); ++index) {
        const int64_t bytes = request_.bytes[index];
        const ExchangeTimes times =
            time_exchange(*group, kind, bytes, each / static_cast<double>(request_.bytes.size()), request.device);
        if (into != nullptr) into->push_back({wanted.backend, kind, bytes, times.seconds, times.busy});
      }
    }
    world->barrier({"end of calibration", {}})->wait();
  }

  std::shared_ptr<Channel> channel_;
  int process_;
  MeasurementRequest request_;
  int processes_;
  RunConfig config_;
  Registry registry_;
  MeasuredRank rank_;
  at::Device device_;
  std::optional<TimedStep> subject_;
  Clock::time_point start_;
  Measurement measured_;
};

}  // namespace

void calibrate(const std::shared_ptr<Channel>& channel, int process) { CalibrationRun(channel, process).run(); }

}  // namespace convoy
