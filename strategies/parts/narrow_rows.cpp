#include "strategies/parts/narrow_rows.h"

#include <ATen/ATen.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "strategies/parts/row_bytes.h"

namespace convoy {
namespace {

constexpr int64_t head = 8;   // bytes in front: the power of two
constexpr int largest = 13;   // of which the largest number is brought to, far below what fp16 ends at
constexpr int furthest = 60;  // whose inverse every dtype of gradients has

}  // namespace

NarrowRows::NarrowRows(const ParameterPtr& table, Compression numbers)
    : numbers_(numbers),
      width_(table->value.size(1)),
      left_(at::zeros(table->value.sizes(), table->value.options().requires_grad(false))) {
  CONVOY_CHECK(numbers != Compression::none && left_.is_cpu() &&
                   (left_.scalar_type() == at::kFloat || left_.scalar_type() == at::kDouble),
               table->name, " cannot be sent in 16 bits");
}

int64_t NarrowRows::bytes(int64_t rows) const { return rows == 0 ? 0 : head + padded(rows * width_ * 2); }

template <class Call>
void NarrowRows::typed(const Call& call) const {
  const bool half = numbers_ == Compression::fp16;
  if (left_.scalar_type() == at::kFloat)
    half ? call(float{}, c10::Half{}) : call(float{}, c10::BFloat16{});
  else
    half ? call(double{}, c10::Half{}) : call(double{}, c10::BFloat16{});
}

char* NarrowRows::encode(char* to, const TableRows& rows) {
  const int64_t count = rows.numbers.numel();
  if (count > 0) typed([&](auto real, auto narrow) { encode_as<decltype(real), decltype(narrow)>(to, rows); });
  return to + bytes(count);
}

template <class Real, class Narrow>
void NarrowRows::encode_as(char* to, const TableRows& rows) {
  const int64_t count = rows.numbers.numel();
  const int64_t* numbers = rows.numbers.const_data_ptr<int64_t>();
  const Real* values = rows.values.const_data_ptr<Real>();
  Real* const left = left_.mutable_data_ptr<Real>();
  Real most = 0;
  for (int64_t i = 0; i < count; ++i) {
    Real* const own = left + numbers[i] * width_;
    for (int64_t k = 0; k < width_; ++k) {
      own[k] += values[i * width_ + k];
      most = std::max(most, std::abs(own[k]));
    }
  }
  int power = 0;
  if (std::is_same_v<Narrow, c10::Half> && most > 0 && std::isfinite(most)) {
    int exponent = 0;
    std::frexp(most, &exponent);
    power = std::clamp(largest - exponent, -furthest, furthest);
  }
  const auto sent = static_cast<int64_t>(power);
  std::memcpy(to, &sent, sizeof sent);
  auto* narrow = reinterpret_cast<Narrow*>(to + head);
  const Real up = std::ldexp(Real(1), power), down = std::ldexp(Real(1), -power);
  for (int64_t i = 0; i < count; ++i) {
    Real* const own = left + numbers[i] * width_;
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
  const auto* narrow = reinterpret_cast<const Narrow*>(from + head);
  auto* to = static_cast<Real*>(decoded_.mutable_data_ptr());
  for (int64_t i = 0; i < rows * width_; ++i) to[i] = static_cast<Real>(static_cast<float>(narrow[i])) * down;
}

}  // namespace convoy
