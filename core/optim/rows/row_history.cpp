#include "core/optim/rows/row_history.h"

#include <cmath>

#include "core/base/error.h"

namespace convoy {
namespace {
constexpr int64_t most_terms = 4096;
}

RowHistory::RowHistory(double first, double second, double precision) : first_(first), second_(second) {
  const double shrinks = first / std::sqrt(second);
  const double terms = first == 0    ? 1
                       : shrinks < 1 ? std::ceil(std::log(precision) / std::log(shrinks))
                                     : most_terms + 1;
  if (!(terms <= double(most_terms)))
    throw Error(Failure::config, "sparse embeddings: after a row's last gradient, momentum changes it for more than ",
                most_terms, " updates with these decay rates (", first, ", ", second,
                "); take a smaller first one, or dense embeddings (model.rows: false)");
  window_ = std::max<int64_t>(1, int64_t(terms));
  for (int64_t k = 0; k <= window_; ++k) {
    terms_.push_back(std::pow(first, double(k)));
    quotients_.push_back(std::pow(shrinks, double(k)));
  }
  restart();
}

void RowHistory::restart() {
  updates_.clear();
  sums_.assign(1, 0);
  ratios_.assign(1, 0);
  logarithms_.assign(1, 0);
  first_powers_.assign(1, 1);
  second_powers_.assign(1, 1);
  decays_ = false;
}

void RowHistory::advance(const MissedUpdate& update) {
  const int64_t now = length() + 1;
  const double quotient = update.rate / update.root;
  for (int64_t last = std::max<int64_t>(0, now - window_); last < now; ++last) {
    const auto index = size_t(last), k = size_t(now - last);
    sums_[index] = update.decay * sums_[index] + update.rate * terms_[k];
    ratios_[index] = update.decay * ratios_[index] + quotient * quotients_[k];
  }
  decays_ = decays_ || update.decay != 1;
  if (!(update.decay > 0))
    throw Error(Failure::config, "sparse embeddings: learning rate × weight decay is 1 or more; take smaller ones");
  updates_.push_back(update);
  sums_.push_back(0);
  ratios_.push_back(0);
  logarithms_.push_back(logarithms_.back() + std::log(update.decay));
  first_powers_.push_back(std::pow(first_, double(now)));
  second_powers_.push_back(std::pow(second_, double(now)));
}

double RowHistory::decay(int64_t begin, int64_t end) const {
  return decays_ ? std::exp(logarithms_[size_t(end)] - logarithms_[size_t(begin)]) : 1;
}

Missed RowHistory::missed(int64_t last) const {
  const int64_t now = length(), count = now - last;
  if (count == 0) return {};
  Missed missed;
  missed.decay = decay(last, now);
  // No terms arise after the window; those within it decayed with the value.
  const double later = count > window_ ? decay(last + window_, now) : 1;
  const double sum = sums_[size_t(last)], ratio = ratios_[size_t(last)];
  missed.sum = sum * later;
  missed.spread = ratio > 0 ? sum / ratio : 1;
  missed.first = first_power(count);
  missed.second = second_power(count);
  return missed;
}

}  // namespace convoy
