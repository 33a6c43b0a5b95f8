// A model from unchanged torch::nn modules. Every child is a block, so every strategy can divide the model.
#include <torch/nn.h>

#include <convoy/model_of.h>
#include <convoy/plugin.h>

namespace nn = torch::nn;

CONVOY_PLUGIN(registry) {
  registry.catalogues.kinds["model"].push_back(
      {"lenet", "two convolutions and two products, on images of 28 x 28", {}});
  registry.models.add("lenet", [](const convoy::Options&, const convoy::Schema&) {
    return convoy::model_of([] {
      return nn::Sequential(nn::Conv2d(1, 10, 5), nn::MaxPool2d(2), nn::ReLU(), nn::Conv2d(10, 20, 5), nn::MaxPool2d(2),
                            nn::ReLU(), nn::Flatten(), nn::Linear(320, 50), nn::ReLU(), nn::Linear(50, 10));
    });
  });
}
