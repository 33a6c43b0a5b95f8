#include "strategies/common/memory/fake_tensors.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/OpMathType.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/result_type.h>
#include <c10/core/Allocator.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <sys/mman.h>
#include <torch/library.h>
#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/error.h"
#include "core/files/limits.h"

namespace convoy {
namespace {

using c10::DispatchKey;
using c10::IValue;
using torch::jit::Stack;

// --- Memory ---

// A mapping without pages, as large as the system's limit on addresses allows.
class EmptyMapping {
 public:
  EmptyMapping() {
    for (size_ = largest; size_ >= smallest; size_ /= 2) {
      start_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (start_ == MAP_FAILED) continue;
      if (size_ == largest) return;
      size_ /= 2;  // leaves addresses for others
      munmap(static_cast<char*>(start_) + size_, size_);
      return;
    }
    throw Error(Failure::out_of_memory, "no addresses are left for tensors without memory: " + no_memory_text());
  }
  ~EmptyMapping() { munmap(start_, size_); }
  EmptyMapping(const EmptyMapping&) = delete;
  EmptyMapping& operator=(const EmptyMapping&) = delete;
  void* start() const { return start_; }
  size_t size() const { return size_; }

 private:
  static constexpr size_t largest = size_t{1} << 42, smallest = size_t{1} << 30;
  void* start_ = MAP_FAILED;
  size_t size_ = 0;
};

// Every allocation returns the start of the mapping. Sizes are reported to LibTorch's profiler, as from its own
// allocator.
class FakeAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes > mapping_.size())
      throw Error(Failure::out_of_memory, "a tensor of ", bytes, " bytes is larger than ", mapping_.size(),
                  ", the addresses that `ulimit -v` leaves");
    report(int64_t(bytes));
    return {mapping_.start(), new int64_t(int64_t(bytes)), &release, at::Device(at::kCPU)};
  }
  void copy_data(void*, const void*, size_t) const override {}

 private:
  static void report(int64_t bytes) { c10::reportMemoryUsageToProfiler(nullptr, bytes, 0, 0, at::Device(at::kCPU)); }
  static void release(void* context) {
    const std::unique_ptr<int64_t> bytes(static_cast<int64_t*>(context));
    report(-*bytes);
  }
  EmptyMapping mapping_;
};

// --- Operators ---

bool is_float(at::ScalarType type) { return at::isFloatingType(type) || at::isComplexType(type); }

template <class Visit>
void each_tensor(const IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const IValue& item : value.toListRef()) each_tensor(item, visit);
  }
}

at::Tensor to_meta(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  at::Tensor meta(at::detail::empty_strided_generic(tensor.sizes(), tensor.strides(),
                                                    c10::GetAllocator(c10::DeviceType::Meta),
                                                    c10::DispatchKeySet(DispatchKey::Meta), tensor.scalar_type()));
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  return meta;
}

template <class Convert>
IValue converted(const IValue& value, const Convert& convert) {
  if (value.isTensor()) return convert(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(convert(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      list.push_back(tensor ? std::optional<at::Tensor>(convert(*tensor)) : std::nullopt);
    return list;
  }
  return value;
}

struct Tensors {
  bool any = false, floats = false, strided = true;
};

Tensors tensors_of(const Stack& stack, size_t first) {
  Tensors all;
  for (size_t i = first; i < stack.size(); ++i)
    each_tensor(stack[i], [&](const at::Tensor& tensor) {
      all.any = true;
      all.floats = all.floats || is_float(tensor.scalar_type());
      all.strided = all.strided && tensor.layout() == at::kStrided && tensor.is_cpu();
    });
  return all;
}

enum class Kind { view, in_place, shapes };

// True for operators that return a view although their schema has no alias annotation.
bool is_unsafe_view(const std::string& name) { return name == "aten::_unsafe_view" || name == "aten::_reshape_alias"; }

Kind kind_of(const c10::FunctionSchema& schema) {
  if (is_unsafe_view(schema.name())) return Kind::view;
  bool writes = false, aliases = false, makes = false;
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.alias_info() == nullptr) continue;
    writes = writes || argument.alias_info()->isWrite();
    aliases = aliases || !argument.alias_info()->isWrite();
  }
  for (const c10::Argument& result : schema.returns()) makes = makes || result.alias_info() == nullptr;
  if (writes) return makes ? Kind::shapes : Kind::in_place;
  return aliases ? Kind::view : Kind::shapes;
}

