// Fills of tensors, in parallel over chunks: each draw depends on its number only.
#include "core/random.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "core/error.h"

namespace convoy {
namespace {

using Draw = void (*)(double*, int64_t, uint64_t, uint64_t);

// out[i] = offset + factor · draw(first + i)
void fill(at::Tensor& out, uint64_t key, uint64_t first, double offset, double factor, Draw draw) {
  CONVOY_CHECK(out.is_contiguous() && out.device().is_cpu(), "random fills take contiguous CPU tensors");
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, out.scalar_type(), "random_fill", [&] {
    scalar_t* to = out.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, out.numel(), 1 << 15, [&](int64_t begin, int64_t end) {
      double drawn[1024];
      for (int64_t at = begin; at < end; at += 1024) {
        const int64_t count = std::min<int64_t>(1024, end - at);
        draw(drawn, count, key, first + uint64_t(at));
        for (int64_t i = 0; i < count; ++i) to[at + i] = static_cast<scalar_t>(offset + factor * drawn[i]);
      }
    });
  });
}

}  // namespace

void fill_uniform(at::Tensor out, uint64_t key, uint64_t first, double low, double high) {
  fill(out, key, first, low, high - low, draw_uniform);
}

void fill_normal(at::Tensor out, uint64_t key, uint64_t first, double mean, double deviation) {
  fill(out, key, first, mean, deviation, draw_normal);
}

}  // namespace convoy
