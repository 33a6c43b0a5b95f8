#include "core/data/few_rows.h"

#include <algorithm>

namespace convoy {

Component few_rows(const Component& data) {
  constexpr int64_t enough = 1 << 17;
  if (data.name != "synthetic") return data;
  Json options = data.options.json();
  options["rows"] = std::min(data.options.integer("rows"), enough);
  options["cache"] = nullptr;
  return {data.name, Options(std::move(options), data.options.marks(), data.options.path())};
}

}  // namespace convoy
