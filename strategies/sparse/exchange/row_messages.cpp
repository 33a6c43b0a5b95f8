#include "strategies/sparse/exchange/row_messages.h"

#include <cstring>

namespace convoy {
namespace {

template <class T>
void sum_on_host(T* __restrict to, int64_t n, int64_t begin, const std::vector<MessagePart>& ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto* bytes = ranks[rank].bytes.const_data_ptr<uint8_t>() + ranks[rank].begin + begin;
    const T* __restrict from = reinterpret_cast<const T*>(bytes);
    if (rank == 0)
      std::memcpy(to, from, sizeof(T) * size_t(n));
    else
      for (int64_t i = 0; i < n; ++i) to[i] += from[i];
  }
}

void sum_with_tensors(const at::Tensor& one, int64_t begin, const std::vector<MessagePart>& ranks) {
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
      sum_with_tensors(one, begin, ranks);
    begin += padded(bytes_of(one));
  }
}

}  // namespace convoy
