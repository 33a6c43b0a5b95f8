// Common code of optimizers for flat dense slots: slots and their moments, scalars, and the choice between three paths.
//
//   loop     CPU: one fused pass over float or double; bf16 and fp16 through float in small chunks, with float moments
//   tensors  any device, dtype and number of members, as tensor operations without a read to the host
//   fused    CUDA, one member, fp32 or fp64: LibTorch's fused kernels
//
// Tests compare the other paths with `tensors`.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/optim/catalogue/catalogue.h"
#include "core/optim/loops.h"
#include "core/optim/optimizer.h"

namespace convoy {

struct Slot {
  at::Tensor values;
  SlotOptions options;
  std::vector<at::Tensor> moments;  // in the shape of values; float for bf16 and fp16
  std::vector<double> decays = {};  // one per member; empty: the options' value for all
  at::Tensor decay_column = {};     // `decays` as [members, 1] on the device
};

// Scalars of one member on the host, for CPU slots and for rows.
struct HostScalars {
  double learning_rate = 0;  // includes the group's factor
  int64_t step = 0;
  double gradient_scale = 1;
};
// Reads them, without a kernel if they are on the CPU; nullopt if the update does not apply to the member.
std::optional<HostScalars> host_scalars(const UpdateScalars& scalars, const SlotOptions& options, int64_t member = 0);

// Returns Adam's scalars of one update of one member, for dense slots and for rows.
AdamStep adam_step(const OptimizerOptions& settings, const SlotOptions& options, const HostScalars& scalars);

// Scalars of shape [members, 1], which broadcast over [members, elements], in the dtype of the arithmetic.
struct TensorScalars {
  at::Tensor learning_rate, step, gradient_scale, weight_decay;
};

class DenseOptimizer : public Optimizer {
 public:
  explicit DenseOptimizer(std::vector<std::string> moment_names) : moment_names_(std::move(moment_names)) {}

  int add_slot(at::Tensor values, const SlotOptions& options) override;
  void update(int slot, const Gradient& gradient, const UpdateScalars& scalars) override;
  NamedTensors moments(int slot) override;
  void set_weight_decays(int slot, const std::vector<double>& decays) override;

 protected:
  // Updates elements [0, n) of one member. `moments`: one per moment name.
  virtual void loop(float* values, const float* gradient, float* const* moments, int64_t n, const SlotOptions& options,
                    const HostScalars& scalars) const = 0;
  virtual void loop(double* values, const double* gradient, double* const* moments, int64_t n,
                    const SlotOptions& options, const HostScalars& scalars) const = 0;
  // Overwrites the given values and moments: [members, elements] in one float dtype.
  virtual void tensors(at::Tensor& values, const at::Tensor& gradient, std::vector<at::Tensor>& moments,
                       const SlotOptions& options, const TensorScalars& scalars) const = 0;
  // Takes float32 scalars with one element on the device. `skip` = 1 leaves everything unchanged; gradients are divided
  // by `divisor`.
  virtual void fused(Slot& slot, const at::Tensor& gradient, const at::Tensor& learning_rate, const at::Tensor& step,
                     const at::Tensor& divisor, const at::Tensor& skip) const = 0;

 private:
  void update_by_loop(Slot& slot, const at::Tensor& gradient, const UpdateScalars& scalars) const;
  void update_by_tensors(Slot& slot, const at::Tensor& gradient, const UpdateScalars& scalars) const;
  void update_fused(Slot& slot, const at::Tensor& gradient, const UpdateScalars& scalars) const;

  std::vector<std::string> moment_names_;
  std::vector<Slot> slots_;
};

}  // namespace convoy
