// Initial values: a function of (seed, canonical name, global element index). Any rank can compute any piece.
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "core/layers.h"
#include "core/tensors/random.h"

namespace convoy {

// Restores the state of a device's default generator in its destructor.
class KeptGenerator {
 public:
  explicit KeptGenerator(at::Device device) : device_(device), state_(generator_state(device)) {}
  ~KeptGenerator() { set_generator_state(device_, state_); }
  KeptGenerator(const KeptGenerator&) = delete;
  KeptGenerator& operator=(const KeptGenerator&) = delete;

 private:
  at::Device device_;
  at::Tensor state_;
};

// Seeds LibTorch's default CPU generator during its lifetime, and restores its state at the end.
//
// A block that creates foreign modules draws their values from this generator, which is unique in a process. The seed
// depends on the block's name, and a lock keeps other rank threads out. So every layout gets the same values. Restoring
// is necessary because members of an ensemble may be built again during training.
class SeededDefaultGenerator {
 public:
  explicit SeededDefaultGenerator(uint64_t key);

 private:
  std::lock_guard<std::mutex> lock_;
  KeptGenerator kept_;
};

// Fan-in and fan-out of a tensor with this global shape.
struct Fans {
  int64_t in = 1;
  int64_t out = 1;
};
// Shape [out, in, …kernel], as in torch. The fan-in of a vector is its length.
Fans fans_of(at::IntArrayRef shape);

// Returns the initial values of a bias: `requested`, or uniform(±1 ÷ √fan_in) as in torch.
Init bias_init(int64_t fan_in, const std::optional<Init>& requested);

// Writes elements first, first + 1, … (row-major in the global tensor) to `out`: contiguous, any float dtype and
// device.
void fill_initial(const at::Tensor& out, const Init& init, const Fans& fans, uint64_t seed, const std::string& name,
                  uint64_t first = 0);

}  // namespace convoy
