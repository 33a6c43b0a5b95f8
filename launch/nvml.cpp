#include "launch/nvml.h"

#include <dlfcn.h>

namespace convoy {

void Nvml::close(void* library) {
  if (library) dlclose(library);
}

template <class Function>
void Nvml::find(Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(library_.get(), name));
}

Nvml::Nvml() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL), &close) {
  if (!library_) return;
  int (*init)() = nullptr;
  find(init, "nvmlInit_v2");
  find(shutdown_, "nvmlShutdown");
  find(count, "nvmlDeviceGetCount_v2");
  find(handle, "nvmlDeviceGetHandleByIndex_v2");
  find(uuid, "nvmlDeviceGetUUID");
  find(pci, "nvmlDeviceGetPciInfo_v3");
  find(memory, "nvmlDeviceGetMemoryInfo");
  find(handle_by_uuid, "nvmlDeviceGetHandleByUUID");
  find(utilization, "nvmlDeviceGetUtilizationRates");
  find(processes, "nvmlDeviceGetComputeRunningProcesses_v3");
  if (!processes) find(processes, "nvmlDeviceGetComputeRunningProcesses_v2");
  find(process_samples, "nvmlDeviceGetProcessUtilization");
  ready_ = init && shutdown_ && count && handle && uuid && pci && memory && init() == 0;
}

Nvml::~Nvml() {
  if (ready_) shutdown_();
}

}  // namespace convoy