bool returns_tensors(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns())
    if (result.type()->isSubtypeOf(*c10::TensorType::get()) || result.type()->isSubtypeOf(*c10::ListType::ofTensors()))
      return true;
  return schema.returns().empty();
}

// Runs the kernel of the operator. The operators that it calls reach FakeKernel again.
void run_parts(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, DispatchKey::Fake), stack);
}

// Runs the kernel of the operator with values.
void run_for_real(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard real(DispatchKey::Fake);
  run_parts(op, keys, stack);
}

// Leaves the written tensors of in-place and out operators unchanged.
void leave_as_they_are(const c10::FunctionSchema& schema, Stack* stack) {
  const size_t count = schema.arguments().size(), first = stack->size() - count;
  Stack results;
  size_t next = 0;
  for (size_t result = 0; result < schema.returns().size(); ++result) {
    while (schema.arguments()[next].alias_info() == nullptr || !schema.arguments()[next].alias_info()->isWrite())
      ++next;
    results.push_back((*stack)[first + next++]);
  }
  stack->resize(first);
  for (IValue& value : results) stack->push_back(std::move(value));
}

// True for operators without tensor arguments that allocate floats; only those are fake.
bool allocates_floats(const c10::OperatorHandle& op, const Stack& stack) {
  const c10::FunctionSchema& schema = op.schema();
  if (schema.name() != "aten::empty" && schema.name() != "aten::empty_strided") return false;
  at::ScalarType type = c10::typeMetaToScalarType(at::get_default_dtype());
  const size_t first = stack.size() - schema.arguments().size();
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const IValue& value = stack[first + i];
    if (value.isNone()) continue;
    if (schema.arguments()[i].name() == "dtype") type = value.toScalarType();
    if (schema.arguments()[i].name() == "device" && !value.toDevice().is_cpu()) return false;
  }
  return is_float(type);
}

// True for operators that make a short tensor from numbers. They call an in-place operator that enlarges an empty
// tensor and writes into it. FakeKernel would leave that tensor unchanged.
bool makes_range(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  return name == "aten::arange" || name == "aten::range" || name == "aten::linspace" || name == "aten::logspace" ||
         name == "aten::eye";
}

// True for operators that call other operators, which arrive here one by one. Operators with a kernel for
// CompositeImplicitAutograd arrive here themselves only without autograd.
bool is_composite(const c10::OperatorHandle& op, std::initializer_list<DispatchKey> keys) {
  return !op.hasKernelForDispatchKey(DispatchKey::CPU) &&
         std::any_of(keys.begin(), keys.end(), [&](DispatchKey key) { return op.hasKernelForDispatchKey(key); });
}

bool is_implicit(const c10::OperatorHandle& op) { return is_composite(op, {DispatchKey::CompositeImplicitAutograd}); }

bool is_explicit(const c10::OperatorHandle& op) {
  return is_composite(op,
                      {DispatchKey::CompositeExplicitAutograd, DispatchKey::CompositeExplicitAutogradNonFunctional});
}

