#include "strategies/parts/tensor/sharded_embedding.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/embedding.h>

#include "core/error.h"
#include "core/model.h"

namespace convoy {
namespace {

class CutEmbedding : public LayerModule {
 public:
  CutEmbedding(LayerPlace place, const ParameterPtr& weight, const DimensionCut& rows)
      : place_(std::move(place)), weight_(register_parameter("weight", weight->value)), rows_(rows) {}
  at::Tensor forward(const at::Tensor& ids) override {
    const OwnPositions own = own_positions(ids, rows_, place_.name);
    const at::Tensor found = at::embedding(weight_, own.index).masked_fill(own.foreign.unsqueeze(-1), 0);
    return sum_of_parts(found, place_.ranks(), place_.name);
  }

 private:
  LayerPlace place_;
  at::Tensor weight_;
  DimensionCut rows_;
};

}  // namespace

Layer make_cut_embedding(const LayerPlace& place, const ParameterPtr& weight, const DimensionCut& rows) {
  return std::make_shared<CutEmbedding>(place, weight, rows);
}

OwnPositions own_positions(const at::Tensor& numbers, const DimensionCut& cut, const std::string& what) {
  if (numbers.is_cpu() && numbers.numel() > 0) {
    const auto [least, most] = at::aminmax(numbers);
    if (least.item<int64_t>() < 0 || most.item<int64_t>() >= cut.whole)
      throw Error(Failure::training, convoy::str(what, " is asked for ", least.item<int64_t>(), " … ",
                                                 most.item<int64_t>(), " and has 0 … ", cut.whole - 1));
  }
  const auto [begin, end] = cut.share();
  const at::Tensor shifted = numbers - begin;
  return {shifted.clamp(0, end - begin - 1), shifted.lt(0).logical_or_(shifted.ge(end - begin))};
}

}  // namespace convoy
