// Arithmetic of the row optimizers: the factors of missed updates, and the loops over rows [0, n) of a list on the CPU.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/optim/loops.h"

namespace convoy {

// --- History: the factors of past updates ---

// One update of a row without gradient: value·decay − rate·m ÷ (√v·root + eps), after the moments have decayed.
struct MissedUpdate {
  double decay = 1;
  double rate = 0;
  double root = 1;
};

// Several missed updates, combined.
struct Missed {
  double decay = 1;              // decay of the value
  double sum = 0, spread = 1;    // A and D of RowHistory
  double first = 1, second = 1;  // decays of the moments
};

// RowHistory: the factors of past updates, from which a row's missed updates are computed.
//
// Under an optimizer with momentum a row changes after its last gradient. Let m and v be its moments then, and k the
// number of updates since. The value became w·Πdecay − Σ a_k·m ÷ (√v·d_k + eps), with a_k = rate·first^k and d_k =
// root·second^(k÷2). Terms shrink by first ÷ √second per update, so sums over a window of them are complete.
//   exact   computes the terms one by one, as dense loops do; `update` returns each
//   closed  A·m ÷ (√v·D + eps) with A = Σa and D = A ÷ Σ(a÷d), which equals the sum for eps → 0 and for eps → ∞;
//           A and Σ(a÷d) are kept per last update, for any sequence of learning rates; `missed` returns them
// Updates are counted from the start of the history. All factors are double. Pure arithmetic; one thread writes.
class RowHistory {
 public:
  // `first`, `second`: decay of the moments per update (`second` is 1 if there is none). `precision`: terms smaller
  // than this fraction of the first one are left out. Error(config) if terms do not shrink that far within 4,096
  // updates.
  RowHistory(double first, double second, double precision);

  void advance(const MissedUpdate& update);
  void restart();  // marks all rows as current

  int64_t length() const { return static_cast<int64_t>(updates_.size()); }
  int64_t window() const { return window_; }
  // Returns the combined updates since update `last` of a row (0: before all).
  Missed missed(int64_t last) const;
  // Returns update `index`, from 0; and the product of decays of updates [begin, end).
  const MissedUpdate& update(int64_t index) const { return updates_[static_cast<size_t>(index)]; }
  double decay(int64_t begin, int64_t end) const;
  double first_power(int64_t count) const { return first_powers_[static_cast<size_t>(count)]; }
  double second_power(int64_t count) const { return second_powers_[static_cast<size_t>(count)]; }

 private:
  double first_, second_;
  int64_t window_ = 1;
  bool decays_ = false;
  std::vector<double> terms_, quotients_;  // first^k, and first^k ÷ second^(k÷2), for k up to the window
  std::vector<MissedUpdate> updates_;
  std::vector<double> sums_, ratios_;                 // Σa and Σ(a÷d), by last update
  std::vector<double> logarithms_;                    // logarithms of the product of all decays until then
  std::vector<double> first_powers_, second_powers_;  // by number of updates
};

// --- Loops: catch rows up and update them, in one pass ---
//
// Rows must be unique. No allocations.

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
// Constants of Adam for adam_replay.
struct AdamReplay {
  double beta1 = 0, beta2 = 0, eps = 0;
};
// Applies `count` updates without gradient to one row, each as adam_loop would.
void adam_replay(float* values, float* mean, float* square, int64_t n, const MissedUpdate* updates, int64_t count,
                 const AdamReplay& replay);
void adam_replay(double* values, double* mean, double* square, int64_t n, const MissedUpdate* updates, int64_t count,
                 const AdamReplay& replay);

// SGD with momentum, or without (list.first null): look-up and update as adam_look_up and adam_rows.
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
