#include "strategies/sparse/exchange/row_exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/zeros.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/tensors/tensor_memory.h"
#include "strategies/common/model/visit_parts.h"
#include "strategies/replicas/bucket_reducer.h"

namespace convoy {

// --- HalfPrecisionRows ---

namespace {

at::Tensor zero_errors(const Parameter& table) {
  const at::Tensor& value = table.value;
  return value.is_cpu() ? untouched_zeros(table.table->shape(), value.scalar_type())
                        : at::zeros(table.table->shape(), value.options().requires_grad(false));
}

}  // namespace

HalfPrecisionRows::HalfPrecisionRows(const ParameterPtr& table, Compression numbers)
    : numbers_(numbers), width_(table->value.size(1)), errors_(zero_errors(*table)) {
  CONVOY_CHECK(
      numbers != Compression::none && (errors_.scalar_type() == at::kFloat || errors_.scalar_type() == at::kDouble),
      table->name, " cannot be compressed to half precision");
}

int64_t HalfPrecisionRows::bytes(int64_t rows) const { return half_bytes(rows * width_); }

template <class Call>
void HalfPrecisionRows::typed(const Call& call) const {
  const bool half = numbers_ == Compression::fp16;
  if (errors_.scalar_type() == at::kFloat)
    half ? call(float{}, c10::Half{}) : call(float{}, c10::BFloat16{});
  else
    half ? call(double{}, c10::Half{}) : call(double{}, c10::BFloat16{});
}

char* HalfPrecisionRows::encode(char* to, const TableRows& rows, const std::vector<int64_t>* picked) {
  const int64_t count = picked != nullptr ? int64_t(picked->size()) : rows.numbers.numel();
  if (count > 0) typed([&](auto real, auto half) { encode_as<decltype(real), decltype(half)>(to, rows, picked); });
  return to + bytes(count);
}

template <class Real, class Half>
void HalfPrecisionRows::encode_as(char* to, const TableRows& rows, const std::vector<int64_t>* picked) {
  const int64_t count = picked != nullptr ? int64_t(picked->size()) : rows.numbers.numel();
  const int64_t* numbers = rows.numbers.const_data_ptr<int64_t>();
  const Real* values = rows.values.const_data_ptr<Real>();
  Real* const errors = errors_.mutable_data_ptr<Real>();
  const auto at = [&](int64_t i) { return picked != nullptr ? (*picked)[size_t(i)] : i; };
  Real most = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = at(i);
    Real* const own = errors + numbers[row] * width_;
    for (int64_t k = 0; k < width_; ++k) {
      own[k] += values[row * width_ + k];
      most = std::max(most, std::abs(own[k]));
    }
  }
  const int power = std::is_same_v<Half, c10::Half> ? half_exponent(double(most)) : 0;
  const auto sent = int64_t(power);
  std::memcpy(to, &sent, sizeof sent);
  auto* half_values = reinterpret_cast<Half*>(to + half_head_bytes);
  const Real up = std::ldexp(Real(1), power), down = std::ldexp(Real(1), -power);
  for (int64_t i = 0; i < count; ++i) {
    Real* const own = errors + numbers[at(i)] * width_;
    for (int64_t k = 0; k < width_; ++k, ++half_values) {
      *half_values = static_cast<Half>(float(own[k] * up));
      own[k] -= static_cast<Real>(float(*half_values)) * down;
    }
  }
}

const char* HalfPrecisionRows::decode(const char* from, int64_t rows) {
  ensure_bytes(decoded_, rows * width_ * int64_t(errors_.element_size()), at::kCPU);
  if (rows > 0) typed([&](auto real, auto half) { decode_as<decltype(real), decltype(half)>(from, rows); });
  return static_cast<const char*>(decoded_.const_data_ptr());
}

