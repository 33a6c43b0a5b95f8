// LibTorch's default generator, of which a process has one.
//
// A block that makes its own torch modules draws their values from it: seeded by the block's name, and kept from other
// rank threads meanwhile, it gives every layout the same values.
#pragma once
#include <ATen/Context.h>

#include <cstdint>
#include <mutex>

namespace convoy {

class SeededDefaultGenerator {
 public:
  explicit SeededDefaultGenerator(uint64_t key) : lock_(mutex()) {
    at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
    generator.set_current_seed(key);
  }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  std::lock_guard<std::mutex> lock_;
};

}  // namespace convoy
