#include <dlfcn.h>
#include <map>
#include <string>

#include "backends/cuda/module/registry.h"
#include "backends/registry.h"
#include "core/base/error.h"
#include "core/base/text.h"

namespace convoy {
namespace {

// An absolute path, so that LD_LIBRARY_PATH cannot select another build's library.
std::string module_path() {
  Dl_info here{};
  if (dladdr(reinterpret_cast<void*>(&load_cuda_half), &here) == 0 || here.dli_fname == nullptr)
    return CONVOY_CUDA_MODULE;
  const std::string path = here.dli_fname;
  return path.substr(0, path.rfind('/') + 1) + CONVOY_CUDA_MODULE;
}

void* load() {
  const std::string module = CONVOY_CUDA_MODULE;
  if (module.empty()) {
    throw Error(Failure::device_missing,
                "this build's LibTorch supports only CPUs; build against a LibTorch with CUDA (the torch wheel from "
                "PyPI is one), or set device: cpu");
  }
  // RTLD_GLOBAL: kernels and the CUDA runtime are looked up by name afterwards.
  void* library = dlopen(module_path().c_str(), RTLD_LAZY | RTLD_GLOBAL);
  if (library == nullptr) {
    const char* why = dlerror();
    throw Error(Failure::device_missing,
                "LibTorch's CUDA half cannot be loaded: ", why == nullptr ? "no reason given" : why,
                "; was the build folder moved without ", module, ", or LibTorch without its nvidia/ folders?");
  }
  return library;
}

void* library() {
  static void* const loaded = load();
  return loaded;
}

}  // namespace

void load_cuda_half() { library(); }

void* cuda_half_symbol(const char* name) {
  void* found = dlsym(library(), name);
  if (found == nullptr)
    throw Error(Failure::device_missing, CONVOY_CUDA_MODULE, " lacks ", name,
                ": it belongs to another build; build again");
  return found;
}

// --- Graphs of a rank's device (core/context.h) ---

std::unique_ptr<DeviceGraph> make_device_graph(at::Device device) {
  std::unique_ptr<DeviceGraph> made;
  try {
    if (device.is_cuda()) reinterpret_cast<MakeGraph*>(cuda_half_symbol(make_graph_symbol))(device, made);
  } catch (const Error&) {
    // A build without CUDA's headers launches steps one kernel at a time.
  }
  return made;
}

// --- Memory limit on GPUs ---

void limit_device_memory(int64_t bytes) {
  if (bytes > 0) reinterpret_cast<LimitMemory*>(cuda_half_symbol(limit_memory_symbol))(bytes);
}

void check_one_gpu_each(const std::vector<std::string>& gpus) {
  std::map<std::string, std::vector<std::string>> ranks;
  for (size_t rank = 0; rank < gpus.size(); ++rank) ranks[gpus[rank]].push_back(std::to_string(rank));
  for (const auto& [gpu, sharing] : ranks) {
    if (sharing.size() == 1) continue;
    throw Error(Failure::config, "backend nccl takes one rank per GPU, and ranks ", join(sharing, ", "), " all have ",
                gpu, "; start a rank for each GPU, or use --set backend=gloo, which stages through the host");
  }
}

}  // namespace convoy
