// What `precision` means for a rank: the dtype of its parameters, and the narrower one its products are computed in.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

namespace convoy {

// fp64: float64. fp32, bf16, fp16: float32; the last two compute products in 16 bits by autocast and keep everything else.
at::ScalarType parameter_dtype(const std::string& precision);
std::optional<at::ScalarType> autocast_dtype(const std::string& precision);

// Forgets what autocast has cast, for all threads: it is cast anew when needed.
void clear_autocast_cache();

// Autocast in this thread while alive; without a dtype it changes nothing.
class AutocastScope {
 public:
  AutocastScope(at::Device device, std::optional<at::ScalarType> dtype);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  at::DeviceType device_;
  bool active_;
  bool before_ = false;
};

}  // namespace convoy
