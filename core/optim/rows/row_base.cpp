#include "core/optim/rows/row_base.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>

#include "core/tensors/tensor_memory.h"

namespace convoy {
namespace {

constexpr int64_t row_grain = 1 << 15;  // least number of elements per thread
constexpr int64_t longest_absence =
    int64_t{1} << 20;  // updates of a history; then all rows are caught up and the history starts again

template <class T>
T* moment(const std::vector<at::Tensor>& moments, size_t index) {
  return index < moments.size() ? moments[index].mutable_data_ptr<T>() : nullptr;
}

template <class T>
bool blank(const T* row, int64_t width) {
  if (row == nullptr) return true;
  for (int64_t k = 0; k < width; ++k)
    if (row[k] != T(0)) return false;
  return true;
}

// Copies rows [begin, end) of tensors [rows, width].
void copy_rows(const at::Tensor& to, const at::Tensor& from, int64_t begin, int64_t end) {
  const auto row = size_t(from.size(1) * from.element_size());
  std::memcpy(static_cast<char*>(to.data_ptr()) + size_t(begin) * row,
              static_cast<const char*>(from.const_data_ptr()) + size_t(begin) * row, size_t(end - begin) * row);
}

}  // namespace

RowBase::RowBase(std::vector<std::string> moment_names, double first, double second, const OptimizerOptions& options,
                 bool tensors)
    : moment_names_(std::move(moment_names)),
      first_(first),
      second_(second),
      lazy_(options.lazy),
      exact_(options.exact_catch_up),
      tensors_(tensors) {}

int RowBase::add_table(at::Tensor values, const SlotOptions& options, const TableMemory& memory) {
  at::NoGradGuard no_grad;
  const auto dtype = values.scalar_type();
  CONVOY_CHECK(values.dim() == 2 && values.is_contiguous() && (dtype == at::kFloat || dtype == at::kDouble),
               "a sparse embedding is [rows, width] of fp32 or fp64, not ", values.sizes(), " of ", dtype);
  check(options);
  const double precision = dtype == at::kDouble ? 1e-17 : 1e-9;
  const bool exact = exact_.value_or(dtype == at::kDouble) && values.is_cpu() && !tensors_;
  const auto zeros = memory.zeros ? memory.zeros : [](at::IntArrayRef shape, at::ScalarType type) {
    return untouched_zeros(shape, type);
  };
  Table table{values.detach(),
              zeros,
              options,
              {},
              zeros({values.size(0)}, at::kInt),
              RowHistory(lazy_ ? 0 : first_, lazy_ ? 1 : second_, precision),
              exact,
              memory.local_rows.value_or(std::vector<std::pair<int64_t, int64_t>>{{0, values.size(0)}}),
              {}};
  for (size_t i = 0; i < moment_names_.size(); ++i)
    table.moments.push_back(values.is_cpu() ? zeros(values.sizes(), dtype) : at::zeros_like(table.values));
  tables_.push_back(std::move(table));
  return int(tables_.size()) - 1;
}

NamedTensors RowBase::moments(int table) {
  NamedTensors named;
  for (size_t i = 0; i < moment_names_.size(); ++i) named.emplace_back(moment_names_[i], tables_.at(table).moments[i]);
  return named;
}

void RowBase::restored(int index) {
  Table& table = tables_.at(index);
  table.history.restart();
  table.looked_up.clear();
  for (const auto& [begin, end] : table.local_rows) table.last.narrow(0, begin, end - begin).zero_();
}

void RowBase::look_up(int index, const at::Tensor& rows, at::Tensor out) {
  at::NoGradGuard no_grad;
  Table& table = tables_.at(index);
  run(table, rows, {}, &out, {});
  table.looked_up.clear();
  if (!by_loops(table) || table.exact || table.history.length() == 0) return;  // without factors
  table.looked_up.assign(rows.const_data_ptr<int64_t>(), rows.const_data_ptr<int64_t>() + rows.numel());
}

void RowBase::run(Table& table, const at::Tensor& rows, const at::Tensor& gradients, at::Tensor* out,
                  const HostScalars& scalars) {
  if (rows.numel() == 0) return;
  if (!by_loops(table)) return run_with_tensors(table, rows, gradients, out, scalars);
  AT_DISPATCH_FLOATING_TYPES(table.values.scalar_type(), "rows", [&] {
    run_loop<scalar_t>(table, rows, gradients.defined() ? gradients.const_data_ptr<scalar_t>() : nullptr,
                       out != nullptr ? out->mutable_data_ptr<scalar_t>() : nullptr, scalars);
  });
}

void RowBase::update(int index, const at::Tensor& rows, const at::Tensor& gradients, const UpdateScalars& scalars) {
  at::NoGradGuard no_grad;
  Table& table = tables_.at(index);
  const std::optional<HostScalars> host = host_scalars(scalars, table.options);
  if (!host) return;
  const at::Tensor given = gradients.contiguous();
  run(table, rows, given, nullptr, *host);
  if (lazy_) return;
  table.history.advance(missed_update(table.options, *host));
  now_current(table, rows);
  if (table.history.length() == longest_absence) flush(index);
}

void RowBase::now_current(Table& table, const at::Tensor& rows) {
  table.looked_up.clear();
  const at::Tensor touched = rows.is_cpu() ? rows : rows.cpu();
  const int64_t* list = touched.const_data_ptr<int64_t>();
  auto* last = table.last.mutable_data_ptr<int32_t>();
  const auto now = int32_t(table.history.length());
  for (int64_t i = 0; i < touched.numel(); ++i) last[list[i]] = now;
}

template <class T>
void RowBase::run_loop(Table& table, const at::Tensor& rows, const T* gradient, T* out, const HostScalars& scalars) {
  const int64_t* const list = rows.const_data_ptr<int64_t>();
  const int64_t n = rows.numel();
  auto& factors = std::get<std::vector<RowFactors<T>>>(table.factors);
  if (table.history.length() > 0 && int64_t(factors.size()) < n) factors.resize(size_t(n));
  const int64_t width = table.values.size(1);
  at::parallel_for(0, n, std::max<int64_t>(1, row_grain / std::max<int64_t>(1, width)),
                   [&](int64_t begin, int64_t end) { run_part(table, list, begin, end, gradient, out, scalars); });
}

template <class T>
void RowBase::run_part(Table& table, const int64_t* rows, int64_t begin, int64_t end, const T* gradient, T* out,
                       const HostScalars& scalars) {
  const DenormalsAreZero denormals;
  const int64_t width = table.values.size(1), now = table.history.length();
  T* const values = table.values.mutable_data_ptr<T>();
  RowList<T> list{values, moment<T>(table.moments, 0), moment<T>(table.moments, 1), width, rows + begin, end - begin,
                  nullptr};
  const T* const given = gradient == nullptr ? nullptr : gradient + begin * width;
  const auto* last = table.last.const_data_ptr<int32_t>();
  if (now > 0 && table.exact) {
    if (out != nullptr) return look_up_exactly(table, rows, begin, end, out);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = rows[i] * width;
      replay_row(table, values + at, list.first ? list.first + at : nullptr, list.second ? list.second + at : nullptr,
                 last[rows[i]]);
    }
  } else if (now > 0) {
    auto& factors = std::get<std::vector<RowFactors<T>>>(table.factors);
    const int64_t known = gradient == nullptr ? 0 : int64_t(table.looked_up.size());
    for (int64_t i = begin; i < end; ++i) {
      if (i < known && table.looked_up[size_t(i)] == rows[i]) continue;
      if (i + 16 < end) __builtin_prefetch(last + rows[i + 16]);
      factors[size_t(i)] = RowFactors<T>(table.history.missed(last[rows[i]]));
    }
    list.missed = factors.data() + begin;
  }
  loop(list, given, out == nullptr ? nullptr : out + begin * width, table.options, scalars);
}

