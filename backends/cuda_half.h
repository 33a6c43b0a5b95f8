// What comes with LibTorch's CUDA half (registry.h's load_cuda_half): our parts that call CUDA (backends/cuda/,
// libconvoy_cuda.so beside this library), which are linked against it in every build.
#pragma once

namespace convoy {

// A function of libconvoy_cuda.so, which is loaded first. Any thread. Throws Error(device_missing) with the loader's words, or
// where this build's LibTorch has no such half.
void* cuda_half_symbol(const char* name);

}  // namespace convoy
