// Common to the tables of this folder: subjects, options, the optimizer, and tolerances within which a layout equals
// `single`.
#pragma once
#include <gtest/gtest.h>

#include <map>
#include <stdexcept>
#include <tuple>

#include "tests/support/torch/equivalence.h"
#include "tests/support/torch/model_subjects.h"
#include "tests/support/torch/subjects.h"

namespace convoy::testing {

constexpr double tolerance = 1e-12;

// Tolerance with gradients that are sent in 16 bits, after ten steps of small models.
inline double narrow_tolerance(const std::string& numbers) { return numbers == "fp16" ? 2e-2 : 1e-1; }

// AdamW, with biases in a separate parameter group.
inline Training adamw(bool clipping) {
  Training training;
  training.optimizer = std::string("{name: adamw, lr: 3.0e-3, eps: 1.0e-5, weight_decay: 0.1, ") +
                       (clipping ? "clip_norm: 0.3, " : "") + "groups: [{match: bias, weight_decay: 0}]}";
  return training;
}

inline Subject subject_named(const std::string& name) {
  if (name == "ranking") return ranking_subject();
  for (auto* make : {classifier_subject, gpt_subject, llama_subject, convnet_subject, ncf_subject, mlp_subject,
                     pairs_subject, norms_subject, dropout_subject, tied_subject, foreign_subject}) {
    Subject subject = make();
    if (subject.name == name) return subject;
  }
  throw std::logic_error(name);
}

constexpr int micro_batches = 4;  // have 4, 4, 4, 4 rows; in the last batch of 11 rows: 3, 3, 3, 2

inline std::string common(int every, int micro = micro_batches) {
  return ", micro_batches: " + std::to_string(micro) + ", sync: {every: " + std::to_string(every) + "}";
}

// Returns `single` with these options, trained once for all cells that are compared with it.
inline const Trajectory& reference_of(const Subject& subject, const std::string& options, bool clipping) {
  static std::map<std::tuple<std::string, std::string, bool>, Trajectory> known;
  const auto key = std::make_tuple(subject.name, options, clipping);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  return known[key] = train({"single", options, 1}, subject, adamw(clipping));
}

// Compares initial values bit for bit, and parameters, moments, buffers, gradients, losses and norms within the
// tolerance. `buffers` = false leaves out buffers and evaluations that use them.
inline void expect_equal(const Trajectory& cut, const Trajectory& whole, bool buffers = true) {
  EXPECT_TRUE(bitwise_equal(cut.initial, whole.initial));
  const Difference worst =
      difference(cut.final, whole.final, buffers ? std::vector<std::string>{} : std::vector<std::string>{"buffer/"});
  EXPECT_LE(worst.worst, tolerance) << worst.key;
  const Difference gradient = difference(cut.gradients, whole.gradients);
  EXPECT_LE(gradient.worst, tolerance) << gradient.key;
  ASSERT_EQ(cut.losses.size(), whole.losses.size());
  for (size_t i = 0; i < whole.losses.size(); ++i) EXPECT_NEAR(cut.losses[i], whole.losses[i], tolerance * 10);
  ASSERT_EQ(cut.norms.size(), whole.norms.size());
  for (size_t i = 0; i < whole.norms.size(); ++i) EXPECT_NEAR(cut.norms[i] / whole.norms[i], 1, tolerance * 10);
  if (buffers) {
    EXPECT_NEAR(cut.evaluated, whole.evaluated, tolerance * 10);
  }
  // Models that did not change would prove nothing.
  EXPECT_GT(difference(whole.final, whole.initial).worst, 3e-3);
}

}  // namespace convoy::testing
