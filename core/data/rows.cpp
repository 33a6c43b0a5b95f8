// Gathers rows with one tight loop per pair of types.

#include "core/data/rows.h"

#include "core/data/dataset.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/text.h"

namespace convoy {

namespace {

// --- Reuse of a batch's memory, as soon as no batch, view or autograd graph refers to it ---

// Tensors that a consumer may use at a time in addition to the loader's queue; further tensors are not reused.
constexpr size_t max_reused = 48;

bool unused(const at::Tensor& tensor) { return tensor.use_count() == 1 && tensor.storage().use_count() == 1; }

template <class From, class To>
void copy_rows(const From* source, const int64_t* wanted, int64_t rows, int64_t width, To* out, To scale) {
  for (int64_t r = 0; r < rows; ++r) {
    const From* from = source + wanted[r] * width;
    To* to = out + r * width;
    if constexpr (std::is_same_v<From, To>) {
      if (scale == To(1)) {
        std::memcpy(to, from, size_t(width) * sizeof(To));
        continue;
      }
    }
    for (int64_t i = 0; i < width; ++i) to[i] = static_cast<To>(from[i]) * scale;
  }
}

}  // namespace

at::Tensor from_bytes(const at::Tensor& bytes, at::ScalarType dtype) {
  return bytes.to(at::kFloat).mul_(1.0 / 255).to(dtype);
}

void log_mapped(const std::string& what, const std::string& file, int64_t bytes) {
  log::info(str("data: ", what, " is mapped read-only", file == what ? "" : " from " + file, ", ",
                human_bytes(static_cast<double>(bytes)), " that all processes here share"));
}

void log_in_memory(const std::string& what, int64_t bytes, const std::string& reason) {
  log::info(
      str("data: ", what, " is in memory, ", human_bytes(static_cast<double>(bytes)), " in each process: ", reason));
}

at::Tensor BatchBuffers::take(const std::string& name, at::IntArrayRef shape, at::ScalarType dtype) {
  auto options = at::TensorOptions().dtype(dtype).device(at::kCPU);
  if (pinned_) return at::empty(shape, options.pinned_memory(true));

  auto found = std::find_if(reusable_.begin(), reusable_.end(), [&](const auto& entry) { return entry.first == name; });
  if (found == reusable_.end()) {
    reusable_.emplace_back(name, std::vector<at::Tensor>{});
    found = reusable_.end() - 1;
  }
  auto& tensors = found->second;
  at::Tensor* replaceable = nullptr;
  for (auto& tensor : tensors) {
    if (!unused(tensor)) continue;
    if (tensor.sizes() == shape && tensor.scalar_type() == dtype && tensor.is_contiguous()) return tensor;
    replaceable = &tensor;
  }
  auto result = at::empty(shape, options);
  if (replaceable != nullptr && tensors.size() >= max_reused / 2) {
    *replaceable = result;  // replaces one of another shape, such as the last batch of an epoch
  } else if (tensors.size() < max_reused) {
    tensors.push_back(result);
  }
  return result;
}

void gather_rows(const at::Tensor& source, const int64_t* wanted, int64_t rows, at::Tensor& out, double scale) {
  CONVOY_CHECK(source.is_contiguous() && out.is_contiguous(), "rows of strided tensors");
  if (source.size(0) == 0) return;
  const int64_t width = source.numel() / source.size(0);
  AT_DISPATCH_ALL_TYPES_AND3(at::kHalf, at::kBFloat16, at::kBool, source.scalar_type(), "gather_rows", [&] {
    const scalar_t* from = source.const_data_ptr<scalar_t>();
    switch (out.scalar_type()) {
      case at::kFloat:
        return copy_rows(from, wanted, rows, width, out.mutable_data_ptr<float>(), float(scale));
      case at::kDouble:
        return copy_rows(from, wanted, rows, width, out.mutable_data_ptr<double>(), scale);
      case at::kByte:
        return copy_rows(from, wanted, rows, width, out.mutable_data_ptr<uint8_t>(), uint8_t(scale));
      case at::kLong:
        return copy_rows(from, wanted, rows, width, out.mutable_data_ptr<int64_t>(), int64_t(scale));
      default:
        CONVOY_CHECK(false, "rows gathered into ", out.scalar_type());
    }
  });
}

bool can_evaluate_training_rows(const Dataset& data) {
  if (data.size(Split::evaluate) == 0) return data.instances_per_row() == 1;
  const at::Tensor first = at::zeros({1}, at::kLong);
  const Batch trained = data.gather_once(Split::train, first, 0),
              evaluated = data.gather_once(Split::evaluate, first, 0);
  bool same = trained.tensors.size() == evaluated.tensors.size();
  for (size_t i = 0; same && i < trained.tensors.size(); ++i)
    same = trained.tensors[i].first == evaluated.tensors[i].first &&
           trained.tensors[i].second.sizes() == evaluated.tensors[i].second.sizes();
  return same;
}

}  // namespace convoy
