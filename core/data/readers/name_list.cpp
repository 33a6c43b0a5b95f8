#include "core/data/readers/name_list.h"

#include <ATen/ops/empty.h>

#include <cstring>

#include "core/base/error.h"

namespace convoy {
namespace {

template <class Names>
std::pair<at::Tensor, at::Tensor> packed(const Names& names) {
  size_t total = 0;
  for (const auto& name : names) total += name.size();
  const at::Tensor bytes = at::empty({int64_t(total)}, at::kByte), ends = at::empty({int64_t(names.size())}, at::kLong);
  auto* to = static_cast<char*>(bytes.mutable_data_ptr());
  auto* end = ends.mutable_data_ptr<int64_t>();
  int64_t at = 0;
  for (const auto& name : names) {
    if (!name.empty()) std::memcpy(to + at, name.data(), name.size());
    at += int64_t(name.size());
    *end++ = at;
  }
  return {bytes, ends};
}

bool equal_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == b.nbytes() &&
         (a.nbytes() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

}  // namespace

NameList::NameList(const std::vector<std::string_view>& names) { std::tie(bytes_, ends_) = packed(names); }

NameList::NameList(const std::vector<std::string>& names) { std::tie(bytes_, ends_) = packed(names); }

NameList::NameList(at::Tensor bytes, at::Tensor ends) : bytes_(std::move(bytes)), ends_(std::move(ends)) {
  const bool fits = bytes_.defined() && ends_.defined() && bytes_.scalar_type() == at::kByte && bytes_.dim() == 1 &&
                    ends_.scalar_type() == at::kLong && ends_.dim() == 1;
  if (!fits) throw Error(Failure::corrupt_data, "a list of names is not stored as bytes and ends");
  const auto* end = ends_.const_data_ptr<int64_t>();
  int64_t before = 0;
  for (int64_t i = 0; i < ends_.numel(); before = end[i++])
    if (end[i] < before || end[i] > bytes_.numel())
      throw Error(Failure::corrupt_data, "name ", i, " of a list ends at byte ", end[i], " of ", bytes_.numel());
  if (before != bytes_.numel())
    throw Error(Failure::corrupt_data, "a list of names ends at byte ", before, " of ", bytes_.numel());
}

std::string_view NameList::operator[](int64_t number) const {
  const auto* end = ends_.const_data_ptr<int64_t>();
  const int64_t begin = number == 0 ? 0 : end[number - 1];
  return {static_cast<const char*>(bytes_.const_data_ptr()) + begin, size_t(end[number] - begin)};
}

std::vector<std::string> NameList::strings() const {
  std::vector<std::string> names;
  for (int64_t i = 0; i < size(); ++i) names.emplace_back((*this)[i]);
  return names;
}

bool NameList::operator==(const NameList& other) const {
  if (size() != other.size()) return false;
  return size() == 0 || (equal_bytes(ends_, other.ends_) && equal_bytes(bytes_, other.bytes_));
}

NameNumbers::NameNumbers(const NameList& names) {
  numbers_.reserve(size_t(names.size()));
  for (int64_t i = 0; i < names.size(); ++i) numbers_.emplace(names[i], i);
}

int64_t NameNumbers::find(std::string_view name) const {
  const auto found = numbers_.find(name);
  return found == numbers_.end() ? -1 : found->second;
}

std::vector<int64_t> NameNumbers::find_all(const NameList& names) const {
  std::vector<int64_t> numbers(size_t(names.size()));
  for (int64_t i = 0; i < names.size(); ++i) numbers[size_t(i)] = find(names[i]);
  return numbers;
}

}  // namespace convoy
