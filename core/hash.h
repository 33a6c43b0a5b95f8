// XXH3-128: told fast from accidents, not from an adversary. Without LibTorch; xxhash.h stays in hash.cpp.
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
  std::string hex() const;  // 32 digits, of all that was added so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string hash_hex(const void* data, size_t bytes);

}  // namespace convoy
