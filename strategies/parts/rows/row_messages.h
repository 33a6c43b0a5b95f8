// What messages of rows hold beside rows: dense gradients in front, each padded to 8 bytes, which are summed in the order of
// ranks wherever they came from.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/communicator.h"
#include "strategies/parts/parameter.h"

namespace convoy {

// Of all of them in a message.
int64_t dense_bytes(const std::vector<at::Tensor>& dense);
// Into memory of the CPU; behind the last of them.
char* write_dense(char* to, const std::vector<at::Tensor>& dense);

// From where on a rank's message, or its part, holds them.
struct MessagePart {
  at::Tensor bytes;
  int64_t begin = 0;
};
// Each becomes the sum of all ranks', added up in their order.
void sum_dense(const std::vector<at::Tensor>& dense, const std::vector<MessagePart>& ranks);

// Where all ranks have all rows: numbers of so many of a table's, and their gradients, in 16 bits where `narrow`.
int64_t section_bytes(const at::Tensor& table, int64_t rows, bool narrow);

// True where ranks received more of rows than dense gradients of these tables would be, which rank 0 warns of.
bool warn_if_more_than_dense(const Communicator& group, const std::vector<ParameterPtr>& tables, int64_t received);

}  // namespace convoy
