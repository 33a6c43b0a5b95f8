// Words and hashes of calls. Both are made at every collective, so they cost tens of nanoseconds.
#include "backends/call.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>

#include "core/text.h"

namespace convoy {
namespace {

const char* name_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    case at::kLong:
      return "int64";
    case at::kInt:
      return "int32";
    case at::kShort:
      return "int16";
    case at::kChar:
      return "int8";
    case at::kByte:
      return "uint8";
    case at::kBool:
      return "bool";
    default:
      return c10::toString(dtype);
  }
}

std::string listed(const std::vector<int64_t>& counts) {
  std::string text;
  for (size_t i = 0; i < counts.size() && i < 8; ++i) text += str(i == 0 ? "" : ",", counts[i]);
  return counts.size() > 8 ? text + ",…" : text;
}

uint64_t mixed(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15U;
  return hash ^ (hash >> 29);
}

uint64_t mixed(uint64_t hash, const char* text, size_t length) {
  for (; length >= 8; text += 8, length -= 8) {
    uint64_t bits = 0;
    std::memcpy(&bits, text, 8);
    hash = mixed(hash, bits);
  }
  uint64_t rest = length;
  std::memcpy(reinterpret_cast<char*>(&rest) + 1, text, length);
  return mixed(hash, rest);
}

}  // namespace

const char* name_of(Operation operation) {
  switch (operation) {
    case Operation::all_reduce:
      return "all_reduce";
    case Operation::all_gather:
      return "all_gather";
    case Operation::all_gather_v:
      return "all_gather_v";
    case Operation::all_to_all_v:
      return "all_to_all_v";
    case Operation::reduce_scatter:
      return "reduce_scatter";
    case Operation::broadcast:
      return "broadcast";
    case Operation::send:
      return "send";
    case Operation::receive:
      return "receive";
    case Operation::group:
      return "group";
    case Operation::barrier:
      return "barrier";
    case Operation::split:
      return "split";
  }
  return "?";
}

bool point_to_point(Operation operation) {
  return operation == Operation::send || operation == Operation::receive || operation == Operation::group;
}

void Call::reduces(ReduceOp op) {
  static constexpr const char* words[] = {"sum", "product", "min", "max"};
  std::snprintf(more, sizeof more, "%s", words[static_cast<int>(op)]);
}

void Call::has_root(int root) { std::snprintf(more, sizeof more, "root %d", root); }

void Call::exchanges(int place, const std::vector<int64_t>& sent, const std::vector<int64_t>& expected) {
  const auto between_two = [](uint64_t from, uint64_t to, int64_t rows) {
    return mixed(mixed(mixed(0x51ed2701, from + 1), to + 1), static_cast<uint64_t>(rows) + 1);
  };
  for (size_t other = 0; other < sent.size(); ++other) {
    balance += between_two(static_cast<uint64_t>(place), other, sent[other]);
    balance -= between_two(other, static_cast<uint64_t>(place), expected[other]);
  }
  between = sent;
  between.insert(between.end(), expected.begin(), expected.end());
}

void Call::seal() {
  hash = mixed(static_cast<uint64_t>(operation) + 1, static_cast<uint64_t>(dtype));
  hash = mixed(hash, name.data(), name.size());
  hash = mixed(hash, shape.size());
  for (int64_t size : shape) hash = mixed(hash, static_cast<uint64_t>(size));
  for (int64_t count : counts) hash = mixed(hash, static_cast<uint64_t>(count));
  hash = mixed(hash, more, std::strlen(more));
}

std::string described_between(const Call& call) {
  if (call.between.empty()) return "";
  const auto half = call.between.begin() + static_cast<std::ptrdiff_t>(call.between.size() / 2);
  return str("sends ", listed({call.between.begin(), half}), " and expects ", listed({half, call.between.end()}));
}

std::string describe(const Call& call) {
  std::string text = name_of(call.operation);
  if (!call.name.empty()) text += " '" + call.name + "'";
  if (call.has_tensor) {
    text += str(' ', name_of(call.dtype), '[');
    for (size_t d = 0; d < call.shape.size(); ++d) text += str(d == 0 ? "" : ",", call.shape[d]);
    text += ']';
  }
  if (!call.counts.empty()) text += " of counts " + listed(call.counts);
  if (call.more[0] != '\0') text += str(' ', call.more);
  return text;
}

void note(CallNotes& notes, int group, const Call& call) noexcept {
  CallNote note;
  note.number = call.number;
  note.hash = call.hash;
  note.operation = name_of(call.operation);
  note.name = call.name.c_str();
  note.more = call.more;
  if (call.has_tensor) {
    note.dtype = name_of(call.dtype);
    note.shape = call.shape.data();
    note.dimensions = static_cast<int>(call.shape.size());
  }
  notes.called(group, note);
}

Difference difference_of(const std::vector<int>& ranks, const std::vector<std::string>& texts) {
  std::map<std::string, std::vector<int>> callers;
  std::vector<std::string> order;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (callers[texts[i]].empty()) order.push_back(texts[i]);
    callers[texts[i]].push_back(ranks[i]);
  }
  Difference difference;
  for (const std::string& text : order) {
    const std::vector<int>& who = callers[text];
    std::vector<std::string> names;
    for (int rank : who) names.push_back(std::to_string(rank));
    difference.message += str(difference.message.empty() ? "" : "; ", who.size() == 1 ? "rank " : "ranks ",
                              join(names, ", "), ": ", text);
    if (order.size() == 2 && who.size() == 1 && ranks.size() > 2) difference.odd = who.front();
  }
  return difference;
}

}  // namespace convoy
