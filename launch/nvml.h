// The part of NVML's stable C interface that convoy uses, found at run time: a machine without a driver has no library,
// and that is no error. Threads: NVML's own functions are thread-safe; an Nvml is not to be made or ended by two at once.
#pragma once
#include <memory>

namespace convoy {

using NvmlDevice = void*;
struct NvmlPci {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char bus_id[32];
};
struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlUtilization {
  unsigned gpu, memory;  // per cent of the time
};
struct NvmlProcess {  // of the functions with _v2 and _v3
  unsigned pid;
  unsigned long long memory;  // bytes; all bits set: not told
  unsigned gpu_instance, compute_instance;
};
struct NvmlProcessSample {
  unsigned pid;
  unsigned long long time;  // microseconds, of the driver's clock
  unsigned multiprocessors, memory, encoder, decoder;
};

class Nvml {
 public:
  Nvml();
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  bool ready() const { return ready_; }  // false: no driver, or an older one that lacks what is needed to find GPUs

  // 0 is success.
  int (*count)(unsigned*) = nullptr;
  int (*handle)(unsigned, NvmlDevice*) = nullptr;
  int (*uuid)(NvmlDevice, char*, unsigned) = nullptr;
  int (*pci)(NvmlDevice, NvmlPci*) = nullptr;
  int (*memory)(NvmlDevice, NvmlMemory*) = nullptr;
  // Null where the driver has none.
  int (*handle_by_uuid)(const char*, NvmlDevice*) = nullptr;
  int (*utilization)(NvmlDevice, NvmlUtilization*) = nullptr;
  int (*processes)(NvmlDevice, unsigned* count, NvmlProcess*) = nullptr;
  int (*process_samples)(NvmlDevice, NvmlProcessSample*, unsigned* count, unsigned long long since) = nullptr;

 private:
  static void close(void* library);
  template <class Function>
  void find(Function& function, const char* name);
  std::unique_ptr<void, void (*)(void*)> library_;
  int (*shutdown_)() = nullptr;
  bool ready_ = false;
};

}  // namespace convoy
