// convnet: what its user can write.
#include "core/describe.h"
#include "models/entries.h"

namespace convoy {

namespace {

void check(const Options& options) {
  if (options.integers("channels").empty()) options.fail("channels", "needs a convolution; model mlp has none");
  const int64_t kernel = options.integer("kernel");
  if (kernel % 2 == 0) options.fail("kernel", str("is ", kernel, "; an odd one keeps the image's size"));
}

}  // namespace

Entry convnet_entry() {
  Entry entry;
  entry.name = "convnet";
  entry.help = "convolutions that halve the image, then fully connected layers; classes of images";
  entry.options = {
      describe::list("channels", "of each convolution; each halves height and width",
                     describe::integer("", "channels").at_least(1).at_most(1 << 16), Json::array({32, 64})),
      describe::integer("kernel", "of the convolutions; odd", 3).at_least(1).at_most(31),
      describe::boolean("batch_norm", "after each convolution", true),
      describe::integer("hidden", "units before the output; 0: none", 128).at_least(0).at_most(1 << 20),
      describe::real("dropout", "after each convolution and after the hidden units", 0.0).at_least(0).at_most(0.99),
  };
  entry.check = check;
  return entry;
}

}  // namespace convoy