// The kernel that every operator calls instead of its normal one.
class FakeKernel : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const c10::FunctionSchema& schema = op.schema();
    const Tensors tensors = tensors_of(*stack, stack->size() - schema.arguments().size());
    const Kind kind = kind_of(schema);
    const bool has_values = tensors.any ? !tensors.floats || !tensors.strided : !allocates_floats(op, *stack);
    if (!tensors.any && makes_range(op)) return run_for_real(op, keys, stack);
    if (is_implicit(op)) return run_parts(op, keys, stack);
    if (kind == Kind::view || op.hasTag(at::Tag::inplace_view) || !returns_tensors(schema))
      return run_for_real(op, keys, stack);
    if (!has_values && kind == Kind::in_place) return leave_as_they_are(schema, stack);
    if (!has_values && run_shapes(op, stack)) return;
    if (is_explicit(op) && (!has_values || !tensors.any)) return run_parts(op, keys, stack);
    run_for_real(op, keys, stack);
  }

 private:
  // Returns false and leaves the stack unchanged if there is no shape function.
  bool run_shapes(const c10::OperatorHandle& op, Stack* stack) {
    if (!op.hasKernelForDispatchKey(DispatchKey::Meta)) return false;
    const size_t count = op.schema().arguments().size(), first = stack->size() - count;
    Stack shapes;
    for (size_t i = 0; i < count; ++i) {
      IValue value = converted((*stack)[first + i], to_meta);
      if (op.schema().arguments()[i].name() == "device") value = at::Device(at::kMeta);
      shapes.push_back(std::move(value));
    }
    try {
      const c10::impl::ExcludeDispatchKeyGuard real(DispatchKey::Fake);
      const at::AutoDispatchBelowADInplaceOrView no_graph;
      op.callBoxedForDispatchKey(DispatchKey::Meta, shapes);
    } catch (const std::exception&) {
      return false;
    }
    stack->resize(first);
    for (const IValue& value : shapes)
      stack->push_back(converted(value, [this](const at::Tensor& meta) { return fake(meta); }));
    return true;
  }

  at::Tensor fake(const at::Tensor& meta) {
    if (!meta.defined() || !meta.is_meta()) return meta;
    return at::Tensor(at::detail::empty_strided_generic(meta.sizes(), meta.strides(),
                                                        is_float(meta.scalar_type()) ? &floats_ : &others_,
                                                        c10::DispatchKeySet(DispatchKey::CPU), meta.scalar_type()));
  }

  // Integers have a separate mapping without writes: their values are zero and within every range.
  FakeAllocator floats_, others_;
};

}  // namespace

struct FakeTensors::Inner {
  torch::Library fallback{torch::Library::IMPL, "_", DispatchKey::Fake, __FILE__, __LINE__};
  torch::Library shapes{torch::Library::IMPL, "aten", DispatchKey::Meta, __FILE__, __LINE__};
  std::optional<c10::impl::IncludeDispatchKeyGuard> active;
};

FakeTensors::FakeTensors() : inner_(std::make_unique<Inner>()) {
  inner_->fallback.fallback(torch::CppFunction::makeFromBoxedFunctor<FakeKernel>(std::make_unique<FakeKernel>()));
  add_shape_functions(inner_->shapes);
  inner_->active.emplace(DispatchKey::Fake);
}

FakeTensors::~FakeTensors() { inner_->active.reset(); }

