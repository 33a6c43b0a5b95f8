// CONVOY_VECTORISED before a function's definition: compiled for any x86-64 and for AVX2, chosen when the library is
// loaded, so that one binary runs everywhere. Not FMA or AVX-512: contraction would change last bits, and hosts of one
// job may differ. Sanitizers cannot run the resolver, which comes before they are set up.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define CONVOY_VECTORISED __attribute__((target_clones("avx2", "default")))
#else
#define CONVOY_VECTORISED
#endif
