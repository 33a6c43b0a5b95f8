// One line per model.
#include "models/registry.h"

#include "models/mlp.h"
#include "models/ncf.h"

namespace convoy {

void register_models(Registry& registry) {
  registry.models.add("mlp", make_mlp);
  registry.models.add("ncf", make_ncf);
}

}  // namespace convoy
