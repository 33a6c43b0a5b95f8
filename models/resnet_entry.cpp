// resnet: what its user can write.
#include "core/describe.h"

namespace convoy {

Entry resnet_entry() {
  Entry entry;
  entry.name = "resnet";
  entry.help = "residual network for small (CIFAR) or large (ImageNet) images";
  entry.options = {
      describe::choice("shape", "of the images it was made for: about 32 × 32, or 224 × 224", {"cifar", "imagenet"},
                       "cifar"),
      describe::integer("depth", "layers with weights; cifar: 20 (default), 32 or 56; imagenet: 18 (default), 34 or 50")
          .may_be_null(),
  };
  return entry;
}

}  // namespace convoy
