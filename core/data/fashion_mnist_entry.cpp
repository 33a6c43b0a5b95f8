// fashion_mnist: what its user can write.
#include "core/describe.h"

namespace convoy {

Entry fashion_mnist_entry() {
  Entry entry;
  entry.name = "fashion_mnist";
  entry.help = "70,000 grey images of 28 × 28 in ten classes (or any set in the same IDX files)";
  entry.options = {
      describe::text("path",
                     "folder of the four files, gzipped or not; Debian's package dataset-fashion-mnist has them",
                     "/usr/share/datasets/fashion-mnist"),
      describe::boolean("bytes",
                        "batches hold bytes, converted by the device that trains: a quarter of the memory to move, and "
                        "the same figures",
                        false),
  };
  return entry;
}

}  // namespace convoy
