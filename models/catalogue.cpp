// The list of models. A new one is its X_entry.cpp and a line here, its class and a line in registry.cpp.
#include "models/catalogue.h"

#include "models/entries.h"

namespace convoy {

const std::vector<Entry>& model_catalogue() {
  static const std::vector<Entry> entries{
      convnet_entry(), gpt_entry(), mlp_entry(), ncf_entry(), resnet_entry(),
  };
  return entries;
}

}  // namespace convoy
