// Fills tensors in parallel over chunks: each draw depends only on its number.

#include "core/tensors/random.h"

#include <ATen/Context.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <algorithm>
#include <charconv>

#include "core/base/log.h"
#include "core/base/vectorised.h"

namespace convoy {
namespace {

using Draw = void (*)(double*, int64_t, uint64_t, uint64_t);

// out[i] = offset + factor · draw(first + i)
void fill(at::Tensor& out, uint64_t key, uint64_t first, double offset, double factor, Draw draw) {
  CONVOY_CHECK(out.is_contiguous() && out.device().is_cpu(), "random fills take contiguous CPU tensors");
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, out.scalar_type(), "random_fill", [&] {
    scalar_t* to = out.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, out.numel(), 1 << 15, [&](int64_t begin, int64_t end) {
      double drawn[1024];
      for (int64_t at = begin; at < end; at += 1024) {
        const int64_t count = std::min<int64_t>(1024, end - at);
        draw(drawn, count, key, first + uint64_t(at));
        for (int64_t i = 0; i < count; ++i) to[at + i] = static_cast<scalar_t>(offset + factor * drawn[i]);
      }
    });
  });
}

constexpr int64_t draws_per_counter = 8;  // 16 bits each
constexpr int64_t lanes = 16;             // counters of one vectorised group
constexpr int64_t span = lanes * draws_per_counter;

// 16-bit draws of counters first, first + 1, …: draw d of counter i is out[d · lanes + i].
CONVOY_VECTORISED void draw_span(uint64_t key, uint64_t first, uint32_t* out) {
  uint32_t words[4][lanes];
  philox_block(key, first, words);
  for (int64_t word = 0; word < 4; ++word) {
    for (int64_t i = 0; i < lanes; ++i) {
      out[2 * word * lanes + i] = words[word][i] & 0xFFFFu;
      out[(2 * word + 1) * lanes + i] = words[word][i] >> 16;
    }
  }
}

// Elements [begin, begin + count) of the whole tensor over the global batch. Element e of a span of 128 takes draw e ÷
// 16 of counter e mod 16; vectorised loops need this order.
template <class T>
void fill_range(T* out, int64_t begin, int64_t count, uint64_t key, uint32_t threshold, T kept) {
  uint32_t draws[span];
  for (int64_t at = begin / span * span; at < begin + count; at += span) {
    draw_span(key, uint64_t(at / draws_per_counter), draws);
    const int64_t from = std::max(at, begin), to = std::min(at + span, begin + count);
    for (int64_t i = from; i < to; ++i) out[i - begin] = draws[i - at] >= threshold ? kept : T(0);
  }
}

constexpr char key[] = "generators";

// Undefined if it is not a hex text of `bytes` bytes.
at::Tensor from_hex(const Json& value, int64_t bytes) {
  if (!value.is_string() || static_cast<int64_t>(value.get<std::string>().size()) != 2 * bytes) return {};
  const std::string text = value.get<std::string>();
  at::Tensor tensor = at::empty({bytes}, at::kByte);
  auto* data = tensor.mutable_data_ptr<uint8_t>();
  for (int64_t i = 0; i < bytes; ++i) {
    const char* const end = text.data() + 2 * (i + 1);
    if (std::from_chars(end - 2, end, data[i], 16).ptr != end) return {};
  }
  return tensor;
}

// An object of a manifest; empty if it is missing.
Json object_in(const Json& json, const std::string& name) {
  const auto found = json.is_object() ? json.find(name) : json.end();
  return found != json.end() && found->is_object() ? *found : Json::object();
}

at::Tensor state_of(at::Device device) {
  std::lock_guard<std::mutex> nobody_builds(default_generator_mutex());
  return generator_state(device);
}

void set_state(at::Device device, const at::Tensor& state) {
  std::lock_guard<std::mutex> nobody_builds(default_generator_mutex());
  set_generator_state(device, state);
}

// Ranks of a tensor group compute the same, and therefore draw the same.
std::string mesh_position(const Context& context) {
  std::string position = key;
  for (const Axis& axis : context.mesh.axes())
    if (axis.degree > 1 && axis.name != "tensor")
      position += str(" ", axis.name, " ", context.mesh.coordinate(context.rank, axis.name));
  return position;
}

// The layout as text: states can be restored only if it is equal.
std::string layout_of(const Context& context) {
  std::string layout = str(context.config.strategy.name, " on ", context.size, " ranks, ", context.process_ranks,
                           " in a process, ", context.devices.front().is_cpu() ? "cpu" : "cuda");
  for (const Axis& axis : context.mesh.axes())
    if (axis.degree > 1) layout += str(", ", axis.name, " ", axis.degree);
  return layout;
}

}  // namespace

void fill_dropout(at::Tensor out, uint64_t key, int64_t begin, int64_t run, int64_t whole, uint32_t threshold) {
  CONVOY_CHECK(out.is_contiguous() && out.device().is_cpu(), "factors of dropout are contiguous CPU tensors");
  AT_DISPATCH_FLOATING_TYPES(out.scalar_type(), "fill_dropout", [&] {
    scalar_t* to = out.mutable_data_ptr<scalar_t>();
    const auto kept = static_cast<scalar_t>(65536.0 / (65536.0 - threshold));
    at::parallel_for(0, out.numel(), 1 << 14, [&](int64_t from, int64_t end) {
      while (from < end) {
        const int64_t at = from / run, stop = std::min(end, (at + 1) * run);
        fill_range<scalar_t>(to + from, begin + at * whole + from - at * run, stop - from, key, threshold, kept);
        from = stop;
      }
    });
  });
}

