// XXH3-128: detects accidental changes quickly; it is no protection against an attacker. xxhash.h stays in hash.cpp.
// Without LibTorch.
#pragma once
#include <cstddef>
#include <memory>
#include <string>

namespace convoy {

class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(Hasher&&) noexcept;
  void add(const void* data, size_t bytes);
  std::string hex() const;  // 32 digits for all data added so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string hash_hex(const void* data, size_t bytes);

}  // namespace convoy
