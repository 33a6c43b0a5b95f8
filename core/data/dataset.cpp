#include "core/data/dataset.h"

namespace convoy {

const Field& Schema::at(const std::string& name, const std::string& asked_by) const {
  auto found = fields.find(name);
  if (found != fields.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& field : fields) names.push_back(field.first);
  throw Error(Failure::config, asked_by, " needs a field '", name, "' in each row, and this data set has ",
              join(names, ", "), ": choose another model or another data set (convoy list)");
}

Batch Dataset::gather_once(Split split, const at::Tensor& indices, int64_t epoch) const {
  BatchBuffers buffers;
  return gather(split, indices, epoch, buffers);
}

}  // namespace convoy
