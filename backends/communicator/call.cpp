// Descriptions and hashes of calls. Hashes are computed at every collective, so they must cost only tens of
// nanoseconds.
#include "backends/communicator/call.h"

#include <cstdio>
#include <cstring>
#include <map>

namespace convoy {
namespace {

const char* name_of(at::ScalarType dtype) {
  static constexpr std::pair<at::ScalarType, const char*> names[] = {
      {at::kFloat, "float32"}, {at::kDouble, "float64"}, {at::kHalf, "float16"}, {at::kBFloat16, "bfloat16"},
      {at::kLong, "int64"},    {at::kInt, "int32"},      {at::kShort, "int16"},  {at::kChar, "int8"},
      {at::kByte, "uint8"},    {at::kBool, "bool"}};
  for (const auto& [known, name] : names)
    if (known == dtype) return name;
  return c10::toString(dtype);
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
  static constexpr const char* names[] = {"all_reduce",     "all_gather", "all_gather_v", "all_to_all_v",
                                          "reduce_scatter", "broadcast",  "send",         "receive",
                                          "group",          "barrier",    "split"};
  static_assert(std::size(names) == size_t(Operation::split) + 1);
  return names[size_t(operation)];
}

std::string listed_ranks(const std::vector<int>& ranks) {
  std::vector<std::string> names;
  for (int rank : ranks) names.push_back(std::to_string(rank));
  return (ranks.size() == 1 ? "rank " : "ranks ") + join(names, ", ");
}

bool is_point_to_point(Operation operation) {
  return operation == Operation::send || operation == Operation::receive || operation == Operation::group;
}

void Call::set_reduction(ReduceOp op) {
  static constexpr const char* words[] = {"sum", "product", "min", "max"};
  std::snprintf(more, sizeof more, "%s", words[int(op)]);
}

void Call::set_root(int root) { std::snprintf(more, sizeof more, "root %d", root); }

void Call::set_exchange(int group_rank, const std::vector<int64_t>& sent, const std::vector<int64_t>& expected) {
  const auto between_two = [](uint64_t from, uint64_t to, int64_t rows) {
    return mixed(mixed(mixed(0x51ed2701, from + 1), to + 1), uint64_t(rows) + 1);
  };
  for (size_t other = 0; other < sent.size(); ++other) {
    balance += between_two(uint64_t(group_rank), other, sent[other]);
    balance -= between_two(other, uint64_t(group_rank), expected[other]);
  }
  exchange_counts = sent;
  exchange_counts.insert(exchange_counts.end(), expected.begin(), expected.end());
}

void Call::seal() {
  hash = mixed(uint64_t(operation) + 1, uint64_t(dtype));
  hash = mixed(hash, name.data(), name.size());
  hash = mixed(hash, shape.size());
  for (int64_t size : shape) hash = mixed(hash, uint64_t(size));
  for (int64_t count : counts) hash = mixed(hash, uint64_t(count));
  hash = mixed(hash, more, std::strlen(more));
}

std::string describe_counts(const Call& call) {
  if (call.exchange_counts.empty()) return "";
  const auto half = call.exchange_counts.begin() + static_cast<std::ptrdiff_t>(call.exchange_counts.size() / 2);
  return str("sends ", listed({call.exchange_counts.begin(), half}), " and expects ",
             listed({half, call.exchange_counts.end()}));
}

std::string describe_call(const Call& call) {
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

void record(CollectiveRecords& records, int group, const Call& call) noexcept {
  CollectiveRecord entry;
  entry.number = call.number;
  entry.hash = call.hash;
  entry.operation = name_of(call.operation);
  entry.name = call.name.c_str();
  entry.more = call.more;
  if (call.has_tensor) {
    entry.dtype = name_of(call.dtype);
    entry.shape = call.shape.data();
    entry.dimensions = int(call.shape.size());
  }
  records.called(group, entry);
}

CallDifference difference_of(const std::vector<int>& ranks, const std::vector<std::string>& texts) {
  std::map<std::string, std::vector<int>> callers;
  std::vector<std::string> order;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (callers[texts[i]].empty()) order.push_back(texts[i]);
    callers[texts[i]].push_back(ranks[i]);
  }
  CallDifference difference;
  for (const std::string& text : order) {
    const std::vector<int>& who = callers[text];
    difference.message += str(difference.message.empty() ? "" : "; ", listed_ranks(who), ": ", text);
    if (order.size() == 2 && who.size() == 1 && ranks.size() > 2) difference.odd = who.front();
  }
  return difference;
}

}  // namespace convoy
