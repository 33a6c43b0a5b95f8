// The list of models. A new one is its X_entry.cpp and a line here, its class and a line in registry.cpp.
#include "models/catalogue.h"

namespace convoy {

Entry mlp_entry();
Entry ncf_entry();

const std::vector<Entry>& model_catalogue() {
  static const std::vector<Entry> entries{
      mlp_entry(),
      ncf_entry(),
  };
  return entries;
}

}  // namespace convoy