template <class Real, class Half>
void HalfPrecisionRows::decode_as(const char* from, int64_t rows) {
  int64_t power = 0;
  std::memcpy(&power, from, sizeof power);
  const Real down = std::ldexp(Real(1), -int(power));
  const auto* half_values = reinterpret_cast<const Half*>(from + half_head_bytes);
  auto* to = static_cast<Real*>(decoded_.mutable_data_ptr());
  for (int64_t i = 0; i < rows * width_; ++i) to[i] = static_cast<Real>(float(half_values[i])) * down;
}

// Each row occurs once, so its error can be stored by index.
void HalfPrecisionRows::encode(const at::Tensor& to, const TableRows& rows) {
  const int64_t count = rows.numbers.numel();
  if (count == 0) return;
  const at::Tensor own = errors_.index_select(0, rows.numbers).add_(rows.values);
  const at::Tensor head = bytes_as(to, 0, 1, at::kLong);
  const at::Tensor body = bytes_as(to, half_head_bytes, count * width_, half_dtype(numbers_)).view({count, width_});
  if (numbers_ == Compression::fp16) {
    const at::Tensor power = half_exponent(own);
    head.copy_(power);
    body.copy_(own * at::exp2(power));
  } else {
    head.zero_();
    body.copy_(own);
  }
  errors_.index_copy_(0, rows.numbers, own - decode(to, count));
}

at::Tensor HalfPrecisionRows::decode(const at::Tensor& from, int64_t rows) const {
  if (rows == 0) return at::empty({0, width_}, errors_.options());
  const at::Tensor head = bytes_as(from, 0, 1, at::kLong);
  const at::Tensor body = bytes_as(from, half_head_bytes, rows * width_, half_dtype(numbers_)).view({rows, width_});
  return body.to(errors_.scalar_type()).mul_(at::exp2(-head.to(errors_.scalar_type())));
}

// --- RowExchange ---

RowExchange::RowExchange(CommunicatorPtr group, std::vector<ParameterPtr> tables, Compression numbers)
    : group_(std::move(group)), tables_(std::move(tables)) {
  if (group_->size() == 1 || numbers == Compression::none) return;
  for (const ParameterPtr& table : tables_) compressed_.emplace_back(table, numbers);
}

void RowExchange::visit(const StateVisitor& visit) const {
  for (size_t table = 0; table < compressed_.size(); ++table) {
    StateEntry entry = state_entry(tables_[table]->name, StateKind::moment, compressed_[table].compression_errors());
    entry.moment = "left_over";
    entry.replica = group_->rank();
    visit(entry);
  }
}

int64_t RowExchange::number_bytes(size_t table) const {
  return convoy::number_bytes(tables_[table]->table->embedding().rows());
}

int64_t RowExchange::section_bytes(size_t table, int64_t rows) const {
  return padded(rows * number_bytes(table)) + gradient_bytes(table, rows);
}

int64_t RowExchange::gradient_bytes(size_t table, int64_t rows) const {
  const at::Tensor& value = tables_[table]->value;
  return compressed_.empty() ? padded(rows * value.size(1) * int64_t(value.element_size()))
                             : compressed_[table].bytes(rows);
}

void RowExchange::warn_if_more_than_dense(int64_t received) {
  if (warned_ || group_->rank() != 0 || group_->size() == 1) return;
  double dense = 0;
  for (const ParameterPtr& table : tables_) {
    const double row = double(table->value.size(1)) * double(table->value.element_size());
    dense += double(table->table->embedding().rows()) * row;
  }
  // Bytes that a rank receives in a ring all-reduce.
  dense *= 2.0 * (group_->size() - 1) / group_->size();
  if (double(received) <= dense) return;
  warned_ = true;
  log::warning(convoy::str("sparse embeddings: ranks receive ", received,
                           " bytes an update, and gradients of whole tables would take ", int64_t(dense),
                           "; set model.rows: false, or auto"));
}

bool sharded(const std::vector<ParameterPtr>& tables) { return !tables.empty() && tables.front()->table->is_sharded(); }

}  // namespace convoy