namespace {

using at::IntArrayRef;
using at::Tensor;
using Mask = std::array<bool, 3>;
using MaybeTensor = std::optional<Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;
using Two = std::tuple<Tensor, Tensor>;

Tensor like(const Tensor& tensor) { return at::empty_like(tensor); }
Tensor plain_like(const Tensor& tensor) { return at::empty(tensor.sizes(), tensor.options()); }
Tensor of_shape(IntArrayRef sizes, const Tensor& type) { return at::empty(sizes, type.options()); }
Tensor like_if(bool wanted, const Tensor& tensor) { return wanted && tensor.defined() ? like(tensor) : Tensor(); }

// Returns a tensor with the data type of a normalisation's statistics. A weight may be wider than its input.
const Tensor& statistics_type(const Tensor& input, const MaybeTensor& weight) {
  return weight && weight->defined() ? *weight : input;
}

// --- Normalisations ---

Three layer_norm(const Tensor& input, IntArrayRef shape, const MaybeTensor& weight, const MaybeTensor&, double) {
  std::vector<int64_t> statistics = input.sizes().vec();
  for (size_t i = statistics.size() - shape.size(); i < statistics.size(); ++i) statistics[i] = 1;
  const Tensor& type = statistics_type(input, weight);
  return {plain_like(input), of_shape(statistics, type), of_shape(statistics, type)};
}

Three layer_norm_backward(const Tensor&, const Tensor& input, IntArrayRef, const Tensor&, const Tensor&,
                          const MaybeTensor& weight, const MaybeTensor& bias, Mask wanted) {
  return {wanted[0] ? plain_like(input) : Tensor(), like_if(wanted[1], weight.value_or(Tensor())),
          like_if(wanted[2], bias.value_or(Tensor()))};
}

Three group_norm(const Tensor& input, const MaybeTensor& weight, const MaybeTensor&, int64_t rows, int64_t, int64_t,
                 int64_t groups, double) {
  const Tensor& type = statistics_type(input, weight);
  return {like(input), of_shape({rows, groups}, type), of_shape({rows, groups}, type)};
}

Three group_norm_backward(const Tensor&, const Tensor& input, const Tensor&, const Tensor&, const MaybeTensor& weight,
                          int64_t, int64_t channels, int64_t, int64_t, Mask wanted) {
  const Tensor& type = statistics_type(input, weight);
  return {like_if(wanted[0], input), wanted[1] ? of_shape({channels}, type) : Tensor(),
          wanted[2] ? of_shape({channels}, type) : Tensor()};
}

Three batch_norm(const Tensor& input, const MaybeTensor& weight, const MaybeTensor&, const MaybeTensor&,
                 const MaybeTensor&, bool training, double, double) {
  const Tensor& type = statistics_type(input, weight);
  const int64_t channels = training ? input.size(1) : 0;
  return {like(input), of_shape({channels}, type), of_shape({channels}, type)};
}

Three batch_norm_backward(const Tensor&, const Tensor& input, const MaybeTensor& weight, const MaybeTensor&,
                          const MaybeTensor&, const MaybeTensor&, const MaybeTensor&, bool, double, Mask wanted) {
  const Tensor& type = statistics_type(input, weight);
  const auto channels = [&](bool one) { return one ? of_shape({input.size(1)}, type) : Tensor(); };
  return {like_if(wanted[0], input), channels(wanted[1]), channels(wanted[2])};
}

// --- Convolution ---

Tensor convolution(const Tensor& input, const Tensor& weight, const MaybeTensor&, IntArrayRef stride,
                   IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding,
                   int64_t groups) {
  const auto at = [](IntArrayRef list, int64_t i) { return list.size() == 1 ? list[0] : list[size_t(i)]; };
  const int64_t dimensions = weight.dim() - 2;
  std::vector<int64_t> sizes = input.sizes().vec();
  const size_t channels = sizes.size() - size_t(dimensions) - 1;  // there may be no batch dimension
  sizes[channels] = transposed ? weight.size(1) * groups : weight.size(0);
  for (int64_t i = 0; i < dimensions; ++i) {
    int64_t& size = sizes[channels + 1 + size_t(i)];
    const int64_t kernel = at(dilation, i) * (weight.size(2 + i) - 1);
    size = transposed ? (size - 1) * at(stride, i) - 2 * at(padding, i) + kernel + at(output_padding, i) + 1
                      : (size + 2 * at(padding, i) - kernel - 1) / at(stride, i) + 1;
  }
  return at::empty(sizes, input.options().memory_format(input.suggest_memory_format()));  // it keeps channels last
}

Three convolution_backward(const Tensor& gradient, const Tensor& input, const Tensor& weight,
                           at::OptionalIntArrayRef bias, IntArrayRef, IntArrayRef, IntArrayRef, bool, IntArrayRef,
                           int64_t, Mask wanted) {
  const int64_t channels = gradient.size(-1 - (weight.dim() - 2));
  return {like_if(wanted[0], input), like_if(wanted[1], weight),
          wanted[2] ? of_shape(bias ? *bias : IntArrayRef{channels}, weight) : Tensor()};
}

Tensor adaptive_pool(const Tensor& input, IntArrayRef size) {
  std::vector<int64_t> sizes = input.sizes().vec();
  std::copy(size.begin(), size.end(), sizes.end() - 2);
  return of_shape(sizes, input);
}

Tensor adaptive_pool_backward(const Tensor&, const Tensor& input) { return like(input); }

// --- Selection ---

Tensor embedding(const Tensor& weight, const Tensor& ids, int64_t, bool, bool) {
  std::vector<int64_t> sizes = ids.sizes().vec();
  sizes.push_back(weight.size(1));
  return of_shape(sizes, weight);
}

Tensor embedding_backward(const Tensor& gradient, const Tensor&, int64_t rows, int64_t, bool) {
  return of_shape({rows, gradient.size(-1)}, gradient);
}

Tensor index_select(const Tensor& input, int64_t dim, const Tensor& index) {
  std::vector<int64_t> sizes = input.sizes().vec();
  if (!sizes.empty()) sizes[size_t(at::maybe_wrap_dim(dim, input.dim()))] = index.numel();
  return of_shape(sizes, input);
}

Tensor where(const Tensor& condition, const Tensor& one, const Tensor& other) {
  const auto sizes = at::infer_size(condition.sizes(), at::infer_size(one.sizes(), other.sizes()));
  return at::empty(sizes, one.options().dtype(at::result_type(one, other)));
}

// --- Attention ---

// [N, heads, T, D] as views of [N, T, heads, D], like the kernel's results.
Tensor attended_like(const Tensor& tensor) {
  return of_shape({tensor.size(0), tensor.size(2), tensor.size(1), tensor.size(3)}, tensor).transpose(1, 2);
}

Two attention(const Tensor& query, const Tensor&, const Tensor& value, double, bool, const MaybeTensor&,
              std::optional<double>) {
  const Tensor output = of_shape({query.size(0), query.size(2), query.size(1), value.size(3)}, query).transpose(1, 2);
  const Tensor sums = at::empty({query.size(0), query.size(2), query.size(1)},
                                query.options().dtype(at::toOpMathType(query.scalar_type())));
  return {output, sums.transpose(1, 2)};
}

Three attention_backward(const Tensor&, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor&,
                         const Tensor&, double, bool, const MaybeTensor&, std::optional<double>) {
  return {attended_like(query), attended_like(key), attended_like(value)};
}

// --- Others ---

Two log_sigmoid(const Tensor& input) { return {like(input), like(input)}; }
Tensor log_sigmoid_backward(const Tensor& gradient, const Tensor&, const Tensor&) { return like(gradient); }
Tensor turned(const Tensor& input, IntArrayRef) { return like(input); }
Tensor rolled(const Tensor& input, IntArrayRef, IntArrayRef) { return like(input); }

}  // namespace

