// Skinny products compared with LibTorch's, for every vector width of this machine.
#include "core/tensors/skinny_product.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "core/base/text.h"
#include "core/tensors/random.h"

namespace convoy::testing {
namespace {

const std::vector<int64_t> widths{1, 3, 8, 16, 17, 31, 32, 33, 53, 64};
const std::vector<int64_t> heights{1, 7, 8, 255, 257, 600};

at::Tensor numbers(at::IntArrayRef shape, uint64_t key, at::ScalarType dtype = at::kDouble) {
  at::Tensor out = at::empty(shape, dtype);
  fill_normal(out, key, 0, 0, 1);
  return out;
}

double worst(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

// The memory before and after `out` does not change.
template <class T>
struct Guarded {
  std::vector<T> memory;
  T* out;
  explicit Guarded(int64_t size) : memory(size_t(size) + 128, T(77)), out(memory.data() + 64) {}
  bool untouched() const {
    for (size_t i = 0; i < 64; ++i)
      if (memory[i] != T(77) || memory[memory.size() - 1 - i] != T(77)) return false;
    return true;
  }
  at::Tensor tensor(at::IntArrayRef shape) {
    return at::from_blob(out, shape, c10::CppTypeToScalarType<T>::value).clone();
  }
};

template <class T>
void every_width_of_vectors(double tolerance) {
  const auto dtype = c10::CppTypeToScalarType<T>::value;
  for (const SkinnyLoops<T>& loops : skinny_loops(T()))
    for (const int64_t n : heights)
      for (const int64_t depth : widths)
        for (const int64_t width : widths) {
          const at::Tensor rows = numbers({n, depth}, 1, dtype), other = numbers({n, width}, 2, dtype);
          const int64_t apart = padded_width<T>(width);
          const at::Tensor weights = numbers({depth, apart}, 3, dtype), first = numbers({apart}, 4, dtype);
          const at::Tensor wanted = at::addmm(first, rows, weights).narrow(1, 0, width);
          const auto* r = rows.const_data_ptr<T>();
          const auto what = [&] { return convoy::str(n, " rows of ", depth, " to ", width); };
          for (const bool relu : {false, true}) {
            Guarded<T> out(n * width);
            loops.product(r, weights.const_data_ptr<T>(), first.const_data_ptr<T>(), out.out, n, depth, width, relu);
            ASSERT_LE(worst(out.tensor({n, width}), relu ? wanted.relu() : wanted), tolerance * 16) << what();
            ASSERT_TRUE(out.untouched()) << what();
          }
          Guarded<T> sum(depth * width);
          const auto* o = other.const_data_ptr<T>();
          loops.outer(r, o, sum.out, n, depth, depth, width, false);
          loops.outer(r, o, sum.out, n, depth, depth, width, true);
          ASSERT_LE(worst(sum.tensor({depth, width}), 2 * rows.t().mm(other)), tolerance * 200) << what();
          ASSERT_TRUE(sum.untouched()) << what();
        }
}

TEST(SkinnyLoops, EqualLibTorchForDoubles) { every_width_of_vectors<double>(1e-14); }
TEST(SkinnyLoops, EqualLibTorchForFloats) { every_width_of_vectors<float>(4e-6); }

// A row's result does not depend on other rows, and a sum does not depend on threads: the distribution of rows changes
// no bit.
TEST(SkinnyProduct, BitsDoNotDependOnOtherRowsOrThreads) {
  const at::Tensor x = numbers({3000, 53}, 1, at::kFloat), weight = numbers({31, 53}, 2, at::kFloat),
                   bias = numbers({31}, 3, at::kFloat);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor alone = skinny_linear(x, weight, bias, true);
  at::Tensor sums = at::zeros({31, 53});
  skinny_weight_gradient(alone, x, sums, false);
  for (int64_t row : {0, 5, 8, 2999})
    EXPECT_TRUE(skinny_linear(x.narrow(0, row, 1), weight, bias, true).equal(alone.narrow(0, row, 1))) << row;
  at::set_num_threads(3);
  at::Tensor again = at::zeros({31, 53});
  skinny_weight_gradient(alone, x, again, false);
  EXPECT_TRUE(skinny_linear(x, weight, bias, true).equal(alone));
  EXPECT_TRUE(again.equal(sums));
  at::set_num_threads(threads);
}

TEST(SkinnyProduct, AcceptsInputsOfLayers) {
  const at::Tensor weight = numbers({5, 4}, 1), bias = numbers({5}, 2);
  const at::Tensor x = numbers({2, 3, 8}, 3).slice(2, 0, 8, 2);  // with gaps
  ASSERT_TRUE(is_skinny(x, weight));
  const at::Tensor out = skinny_linear(x, weight, bias, false);
  EXPECT_LE(worst(out, at::linear(x, weight, bias)), 1e-14);
  EXPECT_LE(worst(skinny_linear(x, weight, {}, false), at::linear(x, weight)), 1e-14);
  const at::Tensor flat = out.reshape({-1, 5});
  const at::Tensor turned = flat.t().contiguous().t();
  EXPECT_LE(worst(skinny_input_gradient(turned, weight), flat.mm(weight)), 1e-14);
  at::Tensor sum = numbers({5}, 4);
  const at::Tensor wanted = sum + flat.sum(0);
  ASSERT_TRUE(is_skinny_sum(turned, sum));
  skinny_bias_gradient(turned, sum, true);
  EXPECT_LE(worst(sum, wanted), 1e-14);
  skinny_bias_gradient(flat, sum, false);
  EXPECT_LE(worst(sum, flat.sum(0)), 1e-14);
  EXPECT_TRUE(skinny_relu_gradient(turned, out.reshape({-1, 5})).equal(at::threshold_backward(flat, flat, 0)));
  // Columns of a wider gradient, as those of cat(), and an expanded one.
  const at::Tensor columns = numbers({2, 3, 12}, 5).narrow(-1, 4, 5);
  EXPECT_TRUE(skinny_relu_gradient(columns, out).equal(at::threshold_backward(columns, out, 0)));
  const at::Tensor expanded = numbers({}, 6).expand({2, 3, 5});
  EXPECT_TRUE(skinny_relu_gradient(expanded, out).equal(at::threshold_backward(expanded, out, 0)));
}

TEST(SkinnyProduct, SumsRowsOfEveryWidth) {
  for (const int64_t width : {1, 2, 3, 7, 8, 16, 31, 32, 48, 63, 64}) {
    for (const int64_t n : {1, 5, 63, 64, 255, 256, 257, 1000}) {
      const at::Tensor rows = numbers({n, width}, 7), before = numbers({width}, 8);
      at::Tensor sum = before.clone();
      skinny_bias_gradient(rows, sum, true);
      EXPECT_LE(worst(sum, before + rows.sum(0)), 1e-12) << n << " rows of " << width;
      skinny_bias_gradient(rows, sum, false);
      EXPECT_LE(worst(sum, rows.sum(0)), 1e-12) << n << " rows of " << width;
    }
  }
}

// Each member of a stack gets the bits that it would have alone.
TEST(SkinnyProduct, MultipliesMembersWithGapsBetweenThem) {
  constexpr int64_t members = 3, n = 40, in = 17, out = 9;
  const auto with_gaps = [](at::IntArrayRef shape, uint64_t key) {
    return numbers({members, 400}, key, at::kFloat).narrow(1, 64, c10::multiply_integers(shape)).unflatten(1, shape);
  };
  const at::Tensor weight = with_gaps({out, in}, 1), bias = with_gaps({out}, 2);
  const at::Tensor x = numbers({members, in, n}, 3, at::kFloat).transpose(1, 2);
  const at::Tensor gradient = numbers({members, n, out}, 4, at::kFloat);
  ASSERT_TRUE(is_skinny(x, weight));
  ASSERT_TRUE(is_skinny_sum(gradient, bias));
  const at::Tensor result = skinny_linear(x, weight, bias, true), to_input = skinny_input_gradient(gradient, weight);
  for (const bool add : {false, true}) {
    const at::Tensor weights = with_gaps({out, in}, 5), biases = with_gaps({out}, 6);
    const at::Tensor weights_before = weights.clone(), biases_before = biases.clone();
    skinny_weight_gradient(gradient, x, weights, add);
    skinny_bias_gradient(gradient, biases, add);
    for (int64_t m = 0; m < members; ++m) {
      EXPECT_TRUE(result[m].equal(skinny_linear(x[m], weight[m], bias[m], true))) << m;
      EXPECT_TRUE(to_input[m].equal(skinny_input_gradient(gradient[m], weight[m]))) << m;
      at::Tensor one_weight = weights_before[m].clone(), one_bias = biases_before[m].clone();
      skinny_weight_gradient(gradient[m], x[m], one_weight, add);
      skinny_bias_gradient(gradient[m], one_bias, add);
      EXPECT_TRUE(weights[m].equal(one_weight)) << m;
      EXPECT_TRUE(biases[m].equal(one_bias)) << m;
    }
    // Memory between the members is untouched.
    const at::Tensor all = weights.as_strided({members, 400}, {400, 1}, 0).clone(),
                     before = numbers({members, 400}, 5, at::kFloat);
    EXPECT_TRUE(all.narrow(1, 0, 64).equal(before.narrow(1, 0, 64)));
    EXPECT_TRUE(all.narrow(1, 64 + in * out, 64).equal(before.narrow(1, 64 + in * out, 64)));
  }
}

TEST(SkinnyProduct, KeepsNaNInItsRow) {
  at::Tensor x = at::ones({40, 7});
  x[9][2] = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor out = skinny_linear(x, at::ones({3, 7}), at::ones({3}), true);
  EXPECT_EQ(out.isnan().sum().item<int64_t>(), 3);
  EXPECT_TRUE(out[9].isnan().all().item<bool>());
  EXPECT_TRUE(skinny_relu_gradient(at::full({40, 3}, 2.0f), out).eq(2).all().item<bool>());
  at::Tensor sums = at::empty({3, 7});
  skinny_weight_gradient(at::ones({40, 3}), x, sums, false);
  EXPECT_EQ(sums.isnan().sum().item<int64_t>(), 3);  // the rows of one feature
}

TEST(SkinnyProduct, LeavesOtherShapesToLibTorch) {
  const at::Tensor x = at::ones({4, 8}), weight = at::ones({3, 8});
  EXPECT_TRUE(is_skinny(x, weight));
  EXPECT_FALSE(is_skinny(at::ones({4, 65}), at::ones({3, 65})));
  EXPECT_FALSE(is_skinny(x, at::ones({65, 8})));
  EXPECT_FALSE(is_skinny(x.to(at::kBFloat16), weight.to(at::kBFloat16)));
  EXPECT_FALSE(is_skinny(x.to(at::kDouble), weight));
  EXPECT_FALSE(is_skinny(at::ones({0, 8}), weight));
  EXPECT_FALSE(is_skinny(x, at::ones({8, 3}).t()));
  EXPECT_FALSE(is_skinny(at::ones({4, 7}), weight));
  // Members: as many inputs as weights, and no gap within a member.
  EXPECT_TRUE(is_skinny(at::ones({2, 4, 8}), at::ones({2, 3, 8})));
  EXPECT_FALSE(is_skinny(at::ones({4, 8}), at::ones({2, 3, 8})));
  EXPECT_FALSE(is_skinny(at::ones({1, 4, 8}), at::ones({2, 3, 8})));
  EXPECT_FALSE(is_skinny(at::ones({2, 4, 8}), at::ones({2, 8, 3}).transpose(1, 2)));
  EXPECT_FALSE(is_skinny_sum(at::ones({2, 4, 8}), at::ones({8})));
}

}  // namespace
}  // namespace convoy::testing
