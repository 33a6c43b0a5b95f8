// The option `rows`, described.
#include "models/row_option_entry.h"
#include "core/describe.h"
#include "core/text.h"
#include "models/entries.h"

namespace convoy {

Option rows_option() {
  return describe::option(OptionType::any, "rows",
                          "embeddings are row tables: a step gathers, exchanges and updates only the rows that it "
                          "needs, with the result of a "
                          "dense one; true, false, sharded (each rank of ddp holds and updates a part of the rows), or "
                          "auto: tables of 65,536 "
                          "rows or more of which an update of all ranks looks up a quarter at most",
                          "auto");
}

void check_rows_option(const Options& options) {
  if (!options.has("rows")) return;
  const Json& rows = options.at("rows");
  if (!rows.is_boolean() && rows != "sharded" && rows != "auto")
    options.fail("rows", str("is ", rows.dump(), ", must be true, false, sharded or auto"));
}

}  // namespace convoy
