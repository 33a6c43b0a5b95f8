// Losses by name. One line each.
#include "core/losses/catalogue.h"

#include "core/losses/entries.h"

namespace convoy {

const std::vector<Entry>& loss_catalogue() {
  static const std::vector<Entry> entries{bce_entry(), mse_entry(), cross_entropy_entry(), bpr_entry()};
  return entries;
}

}  // namespace convoy
