// CONVOY_VECTORISED before a function's definition compiles it for any x86-64 and for AVX2, and selects one when the
// library is loaded. One binary then runs everywhere. Not FMA or AVX-512: contraction changes last bits, and hosts of
// one job may differ. Off under the address and thread sanitizers: the resolver runs before they are set up.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define CONVOY_VECTORISED __attribute__((target_clones("avx2", "default")))
#else
#define CONVOY_VECTORISED
#endif

// CONVOY_BODY precedes a function template over T, the body of a loop. Each caller compiles it inline.
#define CONVOY_BODY  \
  template <class T> \
  inline __attribute__((always_inline))
