#include "core/optim/row_entry.h"

#include <cmath>

#include "core/describe.h"
#include "core/error.h"

namespace convoy {

std::vector<Option> row_options() {
  return {
      describe::boolean("lazy",
                        "row tables: a row without gradient stays where it is, as torch's SparseAdam has it; else it "
                        "moves on as in a dense table",
                        false),
      describe::choice("catch_up",
                       "row tables: what a row has missed is made up for step by step, or by one formula; auto: exact "
                       "in fp64 on the CPU",
                       {"auto", "exact", "closed"}, "auto"),
  };
}

RowObstacle row_obstacle(const std::string& optimizer, const Options& options, double weight_decay) {
  const bool lazy = options.has("lazy") && options.boolean("lazy");
  const bool momentum = optimizer == "sgd" && options.real("momentum") != 0;
  if (weight_decay != 0 && (optimizer == "adam" || optimizer == "adagrad" || momentum))
    return {"weight_decay",
            str("is ", weight_decay, " and ", optimizer, " adds it to the gradient",
                momentum ? ", beside momentum" : "", ", which then no row of a table is without; take ",
                optimizer == "adam" ? "adamw, whose decay is apart" : "0", ", or dense tables (model.rows: false)")};
  if (lazy) return {};
  // As RowHistory: terms below 1e-17 of the first within 4,096 updates.
  constexpr double slowest = 0.9904;
  if (momentum && options.real("momentum") > slowest)
    return {"momentum", str("is ", options.real("momentum"),
                            ", which would move a row of a table for thousands of "
                            "updates after its gradient; take at most ",
                            slowest, ", or dense tables (model.rows: false)")};
  if (options.has("betas")) {
    const std::vector<double> betas = options.reals("betas");
    if (betas.size() == 2 && betas[0] / std::sqrt(betas[1]) > slowest)
      return {"betas", str("are ", betas[0], " and ", betas[1],
                           ", with which a row of a table moves on for thousands of "
                           "updates after its gradient; take a smaller first one, lazy: true, or dense tables "
                           "(model.rows: false)")};
  }
  return {};
}

}  // namespace convoy
