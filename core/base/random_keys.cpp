// Philox in blocks of counters, laid out so that the compiler vectorises each loop.
#include "core/base/random_keys.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/base/vectorised.h"

namespace convoy {
namespace {

constexpr int lanes = 64;  // counters at a time; each gives two draws

uint64_t mixed(uint64_t x) {  // a bijection that spreads every bit over all (Stafford's variant 13)
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

// Uniform draws 2·first … 2·(first + lanes) - 1; a[i] and b[i] get the two draws of one counter.
CONVOY_VECTORISED void uniform_block(uint64_t key, uint64_t first, double* __restrict a, double* __restrict b) {
  uint32_t words[4][lanes];
  philox_block(key, first, words);
  const auto& [c0, c1, c2, c3] = words;
  // Convert 32 high and 21 low bits through signed integers, which vectorises. Exact: 53 bits in total.
  for (int i = 0; i < lanes; ++i) {
    a[i] = (double(int32_t(c0[i] ^ 0x80000000u)) + 0x1p31) * 0x1p-32 + double(int32_t(c1[i] >> 11)) * 0x1p-53;
    b[i] = (double(int32_t(c2[i] ^ 0x80000000u)) + 0x1p31) * 0x1p-32 + double(int32_t(c3[i] >> 11)) * 0x1p-53;
  }
}

// Turns uniform a, b in [0, 1) into standard normal pairs, in place. Logarithm, sine and cosine use series; arguments
// are reduced so that twelve terms reach 1e-17.
CONVOY_VECTORISED void normal_block(double* __restrict a, double* __restrict b) {
  for (int i = 0; i < lanes; ++i) {
    // ln(1 - a) = ln(m · 2^e) with m in [1/√2, √2): 2·atanh(s) + e·ln 2, s = (m - 1) / (m + 1).
    const double x = 1 - a[i];  // in (0, 1]; exact
    uint64_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const uint64_t shifted = bits + (0x3FF0000000000000u - 0x3FE6A09E667F3BCDu);
    const uint64_t mantissa = bits - ((shifted & 0xFFF0000000000000u) - 0x3FF0000000000000u);
    // Converts the exponent without an integer conversion: it is the low bits of 2^52 + exponent.
    const uint64_t exponent_bits = shifted >> 52 | 0x4330000000000000u;
    double m, e;
    std::memcpy(&m, &mantissa, sizeof m);
    std::memcpy(&e, &exponent_bits, sizeof e);
    e -= 0x1p52 + 1023;
    const double s = (m - 1) / (m + 1), t = s * s;
    double series = 0;  // 1 + t/3 + t²/5 + …
    for (int k = 11; k >= 0; --k) series = series * t + 1.0 / (2 * k + 1);
    const double logarithm = e * 0.693147180559945309417 + 2 * s * series;
    const double radius = std::sqrt(-2 * logarithm);

    // 2π·b = π/2 · (q + r) with q in 0…4 and r in [-1/2, 1/2].
    const double quarters = 4 * b[i];
    const double q = (quarters + 0x1.8p52) - 0x1.8p52;  // rounded to the nearest
    const double angle = (quarters - q) * 1.57079632679489661923, z = angle * angle;
    double sine = 1, cosine = 1;
    for (int k = 8; k >= 1; --k) {
      sine = 1 - sine * z * (1.0 / (2 * k * (2 * k + 1)));
      cosine = 1 - cosine * z * (1.0 / (2 * k * (2 * k - 1)));
    }
    sine *= angle;
    const bool odd = q == 1 || q == 3;
    const double c = odd ? sine : cosine, d = odd ? cosine : sine;
    a[i] = radius * (q == 1 || q == 2 ? -c : c);
    b[i] = radius * (q == 2 || q == 3 ? -d : d);
  }
}

template <class Block>
void draw(double* out, int64_t count, uint64_t first, Block block) {
  double a[lanes], b[lanes];
  uint64_t index = first;
  const uint64_t end = first + uint64_t(count);
  while (index != end) {
    const uint64_t counter = index >> 1;
    block(counter, a, b);
    const uint64_t stop = std::min<uint64_t>(end - index, 2 * lanes - (index & 1)) + index;
    for (; index != stop; ++index) {
      const uint64_t lane = (index >> 1) - counter;
      *out++ = index & 1 ? b[lane] : a[lane];
    }
  }
}

}  // namespace

uint64_t random_key(uint64_t seed, std::string_view name, uint64_t a, uint64_t b) {
  uint64_t key = mixed(seed + 0x9E3779B97F4A7C15u);
  for (unsigned char letter : name) key = (key ^ letter) * 0x100000001B3u;
  // Include the length, so that names such as "ab" and "a" differ in more than their letters.
  key = mixed(key ^ uint64_t(name.size()) << 56);
  key = mixed(key + 0x9E3779B97F4A7C15u + a);
  return mixed(key + 0x9E3779B97F4A7C15u + b);
}

void draw_uniform(double* out, int64_t count, uint64_t key, uint64_t first) {
  draw(out, count, first, [key](uint64_t counter, double* a, double* b) { uniform_block(key, counter, a, b); });
}

void draw_normal(double* out, int64_t count, uint64_t key, uint64_t first) {
  draw(out, count, first, [key](uint64_t counter, double* a, double* b) {
    uniform_block(key, counter, a, b);
    normal_block(a, b);
  });
}

}  // namespace convoy
