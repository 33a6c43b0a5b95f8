// One line per model.
#include "models/registry.h"

namespace convoy {

void register_models(Registry& registry) {
  registry.models.add("convnet", make_convnet);
  registry.models.add("gpt", make_gpt);
  registry.models.add("llama", make_llama);
  registry.models.add("mlp", make_mlp);
  registry.models.add("ncf", make_ncf);
  registry.models.add("resnet", make_resnet);
}

}  // namespace convoy
