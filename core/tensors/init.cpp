#include "core/tensors/init.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cmath>

namespace convoy {

SeededDefaultGenerator::SeededDefaultGenerator(uint64_t key) : lock_(default_generator_mutex()), kept_(at::kCPU) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(key);
}

Fans fans_of(at::IntArrayRef shape) {
  if (shape.empty()) return {1, 1};
  if (shape.size() == 1) return {shape[0], shape[0]};
  int64_t kernel = 1;
  for (size_t i = 2; i < shape.size(); ++i) kernel *= shape[i];
  return {shape[1] * kernel, shape[0] * kernel};
}

Init bias_init(int64_t fan_in, const std::optional<Init>& requested) {
  const double bound = fan_in > 0 ? 1 / std::sqrt(static_cast<double>(fan_in)) : 0;
  return requested.value_or(Init{Init::Kind::uniform, -bound, bound});
}

void fill_initial(const at::Tensor& out, const Init& init, const Fans& fans, uint64_t seed, const std::string& name,
                  uint64_t first) {
  at::NoGradGuard no_grad;
  const uint64_t key = random_key(seed, name);
  at::Tensor target = out.is_cpu() ? out.detach() : at::empty(out.sizes(), out.options().device(at::kCPU));
  const auto uniform = [&](double bound) { fill_uniform(target, key, first, -bound, bound); };
  switch (init.kind) {
    case Init::Kind::zeros:
      target.zero_();
      break;
    case Init::Kind::ones:
      target.fill_(1);
      break;
    case Init::Kind::normal:
      fill_normal(target, key, first, init.a, init.b);
      break;
    case Init::Kind::uniform:
      fill_uniform(target, key, first, init.a, init.b);
      break;
    case Init::Kind::kaiming_uniform:
      uniform(std::sqrt(6 / ((1 + init.a * init.a) * static_cast<double>(std::max<int64_t>(fans.in, 1)))));
      break;
    case Init::Kind::xavier_uniform:
      uniform(std::sqrt(6 / static_cast<double>(std::max<int64_t>(fans.in + fans.out, 1))));
      break;
  }
  if (!out.is_cpu()) out.detach().copy_(target);
}

}  // namespace convoy
