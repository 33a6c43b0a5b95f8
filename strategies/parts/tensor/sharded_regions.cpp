#include "strategies/parts/tensor/sharded_regions.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/stack.h>

#include "core/error.h"
#include "core/model.h"
#include "strategies/parts/keyed_dropout.h"

namespace convoy {
namespace {

class RegionNorm : public LayerModule {
 public:
  RegionNorm(LayerPlace place, const Layer& inner, ParameterPtr weight, ParameterPtr bias, double eps)
      : place_(std::move(place)),
        inner_(register_module("whole", inner)),
        weight_(std::move(weight)),
        bias_(std::move(bias)),
        eps_(eps) {}
  at::Tensor forward(const at::Tensor& input) override {
    if (!place_.passage().is_part(input)) return inner_->forward(input);
    // Both gradients in one message.
    const at::Tensor both = to_parts(at::stack({weight_->value, bias_->value}), place_.ranks(), place_.name);
    return at::layer_norm(input, weight_->value.sizes(), both[0], both[1], eps_);
  }

 private:
  LayerPlace place_;
  Layer inner_;
  ParameterPtr weight_, bias_;
  double eps_;
};

class RegionDropout : public LayerModule {
 public:
  RegionDropout(LayerPlace place, const Layer& inner, double p)
      : place_(std::move(place)), inner_(register_module("whole", inner)), p_(p) {}
  at::Tensor forward(const at::Tensor& input) override {
    if (!place_.state->training || p_ == 0) return input;
    if (const auto cut = place_.passage().cut_of(input)) return input.mul(mask_of_share(input, *cut));
    if (!place_.passage().is_share_of_sequence(input)) return inner_->forward(input);
    // [B, T ÷ ranks, features] is one range of each row's T · features elements.
    const at::Tensor rows = input.flatten(1);
    const DimensionCut cut = place_.group->cut(rows.size(-1) * place_.ranks()->size());
    return input.mul(mask_of_share(rows, cut).view(input.sizes()));
  }

 private:
  at::Tensor mask_of_share(const at::Tensor& like, const DimensionCut& cut) const {
    const auto [begin, end] = cut.share();
    if (like.size(-1) != cut.length())
      throw Error(Failure::training,
                  convoy::str("dropout ", place_.name, ": a tensor of shape ", like.sizes(), " is no rank's part of ",
                              cut.whole, "; a block must keep the last dimension of what is cut"));
    // Fast draws are by rank, which ranks of a group share: see sharded_layers.
    const std::string name = place_.state->exact ? place_.name : convoy::str(place_.name, "/", cut.rank);
    std::vector<at::Tensor> masks;
    for (int64_t part = 0; part < cut.parts; ++part) {
      const at::Tensor piece = like.narrow(-1, part * (end - begin), end - begin);
      const std::string key = place_.state->exact || cut.parts == 1 ? name : convoy::str(name, "/", part);
      masks.push_back(dropout_mask(piece, p_, key, *place_.state, {part * cut.part() + begin, cut.whole}));
    }
    return masks.size() == 1 ? masks.front() : at::cat(masks, -1);
  }

  LayerPlace place_;
  Layer inner_;
  double p_;
};

class RegionParameter : public ParameterHandle {
 public:
  RegionParameter(LayerPlace place, std::unique_ptr<ParameterHandle> inner)
      : place_(std::move(place)), inner_(std::move(inner)) {}
  const at::Tensor& get() override {
    if (!place_.passage().is_part()) return inner_->get();
    value_ = to_parts(inner_->get(), place_.ranks(), place_.name);
    return value_;
  }

 private:
  LayerPlace place_;
  std::unique_ptr<ParameterHandle> inner_;
  at::Tensor value_;
};

}  // namespace

Layer make_region_norm(const LayerPlace& place, const Layer& inner, const ParameterPtr& weight,
                       const ParameterPtr& bias, double eps) {
  return std::make_shared<RegionNorm>(place, inner, weight, bias, eps);
}

Layer make_region_dropout(const LayerPlace& place, const Layer& inner, double p) {
  return std::make_shared<RegionDropout>(place, inner, p);
}

std::unique_ptr<ParameterHandle> make_region_parameter(const LayerPlace& place,
                                                       std::unique_ptr<ParameterHandle> inner) {
  return std::make_unique<RegionParameter>(place, std::move(inner));
}

}  // namespace convoy
