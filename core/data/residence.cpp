#include "core/data/residence.h"

#include "core/log.h"
#include "core/text.h"

namespace convoy {

void tell_mapped(const std::string& what, const std::string& file, int64_t bytes) {
  log::info(str("data: ", what, " is mapped read-only", file == what ? "" : " from " + file, ", ",
                human_bytes(static_cast<double>(bytes)), " that all processes here share"));
}

void tell_in_memory(const std::string& what, int64_t bytes, const std::string& reason) {
  log::info(
      str("data: ", what, " is in memory, ", human_bytes(static_cast<double>(bytes)), " in each process: ", reason));
}

}  // namespace convoy
