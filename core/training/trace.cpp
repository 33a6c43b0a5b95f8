#include "core/training/trace.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/checkpoint/save_coordination.h"
#include "core/control/channel.h"
#include "core/files/files.h"
#include "core/training/time_report.h"

namespace convoy {

// --- KernelTrace ---

namespace {

namespace kineto = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

std::atomic<bool> recording{false};  // in this process

// The profiler has the system's clock.
int64_t steady_ahead_of_system() {
  using std::chrono::nanoseconds;
  const auto system = std::chrono::system_clock::now().time_since_epoch();
  return steady_nanoseconds() - std::chrono::duration_cast<nanoseconds>(system).count();
}

std::string lane_of(const kineto::KinetoEvent& event) {
  if (event.deviceType() == at::kCPU) return str("operators of thread ", event.startThreadId());
  return str("GPU ", event.deviceIndex(), ", stream ", event.deviceResourceId());
}

}  // namespace

std::unique_ptr<KernelTrace> KernelTrace::begin(at::Device device) {
  if (recording.exchange(true)) return nullptr;
  std::unique_ptr<KernelTrace> trace(new KernelTrace(device));
  try {
    const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
    const bool kernels = device.is_cuda();
    const std::set<ActivityType> activities{kernels ? ActivityType::CUDA : ActivityType::CPU};
    kineto::prepareProfiler(config, activities);
    // Operators of the host would only cost time: the other slices show what the host does.
    kineto::enableProfiler(config, activities, {kernels ? at::RecordScope::CUSTOM_CLASS : at::RecordScope::FUNCTION});
  } catch (const std::exception& error) {
    log::warning(str("the trace will have no kernels of ", device.str(),
                     ": the profiler of LibTorch does not start: ", error.what()));
    trace->ended_ = true;  // its destructor lets another one begin
    return nullptr;
  }
  return trace;
}

KernelTrace::~KernelTrace() {
  try {
    if (!ended_) end();
  } catch (const std::exception& error) {
    log::warning(str("the profiler of LibTorch does not end: ", error.what()));
  }
  recording = false;
}

std::vector<TraceSlice> KernelTrace::end() {
  ended_ = true;
  if (device_.is_cuda()) c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
  const std::unique_ptr<kineto::ProfilerResult> result = kineto::disableProfiler();
  const int64_t ahead = steady_ahead_of_system();
  std::vector<TraceSlice> slices;
  for (const kineto::KinetoEvent& event : result->events()) {
    if (event.deviceType() != device_.type() || event.durationNs() == 0) continue;
    const auto from = static_cast<int64_t>(event.startNs()) + ahead;
    slices.push_back({lane_of(event), event.name(), "kernel", from, from + static_cast<int64_t>(event.durationNs())});
  }
  return slices;
}

// --- StepTrace ---

namespace {

// Slices of this rank on the common clock, in nanoseconds.
Json slices_of(const Context& context) {
  Json slices = Json::array();
  for (const TraceSlice& slice : context.times->slices()) {
    Json one = {{"lane", slice.lane},
                {"name", slice.name},
                {"cat", slice.category},
                {"from", context.times->on_common_clock(slice.from)},
                {"to", context.times->on_common_clock(slice.to)}};
    if (slice.bytes >= 0) one["bytes"] = slice.bytes;
    slices.push_back(one);
  }
  const int64_t now = steady_nanoseconds();
  return {{"host", context.host}, {"offset_ns", context.times->on_common_clock(now) - now}, {"slices", slices}};
}

double microseconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1000; }

Json name_event(const char* kind, size_t rank, int lane, const std::string& name) {
  return {{"name", kind}, {"ph", "M"}, {"pid", rank}, {"tid", lane}, {"args", {{"name", name}}}};
}

// Moments count from the first slice: as microseconds since the start of a host they would lose digits.
Json chrome_trace(const std::vector<Json>& ranks) {
  int64_t origin = INT64_MAX;
  for (const Json& rank : ranks)
    for (const Json& slice : rank.at("slices")) origin = std::min(origin, slice.at("from").get<int64_t>());
  Json events = Json::array(), offsets = Json::array();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    events.push_back(
        name_event("process_name", rank, 0, str("rank ", rank, " on ", ranks[rank].at("host").get<std::string>())));
    offsets.push_back(ranks[rank].at("offset_ns"));
    std::map<std::string, int> lanes;
    for (const Json& slice : ranks[rank].at("slices")) {
      const auto lane = slice.at("lane").get<std::string>();
      const auto [known, is_new] = lanes.try_emplace(lane, static_cast<int>(lanes.size()));
      if (is_new) events.push_back(name_event("thread_name", rank, known->second, lane.empty() ? "training" : lane));
      const int64_t from = slice.at("from"), to = slice.at("to");
      Json event = {{"name", slice.at("name")},
                    {"cat", slice.at("cat")},
                    {"ph", "X"},
                    {"ts", microseconds(from - origin)},
                    {"dur", microseconds(to - from)},
                    {"pid", rank},
                    {"tid", known->second}};
      if (slice.contains("bytes")) event["args"] = {{"bytes", slice.at("bytes")}};
      events.push_back(event);
    }
  }
  return {{"traceEvents", events},
          {"displayTimeUnit", "ms"},
          {"otherData", {{"origin_ns", origin == INT64_MAX ? 0 : origin}, {"clock_offsets_ns", offsets}}}};
}

}  // namespace

