// Reduction for the backends that sum without a library (local, mpi, shared memory).
//
// Element i of `out` becomes in[0][i] ∘ in[1][i] ∘ …, always in this order. So every rank that reduces the same inputs
// gets the same bits. fp16 and bf16 are summed in fp32 and rounded once, to nearest even. `out` may be one of the
// inputs. Thread-safe; starts no threads.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/communicator.h"

namespace convoy {

// dtype: half, bfloat16, float, double, int32, int64 or uint8.
void reduce(void* out, const std::vector<const void*>& in, int64_t elements, at::ScalarType dtype, ReduceOp op);

}  // namespace convoy
