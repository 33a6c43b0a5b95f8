#include "strategies/parts/rows/narrow_rows.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/zeros.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/large_tensor.h"
#include "strategies/parts/replicas/flat_shadow.h"
#include "strategies/parts/replicas/narrow_numbers.h"
#include "strategies/parts/rows/row_bytes.h"

namespace convoy {
namespace {

at::Tensor zeros_beside(const Parameter& table) {
  const at::Tensor& value = table.value;
  return value.is_cpu() ? untouched_zeros(table.table->shape(), value.scalar_type())
                        : at::zeros(table.table->shape(), value.options().requires_grad(false));
}

}  // namespace

NarrowRows::NarrowRows(const ParameterPtr& table, Compression numbers)
    : numbers_(numbers), width_(table->value.size(1)), left_(zeros_beside(*table)) {
  CONVOY_CHECK(
      numbers != Compression::none && (left_.scalar_type() == at::kFloat || left_.scalar_type() == at::kDouble),
      table->name, " cannot be sent in 16 bits");
}

int64_t NarrowRows::bytes(int64_t rows) const { return narrow_bytes(rows * width_); }

template <class Call>
void NarrowRows::typed(const Call& call) const {
  const bool half = numbers_ == Compression::fp16;
  if (left_.scalar_type() == at::kFloat)
    half ? call(float{}, c10::Half{}) : call(float{}, c10::BFloat16{});
  else
    half ? call(double{}, c10::Half{}) : call(double{}, c10::BFloat16{});
}

char* NarrowRows::encode(char* to, const TableRows& rows, const std::vector<int64_t>* picked) {
  const int64_t count = picked != nullptr ? static_cast<int64_t>(picked->size()) : rows.numbers.numel();
  if (count > 0) typed([&](auto real, auto narrow) { encode_as<decltype(real), decltype(narrow)>(to, rows, picked); });
  return to + bytes(count);
}

template <class Real, class Narrow>
void NarrowRows::encode_as(char* to, const TableRows& rows, const std::vector<int64_t>* picked) {
  const int64_t count = picked != nullptr ? static_cast<int64_t>(picked->size()) : rows.numbers.numel();
  const int64_t* numbers = rows.numbers.const_data_ptr<int64_t>();
  const Real* values = rows.values.const_data_ptr<Real>();
  Real* const left = left_.mutable_data_ptr<Real>();
  const auto at = [&](int64_t i) { return picked != nullptr ? (*picked)[static_cast<size_t>(i)] : i; };
  Real most = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = at(i);
    Real* const own = left + numbers[row] * width_;
    for (int64_t k = 0; k < width_; ++k) {
      own[k] += values[row * width_ + k];
      most = std::max(most, std::abs(own[k]));
    }
  }
  const int power = std::is_same_v<Narrow, c10::Half> ? narrow_power(static_cast<double>(most)) : 0;
  const auto sent = static_cast<int64_t>(power);
  std::memcpy(to, &sent, sizeof sent);
  auto* narrow = reinterpret_cast<Narrow*>(to + narrow_head);
  const Real up = std::ldexp(Real(1), power), down = std::ldexp(Real(1), -power);
  for (int64_t i = 0; i < count; ++i) {
    Real* const own = left + numbers[at(i)] * width_;
    for (int64_t k = 0; k < width_; ++k, ++narrow) {
      *narrow = static_cast<Narrow>(static_cast<float>(own[k] * up));
      own[k] -= static_cast<Real>(static_cast<float>(*narrow)) * down;
    }
  }
}

const char* NarrowRows::decode(const char* from, int64_t rows) {
  with_room(decoded_, rows * width_ * static_cast<int64_t>(left_.element_size()), at::kCPU);
  if (rows > 0) typed([&](auto real, auto narrow) { decode_as<decltype(real), decltype(narrow)>(from, rows); });
  return static_cast<const char*>(decoded_.const_data_ptr());
}

template <class Real, class Narrow>
void NarrowRows::decode_as(const char* from, int64_t rows) {
  int64_t power = 0;
  std::memcpy(&power, from, sizeof power);
  const Real down = std::ldexp(Real(1), -static_cast<int>(power));
  const auto* narrow = reinterpret_cast<const Narrow*>(from + narrow_head);
  auto* to = static_cast<Real*>(decoded_.mutable_data_ptr());
  for (int64_t i = 0; i < rows * width_; ++i) to[i] = static_cast<Real>(static_cast<float>(narrow[i])) * down;
}

// A row is there once, so that what is left over can be put back by index.
void NarrowRows::encode(const at::Tensor& to, const TableRows& rows) {
  const int64_t count = rows.numbers.numel();
  if (count == 0) return;
  const at::Tensor own = left_.index_select(0, rows.numbers).add_(rows.values);
  const at::Tensor head = bytes_as(to, 0, 1, at::kLong);
  const at::Tensor body = bytes_as(to, narrow_head, count * width_, narrow_dtype(numbers_)).view({count, width_});
  if (numbers_ == Compression::fp16) {
    const at::Tensor power = narrow_power(own);
    head.copy_(power);
    body.copy_(own * at::exp2(power));
  } else {
    head.zero_();
    body.copy_(own);
  }
  left_.index_copy_(0, rows.numbers, own - decode(to, count));
}

at::Tensor NarrowRows::decode(const at::Tensor& from, int64_t rows) const {
  if (rows == 0) return at::empty({0, width_}, left_.options());
  const at::Tensor head = bytes_as(from, 0, 1, at::kLong);
  const at::Tensor body = bytes_as(from, narrow_head, rows * width_, narrow_dtype(numbers_)).view({rows, width_});
  return body.to(left_.scalar_type()).mul_(at::exp2(-head.to(left_.scalar_type())));
}

std::vector<NarrowRows> narrow_rows(const std::vector<ParameterPtr>& tables, int ranks, Compression numbers) {
  std::vector<NarrowRows> all;
  if (ranks == 1 || numbers == Compression::none) return all;
  for (const ParameterPtr& table : tables) all.emplace_back(table, numbers);
  return all;
}

void visit_left_over(const std::vector<NarrowRows>& narrow, const std::vector<ParameterPtr>& tables, int rank,
                     const StateVisitor& visit) {
  for (size_t table = 0; table < narrow.size(); ++table) {
    StateEntry entry;
    entry.name = tables[table]->name;
    entry.kind = StateKind::moment;
    entry.moment = "left_over";
    entry.piece = Piece::whole(narrow[table].left_over().sizes());
    entry.replica = rank;
    entry.tensor = narrow[table].left_over();
    visit(entry);
  }
}

}  // namespace convoy
