#include "strategies/parts/keyed_dropout.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>

#include "core/error.h"
#include "core/random_keys.h"

namespace convoy {
namespace {

constexpr int64_t draws_per_counter = 8;  // 16 bits each
constexpr int64_t lanes = 16;             // counters drawn together, so that the rounds vectorise

struct Rounds {
  uint32_t words[4][lanes];
};

// Philox for counters (low, row), (low + 1, row), …, lane by lane.
inline void draw(uint64_t key, uint64_t low, uint64_t row, Rounds& out) {
  uint32_t c0[lanes], c1[lanes], c2[lanes], c3[lanes];
  for (int64_t i = 0; i < lanes; ++i) {
    c0[i] = static_cast<uint32_t>(low + static_cast<uint64_t>(i));
    c1[i] = static_cast<uint32_t>((low + static_cast<uint64_t>(i)) >> 32);
    c2[i] = static_cast<uint32_t>(row);
    c3[i] = static_cast<uint32_t>(row >> 32);
  }
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int64_t i = 0; i < lanes; ++i) {
      const uint64_t p0 = static_cast<uint64_t>(c0[i]) * 0xD2511F53u;
      const uint64_t p1 = static_cast<uint64_t>(c2[i]) * 0xCD9E8D57u;
      c0[i] = static_cast<uint32_t>(p1 >> 32) ^ c1[i] ^ k0;
      c1[i] = static_cast<uint32_t>(p1);
      c2[i] = static_cast<uint32_t>(p0 >> 32) ^ c3[i] ^ k1;
      c3[i] = static_cast<uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int64_t i = 0; i < lanes; ++i) {
    out.words[0][i] = c0[i];
    out.words[1][i] = c1[i];
    out.words[2][i] = c2[i];
    out.words[3][i] = c3[i];
  }
}

// Elements [begin, begin + count) of row `row`: kept where the 16-bit draw reaches `threshold`.
template <class T>
void fill_range(T* out, int64_t begin, int64_t count, uint64_t key, uint64_t row, uint32_t threshold, T kept) {
  Rounds rounds;
  T values[lanes * draws_per_counter];
  constexpr int64_t span = lanes * draws_per_counter;
  for (int64_t at = begin / span * span; at < begin + count; at += span) {
    draw(key, static_cast<uint64_t>(at / draws_per_counter), row, rounds);
    for (int64_t i = 0; i < lanes; ++i) {
      for (int64_t word = 0; word < 4; ++word) {
        const uint32_t bits = rounds.words[word][i];
        values[i * draws_per_counter + 2 * word] = (bits & 0xFFFFu) >= threshold ? kept : T(0);
        values[i * draws_per_counter + 2 * word + 1] = (bits >> 16) >= threshold ? kept : T(0);
      }
    }
    const int64_t from = std::max(at, begin), to = std::min(at + span, begin + count);
    std::copy(values + (from - at), values + (to - at), out + (from - begin));
  }
}

template <class T>
void fill_mask(at::Tensor& mask, int64_t width, const DropoutCut& cut, uint64_t key, uint64_t first_row,
               uint32_t threshold) {
  const T kept = static_cast<T>(65536.0 / (65536.0 - threshold));
  const int64_t rows = mask.numel() / width;
  T* out = mask.mutable_data_ptr<T>();
  // A row is a run of `width` elements, or where its last dimension is cut several runs of `last` out of `whole`.
  const int64_t last = cut.whole > 0 ? mask.size(-1) : width;
  const int64_t runs = width / last;
  at::parallel_for(0, rows, std::max<int64_t>(1, 8192 / width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t run = 0; run < runs; ++run) {
        const int64_t start = cut.whole > 0 ? run * cut.whole + cut.begin : 0;
        fill_range<T>(out + row * width + run * last, start, last, key, first_row + static_cast<uint64_t>(row),
                      threshold, kept);
      }
    }
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
  const auto threshold = static_cast<uint32_t>(std::min(65535.0, std::max(1.0, std::round(p * 65536))));
  if (!state.exact) {
    const std::string ranked = convoy::str(name, "@", state.rank);
    return drawn_fast(like, p, random_key(state.seed, ranked, static_cast<uint64_t>(state.step)));
  }
  at::ScalarType dtype = like.scalar_type();
  if (dtype != at::kDouble) dtype = at::kFloat;  // 16-bit dtypes are rounded from it
  at::Tensor mask = at::empty(like.sizes(), at::TensorOptions(dtype));
  if (mask.numel() > 0) {
    CONVOY_CHECK(state.rows > 0 && mask.numel() % state.rows == 0, "dropout ", name, ": ", mask.numel(),
                 " elements of ", state.rows, " rows; rows must stay the leading dimension");
    const uint64_t key = random_key(state.seed, name, static_cast<uint64_t>(state.step), 1);
    const int64_t width = mask.numel() / state.rows;
    if (dtype == at::kDouble)
      fill_mask<double>(mask, width, cut, key, static_cast<uint64_t>(state.first_row), threshold);
    else
      fill_mask<float>(mask, width, cut, key, static_cast<uint64_t>(state.first_row), threshold);
  }
  return mask.to(like.options());
}

}  // namespace convoy
