// resnet: what its user can write.
#include "core/describe.h"
#include "models/entries.h"

namespace convoy {

namespace {

void check(const Options& options) {
  if (!options.has("depth")) return;
  const int64_t depth = options.integer("depth");
  const bool large = options.text("shape") == "imagenet";
  if (large && depth != 18 && depth != 34 && depth != 50)
    options.fail("depth", str(depth, " is none of shape imagenet: take 18, 34 or 50, or shape: cifar"));
  if (!large && depth != 20 && depth != 32 && depth != 56)
    options.fail("depth", str(depth, " is none of shape cifar: take 20, 32 or 56, or shape: imagenet"));
}

}  // namespace

Entry resnet_entry() {
  Entry entry;
  entry.name = "resnet";
  entry.help = "residual network for small (CIFAR) or large (ImageNet) images";
  entry.options = {
      describe::choice("shape", "of the images it was made for: about 32 × 32, or 224 × 224", {"cifar", "imagenet"},
                       "cifar"),
      describe::integer("depth", "layers with weights; cifar: 20 (default), 32 or 56; imagenet: 18 (default), 34 or 50")
          .at_least(1)
          .at_most(10000)
          .may_be_null(),
  };
  entry.check = check;
  return entry;
}

}  // namespace convoy
