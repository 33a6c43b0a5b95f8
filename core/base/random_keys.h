// Random keys, Philox and single draws: the part of core/tensors/random.h without LibTorch. All functions are pure and
// thread-safe.
//
// Counter n of a key gives four 32-bit words. Draw i uses words 2·(i mod 2) and 2·(i mod 2) + 1 of counter ⌊i/2⌋.
// Floating-point draws use only plain additions, multiplications and correctly rounded operations (no libm). So a
// draw has the same bits on every machine, with every compiler option and every vector width.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace convoy {

// Mixes its arguments into a 64-bit key.
uint64_t random_key(uint64_t seed, std::string_view name, uint64_t a = 0, uint64_t b = 0);

// Four 32-bit words for counter (low, high): Philox 4x32-10.
inline std::array<uint32_t, 4> philox(uint64_t key, uint64_t low, uint64_t high) {
  uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32);
  std::array<uint32_t, 4> c{uint32_t(low), uint32_t(low >> 32), uint32_t(high), uint32_t(high >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t(c[0]) * 0xD2511F53u;
    const uint64_t p1 = uint64_t(c[2]) * 0xCD9E8D57u;
    c = {uint32_t(p1 >> 32) ^ c[1] ^ k0, uint32_t(p1), uint32_t(p0 >> 32) ^ c[3] ^ k1, uint32_t(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// Computes the words of n consecutive counters (low word first … first + n − 1, high word 0). Word w of counter i is
// words[w][i]. The loops vectorise when the function is inlined into a CONVOY_VECTORISED caller.
template <int n>
inline __attribute__((always_inline)) void philox_block(uint64_t key, uint64_t first, uint32_t (&words)[4][n]) {
  auto& [c0, c1, c2, c3] = words;
  for (int i = 0; i < n; ++i) {
    const uint64_t counter = first + uint64_t(i);
    c0[i] = uint32_t(counter);
    c1[i] = uint32_t(counter >> 32);
    c2[i] = 0;
    c3[i] = 0;
  }
  uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < n; ++i) {
      const uint64_t p0 = uint64_t(c0[i]) * 0xD2511F53u;
      const uint64_t p1 = uint64_t(c2[i]) * 0xCD9E8D57u;
      c0[i] = uint32_t(p1 >> 32) ^ c1[i] ^ k0;
      c1[i] = uint32_t(p1);
      c2[i] = uint32_t(p0 >> 32) ^ c3[i] ^ k1;
      c3[i] = uint32_t(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

// Returns 64 random bits: draw number `index` of `key`.
inline uint64_t random_bits(uint64_t key, uint64_t index) {
  const auto words = philox(key, index >> 1, 0);
  const unsigned half = unsigned(index & 1) * 2;
  return uint64_t(words[half]) << 32 | words[half + 1];
}

// Returns a number that is uniform in [0, bound): draw number `index` of `key`. 64-bit multiply-shift: the bias is
// negligible for sampling. Returns 0 for bound 0.
inline uint64_t random_below(uint64_t key, uint64_t index, uint64_t bound) {
  __extension__ using Wide = unsigned __int128;
  return uint64_t(Wide(random_bits(key, index)) * bound >> 64);
}

// Returns a number that is uniform in [0, 1), with 53 bits.
inline double random_uniform(uint64_t key, uint64_t index) { return double(random_bits(key, index) >> 11) * 0x1p-53; }

// Writes draws `first`, first+1, … of `key` as doubles, for the fills of core/tensors/random.h. The loops vectorise.
// Normal draws are standard normal by Box–Muller: draws 2n and 2n+1 are the cosine and the sine of one pair.
void draw_uniform(double* out, int64_t count, uint64_t key, uint64_t first);
void draw_normal(double* out, int64_t count, uint64_t key, uint64_t first);

}  // namespace convoy
