// row_sgd: SGD on the rows of tables. Momentum that a row still has, or weight decay, moves it on as the dense one would: both
// are linear, so what was missed is one product each. The two together are not.
#include <ATen/core/Tensor.h>

#include "core/error.h"
#include "core/optim/row_base.h"

namespace convoy {
namespace {

std::vector<std::string> moment_names(double momentum) {
  if (momentum == 0) return {};
  return {"momentum"};
}

class RowSgd : public RowBase {
 public:
  RowSgd(double momentum, bool nesterov, RowWays ways)
      : RowBase(moment_names(momentum), momentum, 1, linear(ways)), momentum_(momentum), nesterov_(nesterov) {}

 protected:
  void check(const SlotOptions& options) const override {
    if (momentum_ != 0 && options.weight_decay != 0)
      throw Error(Failure::config,
                  "optimizer sgd with momentum adds weight decay to the gradient, which then no row of a table is "
                  "without; leave one of them out for the tables, or take tables with dense gradients");
  }
  SkippedUpdate skipped(const SlotOptions& options, const HostScalars& scalars) const override {
    return {1 - scalars.learning_rate * options.weight_decay, scalars.learning_rate * (nesterov_ ? momentum_ : 1), 1};
  }
  void loop(const RowList<float>& list, const float* gradient, float* out, const SlotOptions& options,
            const HostScalars& scalars) const override {
    run(list, gradient, out, options, scalars);
  }
  void loop(const RowList<double>& list, const double* gradient, double* out, const SlotOptions& options,
            const HostScalars& scalars) const override {
    run(list, gradient, out, options, scalars);
  }
  void replay(float*, float*, float*, int64_t, const SkippedUpdate*, int64_t) const override { nothing(); }
  void replay(double*, double*, double*, int64_t, const SkippedUpdate*, int64_t) const override { nothing(); }

  void tensors(GatheredRows& rows, const SlotOptions& options, const HostScalars& scalars) const override {
    at::Tensor& velocity = rows.moments[0];
    rows.values.mul_(rows.decay);
    if (velocity.defined()) {
      rows.values.sub_(rows.sum * velocity);
      velocity.mul_(rows.first);
    }
    if (!rows.gradients.defined()) return;
    at::Tensor direction = rows.gradients * scalars.gradient_scale + rows.values * options.weight_decay;
    if (velocity.defined()) {
      velocity.mul_(momentum_).add_(direction);
      direction = nesterov_ ? direction.add(velocity, momentum_) : velocity;
    }
    rows.values.sub_(direction, scalars.learning_rate);
  }

 private:
  static RowWays linear(RowWays ways) {
    ways.exact = false;
    return ways;
  }
  [[noreturn]] static void nothing() { CONVOY_CHECK(false, "row_sgd has nothing to go through one by one"); }
  template <class T>
  void run(const RowList<T>& list, const T* gradient, T* out, const SlotOptions& options,
           const HostScalars& scalars) const {
    if (out != nullptr) return sgd_look_up(list, out);
    sgd_rows(list, gradient,
             {scalars.learning_rate, momentum_, nesterov_, options.weight_decay, scalars.gradient_scale});
  }

  double momentum_ = 0;
  bool nesterov_ = false;
};

}  // namespace

std::unique_ptr<RowOptimizer> make_row_sgd(const Options& options, RowWays ways) {
  return std::make_unique<RowSgd>(options.real("momentum"), options.boolean("nesterov"), ways);
}

}  // namespace convoy