void add_shape_functions(torch::Library& aten) {
  aten.impl("native_layer_norm", TORCH_FN(layer_norm));
  aten.impl("native_layer_norm_backward", TORCH_FN(layer_norm_backward));
  aten.impl("native_group_norm", TORCH_FN(group_norm));
  aten.impl("native_group_norm_backward", TORCH_FN(group_norm_backward));
  aten.impl("native_batch_norm", TORCH_FN(batch_norm));
  aten.impl("native_batch_norm_backward", TORCH_FN(batch_norm_backward));
  aten.impl("convolution", TORCH_FN(convolution));
  aten.impl("convolution_backward", TORCH_FN(convolution_backward));
  aten.impl("_adaptive_avg_pool2d", TORCH_FN(adaptive_pool));
  aten.impl("_adaptive_avg_pool2d_backward", TORCH_FN(adaptive_pool_backward));
  aten.impl("embedding", TORCH_FN(embedding));
  aten.impl("embedding_dense_backward", TORCH_FN(embedding_backward));
  aten.impl("index_select", TORCH_FN(index_select));
  aten.impl("where.self", TORCH_FN(where));
  aten.impl("_scaled_dot_product_flash_attention_for_cpu", TORCH_FN(attention));
  aten.impl("_scaled_dot_product_flash_attention_for_cpu_backward", TORCH_FN(attention_backward));
  aten.impl("log_sigmoid_forward", TORCH_FN(log_sigmoid));
  aten.impl("log_sigmoid_backward", TORCH_FN(log_sigmoid_backward));
  aten.impl("flip", TORCH_FN(turned));
  aten.impl("roll", TORCH_FN(rolled));
}

}  // namespace convoy
