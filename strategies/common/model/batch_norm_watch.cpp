#include "strategies/common/model/batch_norm_watch.h"

#include <ATen/record_function.h>
#include <algorithm>
#include <cstring>
#include <iterator>

#include "core/base/error.h"

namespace convoy {
namespace {

class BatchNormWatch;
thread_local BatchNormWatch* watch_of_thread = nullptr;  // callbacks are plain functions

constexpr const char* batch_norms[] = {"aten::batch_norm", "aten::native_batch_norm", "aten::_native_batch_norm_legit",
                                       "aten::cudnn_batch_norm", "aten::miopen_batch_norm"};
constexpr const char* instance_norm = "aten::instance_norm";

bool is(const char* name, const char* other) { return std::strcmp(name, other) == 0; }

// The only flag before the factors says if the rows' statistics are used: `training`, or `use_input_stats`.
bool uses_rows(at::ArrayRef<const c10::IValue> inputs) {
  const auto flag = std::find_if(inputs.begin(), inputs.end(), [](const c10::IValue& value) { return value.isBool(); });
  return flag != inputs.end() && flag->toBool();
}

// input, weight, bias, running_mean, …
bool tracks(at::ArrayRef<const c10::IValue> inputs) {
  return inputs.size() > 3 && inputs[3].isTensor() && inputs[3].toTensor().defined();
}

// Sees the calls of the thread that made it, while it lives. One at a time in a thread.
class BatchNormWatch {
 public:
  BatchNormWatch();
  ~BatchNormWatch();
  BatchNormWatch(const BatchNormWatch&) = delete;
  BatchNormWatch& operator=(const BatchNormWatch&) = delete;

  // Name of the first call found, as "aten::batch_norm"; null if there was none.
  const char* found() const { return found_; }

 private:
  struct Call;
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function);
  static void end(const at::RecordFunction& function, at::ObserverContext* call);

  at::CallbackHandle handle_;
  const char* found_ = nullptr;
  int instance_norms_ = 0;  // that the thread is in
};

struct BatchNormWatch::Call : at::ObserverContext {};

std::unique_ptr<at::ObserverContext> BatchNormWatch::begin(const at::RecordFunction& function) {
  BatchNormWatch* const watch = watch_of_thread;
  const char* const name = function.name();
  const bool of_rows = is(name, instance_norm);
  const auto of_batch =
      std::find_if(std::begin(batch_norms), std::end(batch_norms), [&](const char* other) { return is(name, other); });
  if (watch == nullptr || !(of_rows || of_batch != std::end(batch_norms))) return nullptr;
  const bool counts = of_rows ? tracks(function.inputs()) : watch->instance_norms_ == 0;
  if (counts && watch->found_ == nullptr && uses_rows(function.inputs()))
    watch->found_ = of_rows ? instance_norm : *of_batch;
  if (!of_rows) return nullptr;
  ++watch->instance_norms_;
  return std::make_unique<Call>();
}

void BatchNormWatch::end(const at::RecordFunction&, at::ObserverContext* call) {
  if (call != nullptr && watch_of_thread != nullptr) --watch_of_thread->instance_norms_;
}

BatchNormWatch::BatchNormWatch() {
  watch_of_thread = this;
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&begin, &end).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

BatchNormWatch::~BatchNormWatch() {
  at::removeCallback(handle_);
  watch_of_thread = nullptr;
}

}  // namespace

TensorList refuse_own_batch_norm(const std::string& block, const std::function<TensorList()>& forward) {
  const BatchNormWatch watch;
  TensorList outputs = forward();
  if (watch.found() != nullptr)
    throw Error(Failure::config, "strategy.batch_norm is sync, and block ", block, " calls ", watch.found(),
                ", which takes its statistics from each rank's own rows; take the layer from Layers::batch_norm, or "
                "take batch_norm: local");
  return outputs;
}

}  // namespace convoy
