#include "core/training/kernel_trace.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "core/base/log.h"
#include "core/base/text.h"

namespace convoy {
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

}  // namespace convoy