template <class T>
void RowBase::replay_row(const Table& table, T* values, T* first, T* second, int64_t last) const {
  const RowHistory& history = table.history;
  const int64_t width = table.values.size(1), count = history.length() - last;
  const int64_t terms = std::min(count, history.window());
  if (count == 0) return;
  if (blank(first, width)) {
    // With a first moment of zero only decay changes the value. `replay` would apply decay too, so it is not called.
    const T decay = T(history.decay(last, history.length())), power = T(history.second_power(count));
    if (decay != T(1))
      for (int64_t k = 0; k < width; ++k) values[k] *= decay;
    if (!blank(second, width))
      for (int64_t k = 0; k < width; ++k) second[k] *= power;
    return;
  }
  replay(values, first, second, width, &history.update(last), terms);
  const int64_t rest = count - terms;
  if (rest == 0) return;
  const T decay = T(history.decay(last + terms, history.length()));
  const T of_first = T(history.first_power(rest)), of_second = T(history.second_power(rest));
  for (int64_t k = 0; k < width; ++k) {
    values[k] *= decay;
    first[k] *= of_first;
    if (second != nullptr) second[k] *= of_second;
  }
}

template <class T>
void RowBase::look_up_exactly(Table& table, const int64_t* rows, int64_t begin, int64_t end, T* out) {
  const int64_t width = table.values.size(1);
  const T* const values = table.values.const_data_ptr<T>();
  const auto* last = table.last.const_data_ptr<int32_t>();
  std::vector<T> first(static_cast<size_t>(width)), second(static_cast<size_t>(width));
  const auto copied = [&](std::vector<T>& to, size_t index, int64_t at) -> T* {
    const T* from = moment<T>(table.moments, index);
    if (from == nullptr) return nullptr;
    std::memcpy(to.data(), from + at, sizeof(T) * size_t(width));
    return to.data();
  };
  for (int64_t i = begin; i < end; ++i) {
    const int64_t at = rows[i] * width;
    std::memcpy(out + i * width, values + at, sizeof(T) * size_t(width));
    replay_row(table, out + i * width, copied(first, 0, at), copied(second, 1, at), last[rows[i]]);
  }
}

bool RowBase::stale(int table) const { return !lazy_ && tables_.at(table).history.length() > 0; }

