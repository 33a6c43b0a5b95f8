// Transforms: what their user can write.
#include "core/describe.h"

namespace convoy {

Entry flip_entry() {
  return {"flip", "mirrors images from left to right", {describe::real("p", "how often", 0.5).at_least(0).at_most(1)}};
}

Entry shift_entry() {
  return {"shift",
          "moves images by up to so many pixels each way; what comes in is zero",
          {describe::integer("pixels", "at most", 2).at_least(0).at_most(16384).in("pixels")}};
}

Entry normalise_entry() {
  return {"normalise",
          "(x − mean) / deviation per channel (or per feature), in evaluation too",
          {describe::list("mean", "one for all, or one per channel", describe::real("", "a mean"), Json::array({0.0})),
           describe::list("deviation", "one for all, or one per channel", describe::real("", "a deviation").above(0),
                          Json::array({1.0}))}};
}

Entry noise_entry() {
  return {"noise", "adds normal noise", {describe::real("deviation", "its standard deviation", 0.1).at_least(0)}};
}

}  // namespace convoy
