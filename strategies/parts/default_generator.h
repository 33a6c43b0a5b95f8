// LibTorch's default generator, of which a process has one.
//
// A block that makes its own torch modules draws their values from it: seeded by the block's name, and kept from other
// rank threads meanwhile, it gives every layout the same values. Afterwards it is as it was: members of an ensemble may be
// built again in the middle of a training.
#pragma once
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>

#include "core/default_generators.h"

namespace convoy {

class SeededDefaultGenerator {
 public:
  explicit SeededDefaultGenerator(uint64_t key)
      : lock_(default_generator_mutex()), generator_(at::globalContext().defaultGenerator(at::kCPU)) {
    std::lock_guard<std::mutex> lock(generator_.mutex());
    before_ = generator_.get_state();
    generator_.set_current_seed(key);
  }
  ~SeededDefaultGenerator() {
    std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_.set_state(before_);
  }
  SeededDefaultGenerator(const SeededDefaultGenerator&) = delete;
  SeededDefaultGenerator& operator=(const SeededDefaultGenerator&) = delete;

 private:
  std::lock_guard<std::mutex> lock_;
  at::Generator generator_;
  at::Tensor before_;
};

}  // namespace convoy
