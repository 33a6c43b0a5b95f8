// Arithmetic that updates the rows of sparse embeddings: the factors of missed updates, and CPU loops over lists of
// rows.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/optim/loops.h"

namespace convoy {

// --- History: the factors of past updates ---

// Factors of one update of a row without gradient. First the moments m and v decay. Then the value becomes
// value·decay − rate·m ÷ (√v·root + eps).
struct MissedUpdate {
  double decay = 1;
  double rate = 0;
  double root = 1;
};

// Factors of several missed updates together. The value becomes value·decay − sum·m ÷ (√v·spread + eps). Then the
// moments are multiplied by `first` and `second`.
struct Missed {
  double decay = 1;
  double sum = 0, spread = 1;    // A and D of RowHistory
  double first = 1, second = 1;  // decays of m and v
};

// RowHistory: the factors of past updates, from which a row's missed updates are computed.
//
// With momentum a row still changes after its last gradient. Let w, m and v be its value and moments at that update,
// and k = 1, 2, … the updates after it. The value is now w·Πdecay − Σ a_k·m ÷ (√v·d_k + eps).
// Here d_k = root·second^(k÷2), and a_k = rate·first^k times the decays of later updates. Terms shrink by
// first ÷ √second per update, so the sum needs only a window of them. The key optimizer.catch_up selects the method:
//   exact   adds the terms one by one, as dense loops do, with the factors that `update` returns
//   closed  A·m ÷ (√v·D + eps) with A = Σa and D = A ÷ Σ(a÷d). It equals the sum for eps → 0 and for eps → ∞. A and
//           Σ(a÷d) are kept for each last update, so learning rates may change freely; `missed` returns the factors
// Updates are numbered from 0 at the start of the history. All factors are double. Threads: const methods may run at
// the same time.
class RowHistory {
 public:
  // `first`, `second`: decay of the moments per update (`second` is 1 if there is none). `precision`: terms smaller
  // than this fraction of the first one are left out. Error(config) if terms do not shrink that far within 4,096
  // updates.
  RowHistory(double first, double second, double precision);

  // Adds an update. Error(config) if its decay is not positive: learning rate × weight decay is 1 or more.
  void advance(const MissedUpdate& update);
  void restart();  // forgets all updates; requires that no row is stale

  int64_t length() const { return static_cast<int64_t>(updates_.size()); }
  int64_t window() const { return window_; }  // updates after which the terms are too small to count
  // Returns the factors of updates [last, length()) together. Inline: a step of a small model asks for thousands.
  Missed missed(int64_t last) const {
    const int64_t count = length() - last;
    if (count == 0) return {};
    const Sums& sums = sums_[static_cast<size_t>(last)];
    const Powers& powers = powers_[static_cast<size_t>(count)];
    if (!decays_) return {1, sums.terms, sums.spread, powers.first, powers.second};
    // Updates after the window add no terms. Their decay also applies to the terms of earlier updates.
    const double later = count > window_ ? decay(last + window_, length()) : 1;
    return {decay(last, length()), sums.terms * later, sums.spread, powers.first, powers.second};
  }
  const MissedUpdate& update(int64_t index) const { return updates_[static_cast<size_t>(index)]; }
  double decay(int64_t begin, int64_t end) const;  // product of the decays of updates [begin, end)
  // first^count and second^count: decays of the moments in `count` updates.
  double first_power(int64_t count) const { return powers_[static_cast<size_t>(count)].first; }
  double second_power(int64_t count) const { return powers_[static_cast<size_t>(count)].second; }

 private:
  // Numbers that are read together are next to each other: a history outgrows the first-level cache.
  struct Sums {
    double terms = 0, quotients = 0;  // Σa and Σ(a÷d)
    double spread = 1;                // their quotient
  };
  struct Powers {
    double first = 1, second = 1;
  };
  double first_, second_;
  int64_t window_ = 1;
  bool decays_ = false;
  std::vector<double> terms_, quotients_;  // first^k, and first^k ÷ second^(k÷2), for k up to the window
  std::vector<MissedUpdate> updates_;
  std::vector<Sums> sums_;          // by last update
  std::vector<double> logarithms_;  // [i]: logarithm of the product of the first i decays
  std::vector<Powers> powers_;      // by number of updates
};

// --- Loops: catch rows up and update them, in one pass ---
//
// The rows of a list are distinct. Loops allocate no memory.

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

// A list of rows of a table, with the table's moments.
template <class T>
struct RowList {
  T* values = nullptr;  // [all rows, width]
  T* first = nullptr;   // the same shape; null if there are no such moments
  T* second = nullptr;
  int64_t width = 0;
  const int64_t* rows = nullptr;  // [n]: row numbers
  int64_t n = 0;
  const RowFactors<T>* missed = nullptr;  // for each row of the list; null: no missed updates
};

// Writes the caught-up values to out [n, width]. Table and moments stay unchanged.
void adam_look_up(const RowList<float>& list, double eps, float* out);
void adam_look_up(const RowList<double>& list, double eps, double* out);
// Catches the rows up, then updates them with `gradient` [n, width]; null: no update.
void adam_rows(const RowList<float>& list, const float* gradient, const AdamStep& step);
void adam_rows(const RowList<double>& list, const double* gradient, const AdamStep& step);
// Constants of Adam for adam_replay.
struct AdamReplay {
  double beta1 = 0, beta2 = 0, eps = 0;
};
// Applies `count` updates without gradient to a row of n elements, one by one, as adam_loop would.
void adam_replay(float* values, float* mean, float* square, int64_t n, const MissedUpdate* updates, int64_t count,
                 const AdamReplay& replay);
void adam_replay(double* values, double* mean, double* square, int64_t n, const MissedUpdate* updates, int64_t count,
                 const AdamReplay& replay);

struct SgdStep {
  double learning_rate = 0;
  double momentum = 0;
  bool nesterov = false;
  double l2 = 0;
  double gradient_scale = 1;
};
// SGD of dense parameters; `velocity` is null without momentum.
void sgd_loop(float* values, const float* gradient, float* velocity, int64_t n, const SgdStep& step);
void sgd_loop(double* values, const double* gradient, double* velocity, int64_t n, const SgdStep& step);
// SGD of rows with momentum, or without (list.first null): look-up and update as adam_look_up and adam_rows.
void sgd_look_up(const RowList<float>& list, float* out);
void sgd_look_up(const RowList<double>& list, double* out);
void sgd_rows(const RowList<float>& list, const float* gradient, const SgdStep& step);
void sgd_rows(const RowList<double>& list, const double* gradient, const SgdStep& step);

// sum += g·g, then value −= rate·g ÷ (√sum + eps). list.first has the sums. An update without gradient changes nothing,
// so list.missed is not used.
struct AdagradStep {
  double learning_rate = 0;
  double eps = 0;
  double l2 = 0;  // weight decay: gradient += l2·value
  double gradient_scale = 1;
};
void adagrad_loop(float* values, const float* gradient, float* sum, int64_t n, const AdagradStep& step);
void adagrad_loop(double* values, const double* gradient, double* sum, int64_t n, const AdagradStep& step);
void adagrad_rows(const RowList<float>& list, const float* gradient, const AdagradStep& step);
void adagrad_rows(const RowList<double>& list, const double* gradient, const AdagradStep& step);

}  // namespace convoy
