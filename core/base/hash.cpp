#include "core/base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdio>
#include <new>

namespace convoy {

struct Hasher::State {
  XXH3_state_t* xxh = XXH3_createState();
  State() {
    if (xxh == nullptr) throw std::bad_alloc();
    XXH3_128bits_reset(xxh);
  }
  ~State() { XXH3_freeState(xxh); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

namespace {

std::string hex_of(XXH128_hash_t hash) {
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

}  // namespace

Hasher::Hasher() : state_(std::make_unique<State>()) {}
Hasher::~Hasher() = default;
Hasher::Hasher(Hasher&&) noexcept = default;

void Hasher::add(const void* data, size_t bytes) { XXH3_128bits_update(state_->xxh, data, bytes); }
std::string Hasher::hex() const { return hex_of(XXH3_128bits_digest(state_->xxh)); }

std::string hash_hex(const void* data, size_t bytes) { return hex_of(XXH3_128bits(data, bytes)); }

}  // namespace convoy
