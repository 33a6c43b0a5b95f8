#include "backends/cuda_half.h"

#include <dlfcn.h>

#include <string>

#include "backends/registry.h"
#include "core/error.h"
#include "core/text.h"

namespace convoy {
namespace {

// By its path, so that no LD_LIBRARY_PATH can put another build's in its place.
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
                "this build's LibTorch is one for CPUs only; build against a LibTorch with CUDA (the torch wheel from "
                "PyPI is one), or set device: cpu");
  }
  // Kernels and CUDA's runtime are looked up by name afterwards, hence global.
  void* library = dlopen(module_path().c_str(), RTLD_LAZY | RTLD_GLOBAL);
  if (library == nullptr) {
    const char* why = dlerror();
    throw Error(Failure::device_missing,
                str("LibTorch's CUDA half cannot be loaded: ", why == nullptr ? "no reason given" : why,
                    "; was the build folder moved without ", module, ", or LibTorch without its nvidia/ folders?"));
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
    throw Error(Failure::device_missing,
                str(CONVOY_CUDA_MODULE, " lacks ", name, ": it is of another build; build again"));
  return found;
}

}  // namespace convoy
