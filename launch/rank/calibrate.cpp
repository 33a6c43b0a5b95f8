// In three parts: the reference strategy's step on process 0 alone; the same in all processes at once, which take cores,
// caches and memory from each other as ranks do; and what each backend takes between two of them. Each part has its share
// of the time; within it the row counts and sizes that matter most come first, and what there is no time for is left out.
#include "launch/rank/calibrate.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <thread>

#include "backends/registry.h"
#include "core/binding.h"
#include "launch/measurement.h"
#include "launch/rank/rank.h"
#include "launch/rank/timed_exchange.h"
#include "launch/rank/timed_step.h"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Timeout patience{30000};  // with another process of the calibration
constexpr size_t most_samples = 400;
constexpr double alone_part = 0.32, together_part = 0.78;  // of the time, when that part ends

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void place(const MeasuredRank& rank) {
  bind_this_thread(rank.cores);
  at::set_num_threads(std::max(1, rank.threads));
}

at::Device device_of(const MeasuredRank& rank) {
  if (rank.gpu < 0) return at::Device(at::kCPU);
  load_cuda_half();
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(rank.gpu));
}

class Calibration {
 public:
  Calibration(std::shared_ptr<Channel> channel, int process)
      : channel_(std::move(channel)),
        process_(process),
        request_(measurement_request(Json::parse(channel_->get(measurement_key::request, patience)))),
        processes_(static_cast<int>(std::max<size_t>(1, request_.together.size()))),
        config_(RunConfig::from_resolved(request_.config)),
        registry_(make_registry(config_)),
        rank_(request_.together.empty() ? request_.alone : request_.together.at(static_cast<size_t>(process))),
        device_(device_of(rank_)) {}

  void run() {
    place(process_ == 0 ? request_.alone : rank_);
    std::vector<int64_t> blocks;
    for (const SampledBlock& block : request_.sampled) blocks.push_back(block.index);
    subject_.emplace(config_, registry_, device_, process_ == 0 ? request_.alone.threads : rank_.threads, blocks);
    meet("made");
    start_ = Clock::now();
    if (process_ == 0)
      measured_.alone = steps(request_.alone_rows, request_.alone_updated, alone_part * request_.seconds, false);
    meet("alone");
    place(rank_);
    if (!request_.together.empty())
      measured_.together = steps(request_.together_rows, request_.together_updated,
                                 together_part * request_.seconds - seconds_since(start_), true);
    for (const BlockTime& block : subject_->block_times()) measured_.blocks.emplace_back(block.name, block.seconds);
    subject_.reset();  // its memory and its loader's thread
    exchange_all();
    measured_.device = device_.is_cpu() ? "cpu" : "cuda";
    channel_->set(str(measurement_key::result, process_), to_json(measured_).dump());
  }

 private:
  // All processes are here. Returns the smallest `value` of theirs.
  double meet(const std::string& where, double value = 0) {
    double least = value;
    for (const std::string& told :
         channel_->agree("calibrate/" + where, process_, processes_, Json(value).dump(), patience))
      least = std::min(least, Json::parse(told).get<double>());
    return least;
  }

  // The first row count matters most and is always measured. The second is a small one, which tells the update apart and
  // what the others will take; of those, one that could not be measured twice in the time that is left is left out. An
  // update of few rows is too short to be told apart there, and is at the first.
  std::vector<StepSamples> steps(const std::vector<int64_t>& rows, const std::vector<UpdatedShare>& updated,
                                 double limit, bool all) {
    const size_t with_updates = rows.size() == 1 || !updated.empty() ? 0 : 1;
    std::vector<StepSamples> points;
    const Clock::time_point start = Clock::now();
    for (size_t index = 0; index < rows.size(); ++index) {
      const double left = limit - seconds_since(start);
      const double expected = 3.2 * expected_step(points, rows[index]);
      bool go = index < 2 || left > expected;
      if (all) go = meet(str("steps/", index), go ? 1 : 0) > 0;
      if (!go) continue;
      const double share =
          index == 0 && rows.size() > 1 ? 0.45 * limit : left / static_cast<double>(rows.size() - index);
      points.push_back(point(rows[index], std::max(expected, share), index == with_updates, all));
    }
    return points;
  }

  // On the line through the last two, or with the first.
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
    // The first step allocates; small ones take some more until caches and the loader have settled.
    double last = 0;
    for (int number = 0; number < 12; ++number) {
      last = subject_->step(true);
      if (seconds_since(start) > 0.15 * limit) break;
    }
    double times =
        std::clamp((limit - seconds_since(start)) / std::max(1e-6, last), 2.0, static_cast<double>(most_samples));
    if (all) times = meet(str("point/", rows), times);
    // Two passes and an update tell the update apart: the first pass writes gradients, the others add to them.
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

  // ---- exchanges ---------------------------------------------------------------------------------------------

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
      meet("exchanged/" + wanted.backend);
    }
  }

  void exchange_threads(const WantedExchange& wanted, double each) {
    std::exception_ptr failure;
    std::thread second([&] {
      try {
        place(request_.together[1]);
        exchange_on(wanted, 1, 2, request_.together[1], each, nullptr);
      } catch (...) {
        failure = std::current_exception();
      }
    });
    try {
      exchange_on(wanted, 0, 2, rank_, each, &measured_.exchanges);
    } catch (...) {
      second.join();
      throw;
    }
    second.join();
    if (failure) std::rethrow_exception(failure);
  }

  // All ranks join, and the first two exchange.
  void exchange_on(const WantedExchange& wanted, int rank, int ranks, const MeasuredRank& where, double each,
                   std::vector<ExchangeSamples>* into) {
    BackendRequest request;
    request.rank = rank;
    request.size = ranks;
    request.device = device_of(where);
    request.channel = channel_;
    request.job = "calibration";
    request.address = request_.address;
    request.timeout = request.rendezvous = patience;
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

void calibrate(const std::shared_ptr<Channel>& channel, int process) { Calibration(channel, process).run(); }

}  // namespace convoy
