#include "strategies/parts/whole_layers.h"

#include "core/error.h"

namespace convoy {

void check_dropout(const std::string& name, double p) {
  if (!(p >= 0 && p < 1))
    throw Error(Failure::config, convoy::str("model: dropout ", name, " is ", p, ", not in [0, 1)"));
}

void check_groups(const std::string& name, int64_t in, int64_t out, int64_t groups) {
  if (groups < 1 || in % groups != 0 || out % groups != 0)
    throw Error(Failure::config, convoy::str("model: ", name, " has ", in, " and ", out, " channels, which ", groups,
                                             " groups do not divide"));
}

void fail_tie(const std::string& name, const std::string& to) {
  throw Error(Failure::config, convoy::str("model: ", name, " is tied to ", to, ", which no layer before it has made"));
}

void check_tie(const std::string& name, const std::string& to, at::IntArrayRef wanted, at::IntArrayRef there) {
  if (there != wanted)
    throw Error(Failure::config,
                convoy::str("model: ", name, " wants a weight of ", wanted, " and is tied to ", to, " of ", there));
}

}  // namespace convoy
