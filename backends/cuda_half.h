// LibTorch's CUDA half, loaded by the ranks that have a GPU and by no other: it takes 0.2 s and 230 MB of each process, so
// ranks on the CPU, and 64 of them on a host, are there the sooner. With it come our parts that call CUDA (backends/cuda/,
// libconvoy_cuda.so beside this library), which are linked against it in every build.
#pragma once

namespace convoy {

// Before anything asks LibTorch for a GPU, since LibTorch asks once whether it has that half. Again is free; any thread.
// Throws Error(device_missing) with the loader's words, or where this build's LibTorch has no such half.
void load_cuda_half();

// A function of libconvoy_cuda.so, which is loaded first. Throws Error(device_missing).
void* cuda_half_symbol(const char* name);

}  // namespace convoy
