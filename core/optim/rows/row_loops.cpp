#include "core/optim/rows/row_loops.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/base/error.h"
#include "core/base/vectorised.h"

namespace convoy {

// --- History ---

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
  sums_.assign(1, {});
  logarithms_.assign(1, 0);
  powers_.assign(1, {});
  decays_ = false;
}

void RowHistory::advance(const MissedUpdate& update) {
  const int64_t now = length() + 1;
  const double quotient = update.rate / update.root;
  for (int64_t last = std::max<int64_t>(0, now - window_); last < now; ++last) {
    const auto k = size_t(now - last);
    Sums& sums = sums_[size_t(last)];
    sums.terms = update.decay * sums.terms + update.rate * terms_[k];
    sums.quotients = update.decay * sums.quotients + quotient * quotients_[k];
    sums.spread = sums.quotients > 0 ? sums.terms / sums.quotients : 1;
  }
  decays_ = decays_ || update.decay != 1;
  if (!(update.decay > 0))
    throw Error(Failure::config, "sparse embeddings: learning rate × weight decay is 1 or more; take smaller ones");
  updates_.push_back(update);
  sums_.emplace_back();
  logarithms_.push_back(logarithms_.back() + std::log(update.decay));
  powers_.push_back({std::pow(first_, double(now)), std::pow(second_, double(now))});
}

double RowHistory::decay(int64_t begin, int64_t end) const {
  return decays_ ? std::exp(logarithms_[size_t(end)] - logarithms_[size_t(begin)]) : 1;
}

// --- Loops ---
//
// Each body is written once and compiled for every type and instruction set. Rows are random accesses into memory, so
// later rows are prefetched.

namespace {

constexpr int64_t rows_ahead = 16;  // rows

CONVOY_BODY void prefetch(const T* row, int64_t width) {
  for (int64_t i = 0; i < width; i += int64_t(64 / sizeof(T))) __builtin_prefetch(row + i);
}

CONVOY_BODY void prefetch_ahead(const RowList<T>& list, int64_t i) {
  if (i + rows_ahead >= list.n) return;
  const int64_t next = list.rows[i + rows_ahead] * list.width;
  prefetch(list.values + next, list.width);
  if (list.first != nullptr) prefetch(list.first + next, list.width);
  if (list.second != nullptr) prefetch(list.second + next, list.width);
}

CONVOY_BODY void adam_look_up_body(const RowList<T>& list, double epsilon, T* __restrict out) {
  const T eps = T(epsilon);
  for (int64_t i = 0; i < list.n; ++i) {
    prefetch_ahead(list, i);
    const int64_t at = list.rows[i] * list.width;
    const T* __restrict w = list.values + at;
    const T* __restrict m = list.first + at;
    const T* __restrict v = list.second + at;
    T* __restrict to = out + i * list.width;
    if (list.missed == nullptr || list.missed[i].nothing()) {
      std::memcpy(to, w, sizeof(T) * size_t(list.width));
      continue;
    }
    const RowFactors<T> f = list.missed[i];
    for (int64_t k = 0; k < list.width; ++k) to[k] = f.decay * w[k] - f.sum * m[k] / (std::sqrt(v[k]) * f.spread + eps);
  }
}

CONVOY_BODY void adam_rows_body(const RowList<T>& list, const T* __restrict gradient, const AdamStep& step) {
  const T scale = T(step.gradient_scale), decay = T(step.decay), eps = T(step.eps);
  const T beta2 = T(step.beta2), rest1 = T(1 - step.beta1), rest2 = T(1 - step.beta2);
  const T rate = T(step.learning_rate / step.correction1), root = T(1 / std::sqrt(step.correction2));
  for (int64_t i = 0; i < list.n; ++i) {
    prefetch_ahead(list, i);
    const int64_t at = list.rows[i] * list.width;
    T* __restrict w = list.values + at;
    T* __restrict m = list.first + at;
    T* __restrict v = list.second + at;
    if (list.missed != nullptr && !list.missed[i].nothing()) {
      const RowFactors<T> f = list.missed[i];
      for (int64_t k = 0; k < list.width; ++k) {
        w[k] = f.decay * w[k] - f.sum * m[k] / (std::sqrt(v[k]) * f.spread + eps);
        m[k] *= f.first;
        v[k] *= f.second;
      }
    }
    if (gradient == nullptr) continue;
    const T* __restrict from = gradient + i * list.width;
    for (int64_t k = 0; k < list.width; ++k) {
      const T g = from[k] * scale;
      const T mean = m[k] + rest1 * (g - m[k]);
      const T square = beta2 * v[k] + rest2 * g * g;
      m[k] = mean;
      v[k] = square;
      w[k] = decay * w[k] - rate * mean / (std::sqrt(square) * root + eps);
    }
  }
}

CONVOY_BODY void adam_replay_body(T* __restrict w, T* __restrict m, T* __restrict v, int64_t n,
                                  const MissedUpdate* updates, int64_t count, const AdamReplay& replay) {
  const T beta2 = T(replay.beta2), rest1 = T(1 - replay.beta1), eps = T(replay.eps);
  for (int64_t s = 0; s < count; ++s) {
    const T decay = T(updates[s].decay), rate = T(updates[s].rate), root = T(updates[s].root);
    for (int64_t k = 0; k < n; ++k) {
      const T mean = m[k] + rest1 * (T(0) - m[k]);
      const T square = beta2 * v[k];
      m[k] = mean;
      v[k] = square;
      w[k] = decay * w[k] - rate * mean / (std::sqrt(square) * root + eps);
    }
  }
}

CONVOY_BODY void sgd_body(T* __restrict values, const T* __restrict gradient, T* __restrict velocity, int64_t n,
                          const SgdStep& step) {
  const T scale = T(step.gradient_scale), l2 = T(step.l2), rate = T(step.learning_rate), momentum = T(step.momentum);
  if (velocity == nullptr) {
    for (int64_t i = 0; i < n; ++i) values[i] -= rate * (gradient[i] * scale + l2 * values[i]);
    return;
  }
  // Nesterov's direction is g + momentum · velocity; without it the direction is the velocity.
  const T of_gradient = T(step.nesterov), of_velocity = step.nesterov ? momentum : T(1);
  for (int64_t i = 0; i < n; ++i) {
    const T g = gradient[i] * scale + l2 * values[i];
    const T u = momentum * velocity[i] + g;
    velocity[i] = u;
    values[i] -= rate * (of_gradient * g + of_velocity * u);
  }
}

CONVOY_BODY void sgd_look_up_body(const RowList<T>& list, T* __restrict out) {
  for (int64_t i = 0; i < list.n; ++i) {
    prefetch_ahead(list, i);
    const int64_t at = list.rows[i] * list.width;
    const T* __restrict w = list.values + at;
    T* __restrict to = out + i * list.width;
    if (list.missed == nullptr || list.missed[i].nothing()) {
      std::memcpy(to, w, sizeof(T) * size_t(list.width));
      continue;
    }
    const RowFactors<T> f = list.missed[i];
    if (list.first == nullptr) {
      for (int64_t k = 0; k < list.width; ++k) to[k] = f.decay * w[k];
      continue;
    }
    const T* __restrict u = list.first + at;
    for (int64_t k = 0; k < list.width; ++k) to[k] = f.decay * w[k] - f.sum * u[k];
  }
}

CONVOY_BODY void sgd_rows_body(const RowList<T>& list, const T* __restrict gradient, const SgdStep& step) {
  for (int64_t i = 0; i < list.n; ++i) {
    prefetch_ahead(list, i);
    const int64_t at = list.rows[i] * list.width;
    T* __restrict w = list.values + at;
    T* __restrict u = list.first == nullptr ? nullptr : list.first + at;
    if (list.missed != nullptr && !list.missed[i].nothing()) {
      const RowFactors<T> f = list.missed[i];
      if (u == nullptr)
        for (int64_t k = 0; k < list.width; ++k) w[k] *= f.decay;
      else
        for (int64_t k = 0; k < list.width; ++k) {
          w[k] = f.decay * w[k] - f.sum * u[k];
          u[k] *= f.first;
        }
    }
    if (gradient == nullptr) continue;
    sgd_body(w, gradient + i * list.width, u, list.width, step);
  }
}

CONVOY_BODY void adagrad_body(T* __restrict values, const T* __restrict gradient, T* __restrict sum, int64_t n,
                              const AdagradStep& step) {
  const T scale = T(step.gradient_scale), l2 = T(step.l2), rate = T(step.learning_rate), eps = T(step.eps);
  for (int64_t i = 0; i < n; ++i) {
    const T g = gradient[i] * scale + l2 * values[i];
    const T s = sum[i] + g * g;
    sum[i] = s;
    values[i] -= rate * g / (std::sqrt(s) + eps);
  }
}

CONVOY_BODY void adagrad_rows_body(const RowList<T>& list, const T* gradient, const AdagradStep& step) {
  for (int64_t i = 0; i < list.n; ++i) {
    prefetch_ahead(list, i);
    const int64_t at = list.rows[i] * list.width;
    adagrad_body(list.values + at, gradient + i * list.width, list.first + at, list.width, step);
  }
}

}  // namespace

