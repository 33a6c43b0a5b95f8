// row_adagrad: Adagrad on the rows of tables. A row without gradient does not move, so nothing is ever missed.
#include <ATen/core/Tensor.h>

#include "core/error.h"
#include "core/optim/row_base.h"

namespace convoy {
namespace {

class RowAdagrad : public RowBase {
 public:
  RowAdagrad(double eps, RowWays ways) : RowBase({"sum"}, 0, 1, always(ways)), eps_(eps) {}

 protected:
  void check(const SlotOptions& options) const override {
    if (options.weight_decay != 0)
      throw Error(Failure::config,
                  "optimizer adagrad adds weight decay to the gradient, which then no row of a table is without; take "
                  "no weight decay for the tables, or tables with dense gradients");
  }
  SkippedUpdate skipped(const SlotOptions&, const HostScalars&) const override { return {}; }
  void loop(const RowList<float>& list, const float* gradient, float* out, const SlotOptions&,
            const HostScalars& scalars) const override {
    run(list, gradient, out, scalars);
  }
  void loop(const RowList<double>& list, const double* gradient, double* out, const SlotOptions&,
            const HostScalars& scalars) const override {
    run(list, gradient, out, scalars);
  }
  void replay(float*, float*, float*, int64_t, const SkippedUpdate*, int64_t) const override { nothing(); }
  void replay(double*, double*, double*, int64_t, const SkippedUpdate*, int64_t) const override { nothing(); }

  void tensors(GatheredRows& rows, const SlotOptions&, const HostScalars& scalars) const override {
    if (!rows.gradients.defined()) return;
    const at::Tensor g = rows.gradients * scalars.gradient_scale;
    rows.moments[0].addcmul_(g, g);
    rows.values.sub_(g / rows.moments[0].sqrt().add_(eps_), scalars.learning_rate);
  }

 private:
  // The same thing as keeping no history.
  static RowWays always(RowWays ways) {
    ways.lazy = true;
    return ways;
  }
  [[noreturn]] static void nothing() { CONVOY_CHECK(false, "row_adagrad misses nothing"); }
  template <class T>
  void run(const RowList<T>& list, const T* gradient, T* out, const HostScalars& scalars) const {
    if (out != nullptr)
      sgd_look_up(list, out);  // as they are
    else if (gradient != nullptr)
      adagrad_rows(list, gradient, {scalars.learning_rate, eps_, 0, scalars.gradient_scale});
  }

  double eps_ = 0;
};

}  // namespace

std::unique_ptr<RowOptimizer> make_row_adagrad(const Options& options, RowWays ways) {
  return std::make_unique<RowAdagrad>(options.real("eps"), ways);
}

}  // namespace convoy