void StepTrace::begin_step(int64_t number) {
  const ProfileConfig& steps = context_.config.profile;
  if (steps.first == 0) return;
  if (!std::exchange(begun_, true) && number > steps.first && context_.rank == 0)
    log::warning(str("profile.steps: the run continues with step ", number, ", so the trace has ",
                     number > steps.last
                         ? str("none of the steps ", steps.first, " to ", steps.last, "; name later ones")
                         : str("the steps ", number, " to ", steps.last, " only")));
  if (number > steps.last + 1) return;
  TimeBreakdown& times = *context_.times;
  times.phase(TimePart::other);  // no slice crosses the boundary of a step
  if (step_ > 0) {
    times.trace()->add({"", str("step ", step_), "step", began_, times.changed()});
    step_ = 0;
    if (number == steps.last + 1) return write();
  }
  if (number < steps.first || number > steps.last) return;
  if (times.trace() == nullptr) {
    times.record(true);
    if (context_.devices.front().is_cuda()) kernels_ = KernelTrace::begin(context_.devices.front());
  }
  times.phase(TimePart::other);
  if (from_ == 0) from_ = number;
  step_ = to_ = number;
  began_ = times.changed();
}

void StepTrace::end() {
  if (step_ == 0) return;
  TimeBreakdown& times = *context_.times;
  times.phase(TimePart::other);
  times.trace()->add({"", str("step ", step_), "step", began_, times.changed()});
  step_ = 0;
  write();
}

void StepTrace::write() {
  context_.times->record(false);
  if (kernels_)
    for (TraceSlice& slice : kernels_->end()) context_.times->log().add(std::move(slice));
  kernels_.reset();
  measure_clock(context_);
  SaveCoordination coordination(context_, "trace");
  const std::vector<std::string> texts = coordination.to_first("slices", slices_of(context_).dump());
  if (context_.rank != 0) return;
  std::vector<Json> ranks;
  for (const std::string& text : texts) ranks.push_back(Json::parse(text));
  const std::string path = context_.folder + "/trace.json";
  std::error_code none;
  // Keeps the trace of an earlier start of this run.
  if (const std::string kept = str(context_.folder, "/trace-before-step-", from_, ".json");
      from_ > context_.config.profile.first && std::filesystem::exists(path, none)) {
    std::filesystem::rename(path, kept, none);
    if (!none) log::info(str("the trace of earlier steps is now in ", kept));
  }
  write_whole(path, chrome_trace(ranks).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n", false);
  log::info(str("the trace of steps ", from_, " to ", to_, " is in ", path, "; open it in https://ui.perfetto.dev"));
}

}  // namespace convoy
