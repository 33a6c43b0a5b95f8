// images: what its user can write.
#include "core/describe.h"

namespace convoy {
namespace {

void check(const Options& options) {
  if (options.integer("channels") == 2)
    options.fail("channels", "is 2; images are read as grey (1) or as red, green and blue (3)");
}

}  // namespace

Entry images_entry() {
  Option decoders =
      describe::integer("decoders",
                        "threads of each rank that decode the images of a batch, which does not depend on "
                        "their number; auto: one for each of the rank's cores",
                        "auto")
          .at_least(1)
          .at_most(1024)
          .in("threads");
  decoders.also_auto = true;
  Entry entry;
  entry.name = "images";
  entry.help = "a folder with a folder of PNG and JPEG files per class, decoded while they are needed";
  entry.options = {
      describe::text("path", "folder of the classes' folders; or of train/ and test/, each with these").must(),
      describe::integer("height", "that images are brought to", 32).at_least(1).at_most(16384).in("pixels"),
      describe::integer("width", "that images are brought to", 32).at_least(1).at_most(16384).in("pixels"),
      describe::integer("channels", "1 grey, 3 red, green and blue", 3).at_least(1).at_most(3),
      describe::choice("fit",
                       "crop: scaled until both sides are reached, then cut from the middle; stretch: scaled in each "
                       "direction by itself",
                       {"crop", "stretch"}, "crop"),
      decoders,
      describe::section("evaluate", "the images to evaluate on, where there is no folder test/",
                        {describe::real("fraction", "of all, drawn by the seed", 0.1).at_least(0).at_most(0.99)}),
  };
  entry.check = check;
  return entry;
}

}  // namespace convoy
