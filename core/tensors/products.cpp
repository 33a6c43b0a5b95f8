#include "core/tensors/products.h"

#include <ATen/Context.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <exception>

#if defined(__x86_64__)
#include <cpuid.h>

#include <cstring>
#endif

#include "core/tensors/tensor_memory.h"

// LibTorch exports this function without a header, so a version may lack it: then the address is null.
namespace at::native {
__attribute__((weak)) void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& result, float beta,
                                         float alpha);
}  // namespace at::native

namespace convoy {
namespace {

// From this size on oneDNN takes less time than MKL; a call costs 10 µs.
constexpr double least_operations = 4e6;

// True for processors on which oneDNN uses AVX-512 and MKL does not.
bool is_zen5_or_newer() {
#if defined(__x86_64__)
  unsigned most = 0, name[3], version = 0, unused[3];
  if (__get_cpuid(0, &most, &name[0], &name[2], &name[1]) == 0 || std::memcmp(name, "AuthenticAMD", 12) != 0)
    return false;
  __get_cpuid(1, &version, &unused[0], &unused[1], &unused[2]);
  const unsigned family = ((version >> 8) & 0xf) + ((version >> 20) & 0xff);
  return family >= 0x1a && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#else
  return false;
#endif
}

// A LibTorch that was built without oneDNN exports the function too; it throws there.
bool works() {
  if (at::native::mkldnn_matmul == nullptr) return false;
  try {
    const at::Tensor ones = at::ones({8, 8}, at::kFloat), out = at::zeros({8, 8}, at::kFloat);
    at::native::mkldnn_matmul(ones, ones, out, 0, 1);
    return at::equal(out, at::full({8, 8}, 8, at::kFloat));
  } catch (const std::exception&) {
    return false;
  }
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.layout() == at::kStrided && !tensor.is_neg() &&
         !tensor._is_zerotensor() && !at::isTensorSubclassLike(tensor);
}

bool is_turned(const at::Tensor& tensor) { return tensor.mT().is_contiguous(); }
// True for a matrix, or a batch without gaps, that is contiguous or whose transpose is. oneDNN copies others.
bool has_format(const at::Tensor& tensor) { return tensor.is_contiguous() || is_turned(tensor); }

bool needs_graph(const at::Tensor& a, const at::Tensor& b) {
  return at::GradMode::is_enabled() && (a.requires_grad() || b.requires_grad()) &&
         !c10::impl::tls_local_dispatch_key_set().excluded_.has(c10::DispatchKey::AutogradFunctionality);
}

double operations(const at::Tensor& a, const at::Tensor& b) { return 2.0 * double(a.numel()) * double(b.size(-1)); }
// True if the product of each matrix of a batch is large enough for a separate call.
bool each_is_large(const at::Tensor& a, const at::Tensor& b) {
  return operations(a, b) >= least_operations * double(a.size(0));
}

// `each`: one call of oneDNN for each matrix of a batch.
enum class Library { torch, onednn, onednn_each };

Library fastest(const at::Tensor& a, const at::Tensor& b) {
  static const bool faster = is_zen5_or_newer() && works();
  if (!faster || !is_plain(a) || !is_plain(b) || a.dim() != b.dim() || a.size(-1) != b.size(-2) || needs_graph(a, b) ||
      (a.dim() == 3 && a.size(0) != b.size(0)) || at::autocast::is_autocast_enabled(at::kCPU) ||
      !at::globalContext().userEnabledMkldnn() || tensors_are_fake())
    return Library::torch;
  if (operations(a, b) < least_operations || a.size(-1) == 1) return Library::torch;
  const at::Tensor one_a = a.dim() == 3 ? a.select(0, 0) : a, one_b = b.dim() == 3 ? b.select(0, 0) : b;
  // Measured: with fewer columns MKL is faster.
  if (!has_format(one_a) || !has_format(one_b) || b.size(-1) < (is_turned(one_b) ? 8 : 2)) return Library::torch;
  if (has_format(a) && has_format(b)) return Library::onednn;
  // oneDNN would copy a batch with gaps. That pays only for many rows.
  if (each_is_large(a, b)) return Library::onednn_each;
  return a.size(1) >= 64 ? Library::onednn : Library::torch;
}

// out = a · b, or with `add` out += a · b.
void multiply(Library library, const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) {
  RECORD_FUNCTION("convoy::product", c10::ArrayRef<const c10::IValue>{});
  const float kept = add ? 1 : 0;
  if (library == Library::onednn) return at::native::mkldnn_matmul(a, b, out, kept, 1);
  for (int64_t i = 0; i < a.size(0); ++i)
    at::native::mkldnn_matmul(a.select(0, i), b.select(0, i), out.select(0, i), kept, 1);
}

}  // namespace

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  const Library library = fastest(a, b);
  if (library == Library::torch) return a.dim() == 2 ? a.mm(b) : a.bmm(b);
  at::Tensor out = at::empty(with_last(a.sizes(), b.size(-1)), a.options().requires_grad(false));
  multiply(library, out, a, b, false);
  return out;
}

void product_into(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) {
  const bool fits =
      out.dim() == a.dim() && out.size(-1) == b.size(-1) && out.size(-2) == a.size(-2) && out.size(0) == a.size(0);
  const bool gaps = fits && out.dim() == 3 && !out.is_contiguous();
  const bool plain = fits && is_plain(out) && (gaps ? out.select(0, 0) : out).is_contiguous();
  Library library = plain ? fastest(a, b) : Library::torch;
  // Only large matrices are written into `out` one by one. For small ones the calls cost as much as the product.
  if (gaps && library != Library::torch && each_is_large(a, b))
    library = Library::onednn_each;
  else if (gaps)
    return void(add ? out.add_(product(a, b)) : out.copy_(product(a, b)));
  at::Tensor to = out;
  if (library != Library::torch)
    multiply(library, out, a, b, add);
  else if (a.dim() == 2)
    add ? to.addmm_(a, b) : at::mm_out(to, a, b);
  else
    add ? to.baddbmm_(a, b) : at::bmm_out(to, a, b);
}

at::Tensor linear_product(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  const bool plain = is_plain(input) && input.dim() > 0 && input.numel() > 0 && input.is_contiguous() &&
                     weight.dim() == 2 && (!bias.defined() || (is_plain(bias) && !needs_graph(bias, bias)));
  if (!plain) return at::linear(input, weight, bias);
  const at::Tensor rows = input.view({-1, input.size(-1)}), turned = weight.t();
  const Library library = fastest(rows, turned);
  if (library == Library::torch) return at::linear(input, weight, bias);
  at::Tensor out = at::empty({rows.size(0), weight.size(0)}, weight.options().requires_grad(false));
  if (bias.defined()) out.copy_(bias);
  multiply(library, out, rows, turned, bias.defined());
  return out.view(with_last(input.sizes(), weight.size(0)));
}

at::Tensor batched_linear_product(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor turned = weight.transpose(1, 2);
  if (!bias.defined()) return product(input, turned);
  const Library library = is_plain(bias) && !needs_graph(bias, bias) ? fastest(input, turned) : Library::torch;
  if (library == Library::torch) return at::baddbmm(bias.unsqueeze(1), input, turned);
  at::Tensor out = at::empty({input.size(0), input.size(1), weight.size(1)}, weight.options().requires_grad(false));
  out.copy_(bias.unsqueeze(1));
  multiply(library, out, input, turned, true);
  return out;
}

}  // namespace convoy
