// The option `rows`, described.
#include "core/describe.h"
#include "models/entries.h"

namespace convoy {

Option rows_option() {
  auto option = describe::boolean("rows",
                                  "embeddings are row tables: a step gathers, exchanges and updates only the rows that "
                                  "it needs, with the result of a dense one; auto: those of 65,536 rows or more and 50 "
                                  "times a batch's",
                                  "auto");
  option.also_auto = true;
  return option;
}

}  // namespace convoy
