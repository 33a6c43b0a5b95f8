// RowHistory: what updates did to the rows of a table that they did not touch.
//
// Under an optimizer with momentum a row moves on after its last gradient. With m and v its moments after that, and k the
// number of updates since, the value became w·Πdecay − Σ a_k·m ÷ (√v·d_k + eps), where a_k = rate·first^k and
// d_k = root·second^(k÷2). Terms shrink by first ÷ √second an update, so sums over a window of them are whole.
//   exact   the terms one by one, as dense loops compute them: `update` names each
//   closed  A·m ÷ (√v·D + eps) with A = Σa and D = A ÷ Σ(a÷d), which is the sum itself for eps → 0 and for eps → ∞;
//           A and Σ(a÷d) are kept per last update, under any course of learning rates: `missed`
// Updates are counted from the history's start. All factors in double. Pure arithmetic; one thread writes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace convoy {

// One update, to a row without gradient: value·decay − rate·m ÷ (√v·root + eps), once the moments have decayed.
struct SkippedUpdate {
  double decay = 1;
  double rate = 0;
  double root = 1;
};

// What several of them come to.
struct Missed {
  double decay = 1;              // of the value
  double sum = 0, spread = 1;    // A and D above
  double first = 1, second = 1;  // of the moments
};

class RowHistory {
 public:
  // Moments decay by these an update (second: 1 where there is none); `precision`: terms below this share of the first one
  // are left out. Error(config) where they do not shrink within 4,096 updates.
  RowHistory(double first, double second, double precision);

  void advance(const SkippedUpdate& update);
  void restart();  // all rows are up to date: nothing has been missed

  int64_t length() const { return static_cast<int64_t>(updates_.size()); }
  int64_t window() const { return window_; }
  // Of a row whose last update was `last` (0: before all).
  Missed missed(int64_t last) const;
  // Update `index`, from 0, and the product of decays of updates [begin, end).
  const SkippedUpdate& update(int64_t index) const { return updates_[static_cast<size_t>(index)]; }
  double decay(int64_t begin, int64_t end) const;
  double first_power(int64_t count) const { return first_powers_[static_cast<size_t>(count)]; }
  double second_power(int64_t count) const { return second_powers_[static_cast<size_t>(count)]; }

 private:
  double first_, second_;
  int64_t window_ = 1;
  bool decays_ = false;
  std::vector<double> terms_, quotients_;  // first^k, and first^k ÷ second^(k÷2); k up to the window
  std::vector<SkippedUpdate> updates_;
  std::vector<double> sums_, ratios_;                 // Σa and Σ(a÷d), by last update
  std::vector<double> logarithms_;                    // of the product of all decays until then
  std::vector<double> first_powers_, second_powers_;  // by number of updates
};

}  // namespace convoy