void fill_uniform(at::Tensor out, uint64_t key, uint64_t first, double low, double high) {
  fill(out, key, first, low, high - low, draw_uniform);
}

void fill_normal(at::Tensor out, uint64_t key, uint64_t first, double mean, double deviation) {
  fill(out, key, first, mean, deviation, draw_normal);
}

at::Tensor generator_state(at::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_generator_state(at::Device device, const at::Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

std::mutex& default_generator_mutex() {
  static std::mutex one;
  return one;
}

DefaultGenerators::DefaultGenerators(const Context& context, bool shares_device)
    : context_(context), shares_device_(shares_device) {}

std::vector<DefaultGenerators::State> DefaultGenerators::current() const {
  std::vector<State> states{{at::kCPU, state_of(at::kCPU)}};
  for (at::Device device : context_.devices)
    if (device.is_cuda()) states.emplace_back(device, state_of(device));
  return states;
}

// Each of several CPU devices of a rank has a thread.
bool DefaultGenerators::shared(at::Device device) const {
  if (context_.process_ranks == 1) return device.is_cpu() && context_.devices.size() > 1;
  return device.is_cpu() || shares_device_;
}

void DefaultGenerators::seed() {
  begun_.clear();
  for (const auto& [device, unused] : current()) {
    // Threads that share a generator seed it with the same value, and may draw from it before the last one seeds it.
    const uint64_t value = random_key(context_.config.seed, shared(device) ? key : mesh_position(context_));
    at::Generator seeded = at::globalContext().defaultGenerator(device).clone();
    seeded.set_current_seed(value);
    begun_.emplace_back(device, seeded.get_state());
    set_state(device, begun_.back().second);
  }
}

bool DefaultGenerators::drew() const {
  const std::vector<State> now = current();
  return !std::equal(now.begin(), now.end(), begun_.begin(), begun_.end(),
                     [](const State& a, const State& b) { return a.first == b.first && a.second.equal(b.second); });
}

Json DefaultGenerators::description() const { return {{"layout", layout_of(context_)}}; }

Json DefaultGenerators::states() const {
  Json states;
  const std::vector<State> now = current();
  for (size_t i = 0; i < now.size(); ++i) {
    const auto& [device, state] = now[i];
    // Restored states count as drawn from, because the seed alone does not reproduce them.
    const bool as_seeded = seeded_ && state.equal(begun_[i].second);
    if (!shared(device) && !as_seeded)
      states[device.is_cpu() ? "cpu" : device.str()] =
          hex_text(state.const_data_ptr<uint8_t>(), static_cast<size_t>(state.numel()));
  }
  return states.is_null() ? Json() : Json{{key, states}};
}

void DefaultGenerators::restore(const Json& trainer, const std::string& path) {
  const Json description = object_in(trainer, key), ranks = object_in(trainer, "ranks");
  unknown_ = description.empty();
  const bool drawn = std::any_of(ranks.begin(), ranks.end(), [](const Json& rank) { return rank.contains(key); });
  if (unknown_ || !drawn) return;
  const Json layout = description.contains("layout") ? description["layout"] : Json();
  if (layout != layout_of(context_)) {
    if (context_.rank == 0)
      log::warning(str("checkpoint ", path, " has blocks that draw from LibTorch's generators, with the layout ",
                       layout.dump(), ", and this run is \"", layout_of(context_),
                       "\": it draws other numbers than a run without interruption would have drawn"));
    return;
  }
  const Json saved_states = object_in(object_in(ranks, std::to_string(context_.rank)), key);
  for (auto& [device, state] : begun_) {
    const std::string name = device.is_cpu() ? "cpu" : device.str();
    if (!saved_states.contains(name)) continue;
    const at::Tensor saved = from_hex(saved_states.at(name), state.numel());
    if (!saved.defined())
      throw Error(Failure::corrupt_data, path, ": manifest.json: the state of the generator ", name, " of rank ",
                  context_.rank, " is not a hex text of ", state.numel(), " bytes");
    set_state(device, saved);
    seeded_ = false;
  }
  begun_ = current();
}

void DefaultGenerators::check_drawn(bool resumed) {
  const bool several = shared(at::kCPU), unknown = resumed && unknown_ && context_.rank == 0;
  if (warned_ || !(several || unknown) || !drew()) return;
  warned_ = true;
  if (several && !current().front().second.equal(begun_.front().second))
    log::warning(str("rank ", context_.rank,
                     ": blocks draw from LibTorch's CPU generator (torch::nn::Dropout, rand_like), "
                     "which the threads of this process share: what each draws depends on timing, so neither this "
                     "run nor one that resumes from its checkpoints can be repeated bit for bit; take dropout from "
                     "Layers, or a process for each rank (backend: gloo)"));
  else if (unknown)
    log::warning(
        "blocks draw from LibTorch's generators, whose states this checkpoint of an earlier version does not "
        "contain: the run draws other numbers than one without interruption would have drawn");
}

}  // namespace convoy
