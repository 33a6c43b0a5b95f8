#include "strategies/common/layers/keyed_dropout.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <cmath>

#include "core/base/error.h"
#include "core/base/random_keys.h"
#include "core/tensors/vectorised.h"

namespace convoy {
namespace {

constexpr int64_t draws_per_counter = 8;  // 16 bits each
constexpr int64_t lanes = 16;             // counters of one vectorised group
constexpr int64_t span = lanes * draws_per_counter;

// 16-bit draws of counters first, first + 1, …: draw d of counter i is out[d · lanes + i].
CONVOY_VECTORISED void draw_span(uint64_t key, uint64_t first, uint32_t* out) {
  uint32_t words[4][lanes];
  philox_block(key, first, words);
  for (int64_t word = 0; word < 4; ++word) {
    for (int64_t i = 0; i < lanes; ++i) {
      out[2 * word * lanes + i] = words[word][i] & 0xFFFFu;
      out[(2 * word + 1) * lanes + i] = words[word][i] >> 16;
    }
  }
}

// Elements [begin, begin + count) of the whole tensor over the global batch. Element e of a span of 128 takes draw e ÷
// 16 of counter e mod 16; vectorised loops need this order.
template <class T>
void fill_range(T* out, int64_t begin, int64_t count, uint64_t key, uint32_t threshold, T kept) {
  uint32_t draws[span];
  for (int64_t at = begin / span * span; at < begin + count; at += span) {
    draw_span(key, uint64_t(at / draws_per_counter), draws);
    const int64_t from = std::max(at, begin), to = std::min(at + span, begin + count);
    for (int64_t i = from; i < to; ++i) out[i - begin] = draws[i - at] >= threshold ? kept : T(0);
  }
}

template <class T>
void fill_mask(at::Tensor& mask, int64_t width, const DropoutCut& cut, uint64_t key, int64_t first_row,
               uint32_t threshold) {
  const T kept = static_cast<T>(65536.0 / (65536.0 - threshold));
  T* out = mask.mutable_data_ptr<T>();
  if (cut.whole == 0) {
    at::parallel_for(0, mask.numel(), 1 << 14, [&](int64_t begin, int64_t end) {
      fill_range<T>(out + begin, first_row * width + begin, end - begin, key, threshold, kept);
    });
    return;
  }
  // Runs of the last dimension; each is a range of a run of length `whole`.
  const int64_t last = mask.size(-1), first_run = first_row * (width / last);
  at::parallel_for(0, mask.numel() / last, std::max<int64_t>(1, (1 << 14) / last), [&](int64_t begin, int64_t end) {
    for (int64_t run = begin; run < end; ++run)
      fill_range<T>(out + run * last, (first_run + run) * cut.whole + cut.begin, last, key, threshold, kept);
  });
}

at::Tensor drawn_fast(const at::Tensor& like, double p, uint64_t key) {
  at::Generator generator = at::globalContext().defaultGenerator(like.device()).clone();
  generator.set_current_seed(key);
  return at::empty_like(like, at::MemoryFormat::Contiguous).bernoulli_(1 - p, generator).mul_(1 / (1 - p));
}

}  // namespace

at::Tensor dropout_mask(const at::Tensor& like, double p, const std::string& name, const ForwardState& state,
                        const DropoutCut& cut) {
  CONVOY_CHECK(p > 0 && p < 1, "dropout ", name, " with p = ", p);
  at::NoGradGuard no_grad;
  state.drew = true;
  const auto threshold = uint32_t(std::min(65535.0, std::max(1.0, std::round(p * 65536))));
  if (!state.exact) {
    const std::string ranked = convoy::str(name, "@", state.rank);
    return drawn_fast(like, p, random_key(state.seed, ranked, uint64_t(state.step)));
  }
  at::ScalarType dtype = like.scalar_type();
  if (dtype != at::kDouble) dtype = at::kFloat;  // half-precision masks are rounded from float
  at::Tensor mask = at::empty(like.sizes(), at::TensorOptions(dtype));
  if (mask.numel() > 0) {
    if (state.rows <= 0 || mask.numel() % state.rows != 0)
      throw Error(Failure::training, "dropout ", name, ": ", mask.numel(), " elements of ", state.rows,
                  " rows; rows must stay the leading dimension of the input of dropout");
    const uint64_t key = random_key(state.seed, name, uint64_t(state.step), 1);
    const int64_t width = mask.numel() / state.rows;
    if (dtype == at::kDouble)
      fill_mask<double>(mask, width, cut, key, state.first_row, threshold);
    else
      fill_mask<float>(mask, width, cut, key, state.first_row, threshold);
  }
  return mask.to(like.options());
}

}  // namespace convoy
