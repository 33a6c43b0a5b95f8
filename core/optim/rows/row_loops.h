// Arithmetic of the row optimizers on the CPU: catches rows up and updates them, in one pass. Pure loops over rows [0,
// n) of a list; rows must be unique. No allocations.
#pragma once
#include <cstdint>

#include "core/optim/loops.h"
#include "core/optim/rows/row_history.h"

namespace convoy {

// The factors of Missed, rounded once to the loop's type.
template <class T>
struct RowFactors {
  T decay, sum, spread, first, second;
  explicit RowFactors(const Missed& missed = {})
      : decay(T(missed.decay)),
        sum(T(missed.sum)),
        spread(T(missed.spread)),
        first(T(missed.first)),
        second(T(missed.second)) {}
  bool nothing() const { return first == T(1) && second == T(1) && decay == T(1) && sum == T(0); }
};

// Rows of a table with their moments.
template <class T>
struct RowList {
  T* values = nullptr;  // [all rows, width]
  T* first = nullptr;   // the same shape; null if there are no such moments
  T* second = nullptr;
  int64_t width = 0;
  const int64_t* rows = nullptr;
  int64_t n = 0;
  const RowFactors<T>* missed = nullptr;  // for each row of the list; null: no missed updates
};

// out [n, width]: the caught-up values; the list stays unchanged.
void adam_look_up(const RowList<float>& list, double eps, float* out);
void adam_look_up(const RowList<double>& list, double eps, double* out);
// Catches up, then updates if there is a gradient [n, width] (null: none).
void adam_rows(const RowList<float>& list, const float* gradient, const AdamStep& step);
void adam_rows(const RowList<double>& list, const double* gradient, const AdamStep& step);
// Applies `count` updates without gradient to one row, each as adam_loop would.
struct AdamReplay {
  double beta1 = 0, beta2 = 0, eps = 0;
};
void adam_replay(float* values, float* mean, float* square, int64_t n, const MissedUpdate* updates, int64_t count,
                 const AdamReplay& replay);
void adam_replay(double* values, double* mean, double* square, int64_t n, const MissedUpdate* updates, int64_t count,
                 const AdamReplay& replay);

// Does the same for SGD with momentum, or without (list.first null).
void sgd_look_up(const RowList<float>& list, float* out);
void sgd_look_up(const RowList<double>& list, double* out);
void sgd_rows(const RowList<float>& list, const float* gradient, const SgdStep& step);
void sgd_rows(const RowList<double>& list, const double* gradient, const SgdStep& step);

// sum += g·g, value −= rate·g ÷ (√sum + eps); list.first contains the sums.
struct AdagradStep {
  double learning_rate = 0;
  double eps = 0;
  double l2 = 0;  // added to the gradient, times the parameter
  double gradient_scale = 1;
};
void adagrad_loop(float* values, const float* gradient, float* sum, int64_t n, const AdagradStep& step);
void adagrad_loop(double* values, const double* gradient, double* sum, int64_t n, const AdagradStep& step);
void adagrad_rows(const RowList<float>& list, const float* gradient, const AdagradStep& step);
void adagrad_rows(const RowList<double>& list, const double* gradient, const AdagradStep& step);

}  // namespace convoy
