#include "core/tensors/products.h"

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#if defined(__x86_64__)
#include <cpuid.h>

#include <cstring>
#endif

// LibTorch exports this function without a header, so a version may lack it: then the address is null.
namespace at::native {
__attribute__((weak)) void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& result, float beta,
                                         float alpha);
}  // namespace at::native

namespace convoy {
namespace {

constexpr double least_operations = 4e6;  // a call of oneDNN costs 10 µs

bool is_zen5_or_newer() {
#if defined(__x86_64__)
  unsigned most = 0, name[3], version = 0, unused[3];
  if (__get_cpuid(0, &most, &name[0], &name[2], &name[1]) == 0 || std::memcmp(name, "AuthenticAMD", 12) != 0)
    return false;
  __get_cpuid(1, &version, &unused[0], &unused[1], &unused[2]);
  const unsigned family = ((version >> 8) & 0xf) + ((version >> 20) & 0xff);
  return family >= 0x1a && __builtin_cpu_supports("avx512f");
#else
  return false;
#endif
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.layout() == at::kStrided &&
         !at::isTensorSubclassLike(tensor);
}

// True for a matrix that is contiguous, or the transposed of such: oneDNN copies others. And for a batch of them, which
// need not be adjacent: then oneDNN copies the batch, which costs less than the product.
bool has_format(const at::Tensor& tensor) {
  const at::Tensor one = tensor.dim() == 3 ? tensor.select(0, 0) : tensor;
  return one.is_contiguous() || one.t().is_contiguous();
}

bool needs_graph(const at::Tensor& a, const at::Tensor& b) {
  return at::GradMode::is_enabled() && (a.requires_grad() || b.requires_grad()) &&
         !c10::impl::tls_local_dispatch_key_set().excluded_.has(c10::DispatchKey::AutogradFunctionality);
}

bool uses_onednn(const at::Tensor& a, const at::Tensor& b) {
  static const bool faster = is_zen5_or_newer() && at::native::mkldnn_matmul != nullptr;
  return faster && is_plain(a) && is_plain(b) && 2.0 * double(a.numel()) * double(b.size(-1)) >= least_operations &&
         has_format(a) && has_format(b) && !needs_graph(a, b) && !at::autocast::is_autocast_enabled(at::kCPU);
}

}  // namespace

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  if (!uses_onednn(a, b)) return a.dim() == 2 ? a.mm(b) : a.bmm(b);
  std::vector<int64_t> shape = a.sizes().vec();
  shape.back() = b.size(-1);
  at::Tensor out = at::empty(shape, a.options().requires_grad(false));
  at::native::mkldnn_matmul(a, b, out, 0, 1);
  return out;
}

void product_into(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) {
  at::Tensor to = out;
  if (is_plain(out) && out.is_contiguous() && uses_onednn(a, b))
    at::native::mkldnn_matmul(a, b, out, add ? 1 : 0, 1);
  else if (a.dim() == 2)
    add ? to.addmm_(a, b) : at::mm_out(to, a, b);
  else
    add ? to.baddbmm_(a, b) : at::bmm_out(to, a, b);
}

at::Tensor linear_product(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  if (weight.dim() != 2 || input.dim() == 0 || !input.is_contiguous() || (bias.defined() && !is_plain(bias)))
    return at::linear(input, weight, bias);
  const at::Tensor rows = input.view({-1, input.size(-1)}), turned = weight.t();
  if (!uses_onednn(rows, turned) || (bias.defined() && needs_graph(bias, bias))) return at::linear(input, weight, bias);
  std::vector<int64_t> shape = input.sizes().vec();
  shape.back() = weight.size(0);
  at::Tensor out = at::empty({rows.size(0), weight.size(0)}, weight.options().requires_grad(false));
  if (bias.defined()) out.copy_(bias);
  at::native::mkldnn_matmul(rows, turned, out, bias.defined() ? 1 : 0, 1);
  return out.view(shape);
}

at::Tensor batched_linear_product(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor turned = weight.transpose(1, 2);
  if (!bias.defined()) return product(input, turned);
  if (!uses_onednn(input, turned) || !is_plain(bias) || needs_graph(bias, bias))
    return at::baddbmm(bias.unsqueeze(1), input, turned);
  at::Tensor out = at::empty({input.size(0), input.size(1), weight.size(1)}, weight.options().requires_grad(false));
  out.copy_(bias.unsqueeze(1));
  at::native::mkldnn_matmul(input, turned, out, 1, 1);
  return out;
}

}  // namespace convoy