std::vector<at::Tensor> RowBase::memory_for_copies(int index) {
  const Table& table = tables_.at(index);
  std::vector<at::Tensor> copies;
  if (!by_loops(table)) return copies;
  for (size_t i = 0; i < 1 + table.moments.size(); ++i)
    copies.push_back(table.zeros(table.values.sizes(), table.values.scalar_type()));
  return copies;
}

void RowBase::flush_and_copy(int index, const std::vector<at::Tensor>& copies) {
  at::NoGradGuard no_grad;
  Table& table = tables_.at(index);
  const bool is_stale = stale(index);
  if (!is_stale && copies.empty()) return;
  if (by_loops(table)) {
    AT_DISPATCH_FLOATING_TYPES(table.values.scalar_type(), "row_settle", [&] {
      const int64_t width = std::max<int64_t>(1, table.values.size(1)), block = std::max<int64_t>(1, row_grain / width);
      const auto part = [&](int64_t begin, int64_t end) {
        if (is_stale) flush_part<scalar_t>(table, begin, end);
        if (copies.empty()) return;
        copy_rows(copies.front(), table.values, begin, end);
        for (size_t i = 0; i < table.moments.size(); ++i) copy_rows(copies[i + 1], table.moments[i], begin, end);
      };
      for (const auto& [first, last] : table.local_rows)
        at::parallel_for(first, last, block, [&](int64_t begin, int64_t end) {
          // Rows of a block are still in the cache when they are copied.
          for (; begin < end; begin += block) part(begin, std::min(begin + block, end));
        });
    });
  } else {
    CONVOY_CHECK(copies.empty(), "only rows on the CPU are copied");
    constexpr int64_t block = 1 << 16;
    for (const auto& [first, last] : table.local_rows) {
      for (int64_t begin = first; begin < last; begin += block) {
        const int64_t end = std::min(begin + block, last);
        run_with_tensors(table, at::arange(begin, end, table.values.options().dtype(at::kLong)), {}, nullptr, {});
      }
    }
  }
  restored(index);
}

void RowBase::flush_rows(int index, const at::Tensor& rows) {
  at::NoGradGuard no_grad;
  Table& table = tables_.at(index);
  if (!stale(index) || rows.numel() == 0) return;
  run(table, rows, {}, nullptr, {});
  now_current(table, rows);
}

// Does not write to rows without changes: their memory may not be allocated yet.
template <class T>
void RowBase::flush_part(Table& table, int64_t begin, int64_t end) {
  const DenormalsAreZero denormals;
  const int64_t width = table.values.size(1), now = table.history.length();
  T* const values = table.values.mutable_data_ptr<T>();
  T* const first = moment<T>(table.moments, 0);
  T* const second = moment<T>(table.moments, 1);
  const auto* last = table.last.const_data_ptr<int32_t>();
  const T all = T(table.history.decay(0, now));
  for (int64_t row = begin; row < end; ++row) {
    if (last[row] == now) continue;
    const int64_t at = row * width;
    T* const m = first == nullptr ? nullptr : first + at;
    T* const v = second == nullptr ? nullptr : second + at;
    if (last[row] == 0 && blank(m, width) && blank(v, width)) {
      if (all != T(1))
        for (int64_t k = 0; k < width; ++k) values[at + k] *= all;
      continue;
    }
    if (table.exact) {
      replay_row(table, values + at, m, v, last[row]);
      continue;
    }
    const RowFactors<T> missed(table.history.missed(last[row]));
    loop(RowList<T>{values, first, second, width, &row, 1, &missed}, static_cast<const T*>(nullptr), nullptr,
         table.options, {});
  }
}

void RowBase::run_with_tensors(Table& table, const at::Tensor& rows, const at::Tensor& gradients, at::Tensor* out,
                               const HostScalars& scalars) {
  const at::Tensor list = rows.cpu();
  const int64_t n = list.numel();
  const auto* last = table.last.const_data_ptr<int32_t>();
  const int64_t* numbers = list.const_data_ptr<int64_t>();
  at::Tensor columns = at::empty({5, n, 1}, at::kDouble);
  auto factors = columns.accessor<double, 3>();
  for (int64_t i = 0; i < n; ++i) {
    const Missed missed = table.history.missed(last[numbers[i]]);
    const double all[] = {missed.decay, missed.sum, missed.spread, missed.first, missed.second};
    for (int64_t k = 0; k < 5; ++k) factors[k][i][0] = all[k];
  }
  columns = columns.to(table.values.options());
  GatheredRows gathered{
      table.values.index_select(0, rows), {}, columns[0], columns[1], columns[2], columns[3], columns[4], gradients};
  for (size_t i = 0; i < table.moments.size(); ++i) gathered.moments[i] = table.moments[i].index_select(0, rows);
  tensors(gathered, table.options, scalars);
  if (out != nullptr) {
    out->copy_(gathered.values);
    return;
  }
  table.values.index_copy_(0, rows, gathered.values);
  for (size_t i = 0; i < table.moments.size(); ++i) table.moments[i].index_copy_(0, rows, gathered.moments[i]);
}

}  // namespace convoy
