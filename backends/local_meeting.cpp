// What the ranks of a meeting do together, cut into tasks.
#include <algorithm>
#include <cstring>

#include "backends/local_group.h"
#include "backends/reduce.h"
#include "core/error.h"

namespace convoy {
namespace {

constexpr int64_t chunk_bytes = 128 << 10;  // a task at most: small enough for the second-level cache
constexpr int64_t least_bytes = 16 << 10;   // and at least, where work is divided: handing out costs too

// Of a task, in bytes, so that `workers` get two each of so much.
int64_t fair_chunk(int64_t bytes, size_t workers) {
  const int64_t each = bytes / (2 * static_cast<int64_t>(workers)) + 1;
  return (std::clamp(each, least_bytes, chunk_bytes) + 63) / 64 * 64;
}

char* bytes_at(const at::Tensor& tensor, int64_t offset) { return static_cast<char*>(tensor.data_ptr()) + offset; }

}  // namespace

std::string Meeting::differences() const {
  const Deposit& first = *deposits_[0];
  const bool transfer = deposits_.size() == 2 && first.input.defined() != deposits_[1]->input.defined();
  const bool alike = std::all_of(deposits_.begin(), deposits_.end(), [&](const auto& other) {
    if (!transfer) return other->call.hash == first.call.hash;
    return other->call.dtype == first.call.dtype && other->call.elements == first.call.elements;
  });
  if (!alike) {
    std::vector<int> ranks;
    std::vector<std::string> texts;
    for (const auto& deposit : deposits_) {
      ranks.push_back(deposit->call.rank);
      texts.push_back(describe(deposit->call));
    }
    return "the ranks called different things: " + difference_of(ranks, texts).message;
  }
  if (first.call.operation != Operation::all_to_all_v) return "";
  for (size_t from = 0; from < deposits_.size(); ++from) {
    for (size_t to = 0; to < deposits_.size(); ++to) {
      int64_t sent = deposits_[from]->input_parts[to + 1] - deposits_[from]->input_parts[to];
      int64_t wanted = deposits_[to]->output_parts[from + 1] - deposits_[to]->output_parts[from];
      if (sent != wanted) return str("rank ", from, " sends ", sent, " bytes to rank ", to, ", which expects ", wanted);
    }
  }
  return "";
}

void Meeting::copy(void* to, const void* from, int64_t bytes) {
  if (to == from) return;
  for (int64_t begin = 0; begin < bytes; begin += chunk_bytes) {
    int64_t n = std::min(chunk_bytes, bytes - begin);
    tasks_.push_back([to = static_cast<char*>(to) + begin, from = static_cast<const char*>(from) + begin, n] {
      std::memcpy(to, from, n);
    });
  }
}

void Meeting::prepare_reduction() {
  const Deposit& first = *deposits_[0];
  bool scatter = first.call.operation == Operation::reduce_scatter;
  at::ScalarType dtype = first.output.scalar_type();
  int64_t size = first.output.element_size();
  int64_t elements = first.output.numel();
  size_t ranks = deposits_.size();
  int64_t chunk = fair_chunk(elements * size * (scatter ? static_cast<int64_t>(ranks) : 1), ranks) / size;
  for (size_t slice = 0; slice < (scatter ? ranks : 1); ++slice) {
    for (int64_t begin = 0; begin < elements; begin += chunk) {
      int64_t n = std::min(chunk, elements - begin);
      std::vector<const void*> in;
      std::vector<void*> out;
      for (const auto& deposit : deposits_) {
        if (scatter) {
          in.push_back(bytes_at(deposit->input, (static_cast<int64_t>(slice) * elements + begin) * size));
        } else {
          in.push_back(bytes_at(deposit->output, begin * size));
          out.push_back(bytes_at(deposit->output, begin * size));
        }
      }
      if (scatter) out = {bytes_at(deposits_[slice]->output, begin * size)};
      tasks_.push_back([in, out, n, dtype, op = first.op, bytes = n * size] {
        reduce(out[0], in, n, dtype, op);
        for (size_t i = 1; i < out.size(); ++i) std::memcpy(out[i], out[0], bytes);
      });
    }
  }
}

std::string Meeting::prepare() {
  std::string reason = differences();
  if (!reason.empty()) {
    error_ = std::make_exception_ptr(CommError(Failure::disagreement, -1, reason));
    conclude(Phase::failed);
    return reason;
  }
  const Deposit& first = *deposits_[0];
  size_t ranks = deposits_.size();
  switch (first.call.operation) {
    case Operation::all_reduce:
    case Operation::reduce_scatter:
      prepare_reduction();
      break;
    case Operation::broadcast:
      for (const auto& deposit : deposits_) {
        copy(deposit->output.data_ptr(), deposits_[first.root]->output.data_ptr(), first.output.numel());
      }
      break;
    case Operation::all_gather:
    case Operation::all_gather_v:
    case Operation::split:
    case Operation::all_to_all_v:
      for (size_t to = 0; to < ranks; ++to) {
        // Memory that all have in common is written to once.
        if (to > 0 && deposits_[to]->output.data_ptr() == deposits_[0]->output.data_ptr()) continue;
        for (size_t from = 0; from < ranks; ++from) {
          const Deposit& source = *deposits_[from];
          const Offsets& parts = deposits_[to]->output_parts;
          int64_t offset = source.input_parts.empty() ? 0 : source.input_parts[to];
          copy(bytes_at(deposits_[to]->output, parts[from]), bytes_at(source.input, offset),
               parts[from + 1] - parts[from]);
        }
      }
      break;
    case Operation::send:
    case Operation::receive:
    case Operation::group:
      copy(deposits_[1]->output.data_ptr(), first.input.data_ptr(), first.input.numel());
      break;
    case Operation::barrier:
      break;
  }
  if (tasks_.empty()) {
    conclude(Phase::over);
    return "";
  }
  count_ = static_cast<int64_t>(tasks_.size());
  share_out();
  phase_ = Phase::working;
  return "";
}

void Meeting::share_out() {
  stretches_ = std::make_unique<Stretch[]>(places_);
  const auto places = static_cast<int64_t>(places_);
  for (int64_t place = 0; place < places; ++place) {
    stretches_[static_cast<size_t>(place)].next = count_ * place / places;
    stretches_[static_cast<size_t>(place)].end = count_ * (place + 1) / places;
  }
}

void Meeting::conclude(Phase phase) {
  // Tensors go before anyone can see the end.
  deposits_.clear();
  tasks_.clear();
  phase_ = phase;
}

bool Meeting::help(size_t place) {
  for (size_t k = 0; k < places_ && phase() == Phase::working; ++k) {
    Stretch& stretch = stretches_[(place + k) % places_];
    for (int64_t i = stretch.next++; i < stretch.end; i = stretch.next++) {
      tasks_[static_cast<size_t>(i)]();
      if (++finished_ == count_) conclude(Phase::over);
    }
  }
  return phase() == Phase::over || phase() == Phase::failed;
}

}  // namespace convoy
