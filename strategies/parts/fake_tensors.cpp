#include "strategies/parts/fake_tensors.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Allocator.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "strategies/parts/shape_functions.h"

namespace convoy {
namespace {

using c10::DispatchKey;
using c10::IValue;
using torch::jit::Stack;

// ---- memory ---------------------------------------------------------------------------------------------------------

// A mapping without pages; as much as the system lets a process have addresses for.
class EmptyMapping {
 public:
  EmptyMapping() {
    for (size_ = largest; size_ >= smallest; size_ /= 2) {
      start_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (start_ == MAP_FAILED) continue;
      if (size_ == largest) return;
      size_ /= 2;  // others need addresses, too
      munmap(static_cast<char*>(start_) + size_, size_);
      return;
    }
    throw Error(Failure::out_of_memory, "no addresses are left for tensors without memory; is `ulimit -v` small?");
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

// Every allocation is the mapping's beginning. Sizes are reported to LibTorch's profiler, as its own allocator
// reports them.
class FakeAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes > mapping_.size())
      throw Error(Failure::out_of_memory, str("a tensor of ", bytes, " bytes is larger than ", mapping_.size(),
                                              ", the addresses that `ulimit -v` leaves"));
    report(static_cast<int64_t>(bytes));
    return {mapping_.start(), new int64_t(static_cast<int64_t>(bytes)), &release, at::Device(at::kCPU)};
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

// ---- operators ------------------------------------------------------------------------------------------------------

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

// Views without a word about it in their schema.
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

// Runs the operator's own kernel. The operators that it calls come to FakeKernel again.
void run_parts(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, DispatchKey::Fake), stack);
}

// Runs the operator's own kernel, with values.
void run_for_real(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard real(DispatchKey::Fake);
  run_parts(op, keys, stack);
}

// In-place and out operators: the tensors that are written to, as they are.
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

// Operators without tensors among their arguments: only those that allocate are fake, and only of floats.
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

// Operators that are made of others, which come here one by one. Those of the first kind come here themselves only
// where autograd is left out.
bool is_composite(const c10::OperatorHandle& op, std::initializer_list<DispatchKey> keys) {
  return !op.hasKernelForDispatchKey(DispatchKey::CPU) &&
         std::any_of(keys.begin(), keys.end(), [&](DispatchKey key) { return op.hasKernelForDispatchKey(key); });
}

bool is_implicit(const c10::OperatorHandle& op) { return is_composite(op, {DispatchKey::CompositeImplicitAutograd}); }

bool is_explicit(const c10::OperatorHandle& op) {
  return is_composite(op,
                      {DispatchKey::CompositeExplicitAutograd, DispatchKey::CompositeExplicitAutogradNonFunctional});
}

// The kernel that every operator calls in place of its own.
class FakeKernel : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const c10::FunctionSchema& schema = op.schema();
    const Tensors tensors = tensors_of(*stack, stack->size() - schema.arguments().size());
    const Kind kind = kind_of(schema);
    const bool has_values = tensors.any ? !tensors.floats || !tensors.strided : !allocates_floats(op, *stack);
    if (is_implicit(op)) return run_parts(op, keys, stack);
    if (kind == Kind::view || op.hasTag(at::Tag::inplace_view) || !returns_tensors(schema))
      return run_for_real(op, keys, stack);
    if (!has_values && kind == Kind::in_place) return leave_as_they_are(schema, stack);
    if (!has_values && run_shapes(op, stack)) return;
    if (is_explicit(op) && (!has_values || !tensors.any)) return run_parts(op, keys, stack);
    run_for_real(op, keys, stack);
  }

 private:
  // False: there is no shape function, and the stack is as it was.
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

  // Integers have a mapping of their own: nobody writes there, so that they are zero and within every range.
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

}  // namespace convoy
