#include "core/tensors/compare.h"

#include <ATen/core/grad_mode.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <set>

namespace convoy {
namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();
constexpr double floor_of_kind = 1e-3;

// "parameter/NAME" and "moment/exp_avg/NAME" (core/state.h) → kind and name.
TensorDifference named(const std::string& key) {
  TensorDifference difference;
  const std::string moment = "moment/";
  const size_t from = key.rfind(moment, 0) == 0 ? moment.size() : 0;
  const size_t slash = key.find('/', from);
  CONVOY_CHECK(slash != std::string::npos, "'", key, "' is not the key of a state entry");
  difference.kind = key.substr(from, slash - from);
  difference.name = key.substr(slash + 1);
  return difference;
}

double largest(const at::Tensor& tensor) { return tensor.numel() == 0 ? 0 : tensor.abs().max().item<double>(); }

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

// Fills all members but `relative`; returns max|b|.
double measure(TensorDifference& difference, const at::Tensor& given, const at::Tensor& reference) {
  const at::Tensor a = given.detach().cpu().contiguous(), b = reference.detach().cpu().contiguous();
  difference.shape = b.sizes().vec();
  const at::Tensor exact = b.to(at::kDouble);
  if (a.sizes() != b.sizes()) {
    difference.fault = convoy::str("has shape ", a.sizes(), ", the reference's has ", b.sizes());
  } else {
    difference.same_bytes = same_bytes(a, b);
    difference.absolute = largest(a.to(at::kDouble) - exact);
  }
  return largest(exact);
}

}  // namespace

std::vector<TensorDifference> compare(const StateView& a, const StateView& b) {
  at::NoGradGuard no_grad;
  const std::set<std::string> given(a.keys.begin(), a.keys.end());
  const std::set<std::string> expected(b.keys.begin(), b.keys.end());
  std::vector<TensorDifference> differences;
  std::vector<double> sizes;
  std::map<std::string, double> kinds;  // largest value of each kind
  for (const std::string& key : b.keys) {
    TensorDifference difference = named(key);
    const at::Tensor reference = b.tensor(key);
    double size = 0;
    if (given.count(key) != 0) {
      size = measure(difference, a.tensor(key), reference);
    } else {
      difference.fault = "is missing, but the reference has it";
      difference.shape = reference.sizes().vec();
      size = largest(reference.detach().to(at::kDouble));
    }
    double& kind = kinds[difference.kind];
    kind = std::max(kind, size);
    sizes.push_back(size);
    differences.push_back(std::move(difference));
  }
  for (size_t i = 0; i < differences.size(); ++i) {
    TensorDifference& difference = differences[i];
    // Two states of zeros are equal; NaN anywhere is not.
    const double scale = std::max({sizes[i], floor_of_kind * kinds[difference.kind], 1e-300});
    difference.relative = difference.fault.empty() ? difference.absolute / scale : infinite;
    if (!std::isfinite(difference.relative) || !std::isfinite(sizes[i])) difference.relative = infinite;
  }
  for (const std::string& key : a.keys) {
    if (expected.count(key) != 0) continue;
    TensorDifference difference = named(key);
    difference.shape = a.tensor(key).sizes().vec();
    difference.fault = "exists, but the reference has no tensor of that name";
    difference.relative = infinite;
    differences.push_back(std::move(difference));
  }
  return differences;
}

}  // namespace convoy
