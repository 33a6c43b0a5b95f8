#include "strategies/parts/rows/row_messages.h"

#include <ATen/core/Tensor.h>

#include <cstring>

#include "core/error.h"
#include "core/log.h"
#include "strategies/parts/rows/row_bytes.h"
#include "strategies/parts/rows/row_table.h"

namespace convoy {
namespace {

template <class T>
void sum_on_host(T* __restrict to, int64_t n, int64_t begin, const std::vector<MessagePart>& ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto* bytes = ranks[rank].bytes.const_data_ptr<uint8_t>() + ranks[rank].begin + begin;
    const T* __restrict from = reinterpret_cast<const T*>(bytes);
    if (rank == 0)
      std::memcpy(to, from, sizeof(T) * static_cast<size_t>(n));
    else
      for (int64_t i = 0; i < n; ++i) to[i] += from[i];
  }
}

void sum_by_tensors(const at::Tensor& one, int64_t begin, const std::vector<MessagePart>& ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const at::Tensor part =
        bytes_as(ranks[rank].bytes, ranks[rank].begin + begin, one.numel(), one.scalar_type()).view(one.sizes());
    if (rank == 0)
      one.copy_(part);
    else
      one.add_(part);
  }
}

}  // namespace

int64_t dense_bytes(const std::vector<at::Tensor>& dense) {
  int64_t bytes = 0;
  for (const at::Tensor& one : dense) bytes += padded(bytes_of(one));
  return bytes;
}

char* write_dense(char* to, const std::vector<at::Tensor>& dense) {
  for (const at::Tensor& one : dense) {
    std::memcpy(to, one.const_data_ptr(), one.nbytes());
    to += padded(bytes_of(one));
  }
  return to;
}

void sum_dense(const std::vector<at::Tensor>& dense, const std::vector<MessagePart>& ranks) {
  int64_t begin = 0;
  for (const at::Tensor& one : dense) {
    if (one.is_cpu() && one.scalar_type() == at::kFloat)
      sum_on_host(one.mutable_data_ptr<float>(), one.numel(), begin, ranks);
    else if (one.is_cpu() && one.scalar_type() == at::kDouble)
      sum_on_host(one.mutable_data_ptr<double>(), one.numel(), begin, ranks);
    else
      sum_by_tensors(one, begin, ranks);
    begin += padded(bytes_of(one));
  }
}

int64_t section_bytes(const at::Tensor& table, int64_t rows, bool narrow) {
  const int64_t values = rows * table.size(1);
  return padded(rows * number_bytes(table.size(0))) +
         (narrow ? narrow_bytes(values) : padded(values * static_cast<int64_t>(table.element_size())));
}

bool warn_if_more_than_dense(const Communicator& group, const std::vector<ParameterPtr>& tables, int64_t received) {
  if (group.rank() != 0 || group.size() == 1) return false;
  double dense = 0;
  for (const ParameterPtr& table : tables) {
    const double row = static_cast<double>(table->value.size(1)) * static_cast<double>(table->value.element_size());
    dense += static_cast<double>(table->table->rows()) * row;
  }
  // What one rank takes in of a ring all-reduce.
  dense *= 2.0 * (group.size() - 1) / group.size();
  if (static_cast<double>(received) <= dense) return false;
  log::warning(convoy::str("row tables: ranks receive ", received,
                           " bytes an update, and gradients of whole tables would "
                           "be ",
                           static_cast<int64_t>(dense), "; take model.rows: false, or auto"));
  return true;
}

}  // namespace convoy