#define CONVOY_ROW_LOOPS(T)                                                                                       \
  CONVOY_VECTORISED void adam_look_up(const RowList<T>& list, double eps, T* out) {                               \
    adam_look_up_body(list, eps, out);                                                                            \
  }                                                                                                               \
  CONVOY_VECTORISED void adam_rows(const RowList<T>& list, const T* gradient, const AdamStep& step) {             \
    adam_rows_body(list, gradient, step);                                                                         \
  }                                                                                                               \
  CONVOY_VECTORISED void adam_replay(T* values, T* mean, T* square, int64_t n, const MissedUpdate* updates,       \
                                     int64_t count, const AdamReplay& replay) {                                   \
    adam_replay_body(values, mean, square, n, updates, count, replay);                                            \
  }                                                                                                               \
  CONVOY_VECTORISED void sgd_loop(T* values, const T* gradient, T* velocity, int64_t n, const SgdStep& step) {    \
    sgd_body(values, gradient, velocity, n, step);                                                                \
  }                                                                                                               \
  CONVOY_VECTORISED void sgd_look_up(const RowList<T>& list, T* out) { sgd_look_up_body(list, out); }             \
  CONVOY_VECTORISED void sgd_rows(const RowList<T>& list, const T* gradient, const SgdStep& step) {               \
    sgd_rows_body(list, gradient, step);                                                                          \
  }                                                                                                               \
  CONVOY_VECTORISED void adagrad_loop(T* values, const T* gradient, T* sum, int64_t n, const AdagradStep& step) { \
    adagrad_body(values, gradient, sum, n, step);                                                                 \
  }                                                                                                               \
  CONVOY_VECTORISED void adagrad_rows(const RowList<T>& list, const T* gradient, const AdagradStep& step) {       \
    adagrad_rows_body(list, gradient, step);                                                                      \
  }

CONVOY_ROW_LOOPS(float)
CONVOY_ROW_LOOPS(double)

}  // namespace convoy
